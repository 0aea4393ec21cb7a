# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The watchdog of a server's calls."""

import itertools
import time

from libtorchbeast import workers
from libtorchbeast.rpcenv.watchdog import CallTimer, TimeLimit


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
