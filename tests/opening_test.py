# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments that a program opens itself: in --num_actors 0, the test modes and evaluations."""

import threading
from types import SimpleNamespace
from unittest import mock

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import monobeast
from libtorchbeast import opening
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, Clock
from libtorchbeast.opening import OpeningWatch
from tests.support.monobeast import IN_ORDER
from tests.support.processes import GUARD_S, Program, load, wait_for

LIMIT = "took longer than --open_timeout 2 to open."
WAITS = "is being waited for"


class Ended(BaseException):
    """The process has ended, with this exit code."""


@pytest.fixture
def ends(monkeypatch):
    def end(code):
        raise Ended(code)

    monkeypatch.setattr(opening.os, "_exit", end)


class Looks(threading.Event):
    """An event whose waits take no time. In them `watch` sees so many environments open."""

    def __init__(self, watch, counts):
        super().__init__()
        self.watch, self.counts = watch, iter(counts)

    def wait(self, timeout=None):
        assert timeout == 0.5
        if (count := next(self.counts)) > self.watch._num_opened:
            self.watch._on_open(count)
        return self.is_set()


def limits(seconds):
    return SimpleNamespace(open_timeout=seconds, step_timeout=seconds)


def look(counts, num_envs=4, **options):
    """Returns what the watch says if `counts` environments are open at its looks, every 0.5 s."""
    said = []
    watch = OpeningWatch(limits(2.0), num_envs, "envs_per_actor", **options)
    watch._is_open = Looks(watch, counts)
    try:
        with mock.patch.object(opening.logger, "warning", said.append):
            watch._watch()
    except Ended as end:
        said.append(end.args[0])
    return said


def test_the_limit_counts_from_one_environment_to_the_next(ends):
    """The last opens as slowly as the others, or too slowly."""
    slow = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert look([*slow, 4]) == []
    assert look([*slow, 3]) == [f"Environment 4 of 4 {LIMIT}", 1]
    assert look([0] * 5, num_envs=1) == [f"The first environment {LIMIT}", 1]


def test_what_must_be_done_before_the_end_is_done(ends):
    leave = mock.Mock()
    assert look([0, 0, 1], must_end=lambda: True, leave=leave) == [0] and leave.call_count == 1
    assert look([1] * 9, leave=leave) == [f"Environment 2 of 4 {LIMIT}", 1]
    assert leave.call_count == 2
    leave.side_effect = OSError("the disk is full")
    assert look([0], must_end=lambda: True, leave=leave) == ["the disk is full", 1]


def test_a_step_that_hangs_ends_the_process_and_steps_that_end_do_not(ends, monkeypatch):
    monkeypatch.setattr(opening, "STOP_S", 1.0)
    clock, leave = Clock(["environment"]), mock.Mock()
    options = dict(clock=clock, leave=leave)

    def calls(words):
        """At each look a call begins, goes on, or has ended. All environments are open."""
        do = {"b": clock.begin_call, ".": int, "e": lambda: clock.lap("environment")}
        for word in words:
            do[word]()
            yield 4

    said = "An environment took longer than --step_timeout 2 for one step, or to close."
    assert look(calls("b....."), **options) == [said, 1] and leave.call_count == 1
    assert look(calls("bbb..."), **options, must_end=lambda: True) == [0]
    assert leave.call_count == 2
    with pytest.raises(StopIteration):  # it would look for ever
        look(calls("ebbbbbb....e......b....e"), **options)


def test_the_log_says_which_environment_is_waited_for(ends, monkeypatch):
    monkeypatch.setattr(opening.Reminder, "FIRST_S", 0.0)
    hint = "If the simulator is slow, fewer environments start sooner (--envs_per_actor)."
    assert look([0, 1, 4])[0] == f"Environment 2 of 4 {WAITS}, 0 s so far. {hint}"


def test_nothing_goes_on_while_the_process_ends(monkeypatch):
    """An environment may open at last while the run is being saved."""
    leaving, ended, gone_on = (threading.Event() for _ in range(3))
    monkeypatch.setattr(opening.os, "_exit", lambda code: ended.wait())

    def open_all():
        watch = OpeningWatch(limits(0.1), must_end=lambda: True, leave=leaving.set)
        with watch as on_open:
            assert leaving.wait(GUARD_S)
            on_open(1)
            gone_on.set()

    thread = threading.Thread(target=open_all, daemon=True)
    thread.start()
    assert leaving.wait(GUARD_S) and not gone_on.wait(0.1)
    ended.set()
    thread.join(GUARD_S)
    assert gone_on.is_set()


@pytest.mark.usefixtures("as_before")
def test_a_run_in_order_saves_and_ends_while_an_environment_hangs(tmp_path):
    """One is opened for the Spec, and four up to the first barrier. At the second barrier
    environment 2 of 4 never opens."""
    flags = ["--env", "tests.support.envs:StuckCatch-v0", *IN_ORDER[2:], "--open_timeout", 1000]
    flags += ["--barrier_updates", 1, "--total_steps", 10**9]
    with Program(tmp_path, *flags, STUCK=7) as program:
        program.wait_for(lambda: f"Environment 2 of 4 {WAITS}" in program.printed())
        program.process.terminate()
        assert program.wait_for_end() == 0, program.printed()
        wait_for(lambda: not program.session())
    said = program.printed()
    assert said.count(f"stopped by SIGTERM. {program.path} resumes with --xpid") == 1
    assert LIMIT not in said and "Traceback" not in said
    state = load(program.path)
    assert state["step"] == program.rows()[-1]["step"] > 0
    assert not state["between_barriers"]


class Drawn(gymnasium.Env):
    """Its first observation depends on the seed, or if `ignores` on nothing that can be given."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, ignores):
        self.ignores = ignores

    def reset(self, *, seed=None, options=None):
        super().reset(seed=None if self.ignores else seed)
        return self.np_random.random(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("ignores, num_actors", [(False, 0), (True, 0), (True, 1)])
def test_an_environment_that_ignores_its_seed_is_told_where_runs_repeat(
    ignores, num_actors, caplog
):
    flags = monobeast.parse(f"--env some --num_actors {num_actors}".split())
    own = lambda flags: Drawn(ignores), monobeast.Net, monobeast.Actor
    opening._describe(flags, lambda spec: flags, Clock(ACTOR_ACTIVITIES), int, *own)
    said = "some gives two first observations for one seed; other runs may not repeat"
    assert (said in caplog.text) == (ignores and num_actors == 0)
