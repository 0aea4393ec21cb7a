# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The watchdog of a server's calls."""

import itertools
import time

from libtorchbeast import workers
from libtorchbeast.environment import Environment
from libtorchbeast.rpcenv import watchdog
from libtorchbeast.rpcenv.watchdog import CallTimer, TimeLimit, Watchdog
from tests.support.envs import Catch


def test_a_call_in_whose_time_the_server_was_stopped_itself_is_no_hang(monkeypatch):
    now = itertools.count(1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    silence_timer, timer, limit = workers.SilenceTimer(), CallTimer(0), TimeLimit(3.0, "3 s")
    look = lambda: (silence_timer.tick(), timer.exceeded(silence_timer))[1]
    assert timer.run(limit, lambda: [look() for _ in range(5)]) == [None] * 3 + [limit] * 2
    assert look() is None

    def stopped():
        for _ in range(100):
            next(now)
        return [look() for _ in range(5)]

    assert timer.run(limit, stopped) == [None] * 4 + [limit]


def test_a_slow_opening_that_moves_is_told_and_not_ended(monkeypatch, caplog):
    now, ended = 1000.0, []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(watchdog.os, "_exit", ended.append)
    timer, limit = CallTimer(3, num_envs=4), TimeLimit(3.0, "--open_timeout 3 to open")
    dog = Watchdog("unix:/s", lambda: [timer], lambda: None, 1.0)
    silence_timer = workers.SilenceTimer()

    def passes(seconds):
        nonlocal now
        for _ in range(seconds):
            now += 1.0
            dog._look(silence_timer)

    def create_env():
        passes(3)
        return Catch()

    timer.run(limit, Environment(create_env, 4).initial, 0, timer.on_open)
    assert ended == [] and timer.num_opened == 4
    assert [record.getMessage().partition(". ")[0] for record in caplog.records] == [
        "unix:/s: stream 3 has been opening its environments for 5 s and waits for number 3 of 4"
    ]
    assert "(--envs_per_server)" in caplog.text

    timer.on_open(2)
    timer.run(limit, passes, 4)
    assert ended == [watchdog.HUNG_EXIT_CODE]
    told = "stream 3 took longer than --open_timeout 3 to open environment 3 of 4; this process"
    assert told in caplog.text
