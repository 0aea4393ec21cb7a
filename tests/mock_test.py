# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The environment for benchmarks."""

import types

import numpy as np
import pytest

from benchmarks import mock
from benchmarks.mock import EPISODE_STEPS, make_mock
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError


@pytest.mark.parametrize("name, shape", [("Mock", (4, 84, 84)), ("Mock/4x10x10", (4, 10, 10))])
def test_mock(name, shape):
    environment = Environment(lambda: make_mock(name, 3), 3)
    assert environment.spec.observations == {"frame": (shape, "uint8")}
    assert environment.spec.num_actions == 6
    rows = [environment.initial(0)["frame"].copy()]
    ends = []
    for t in range(1, 2 * EPISODE_STEPS + 10):
        row = environment.step(np.zeros(3, np.int64))
        assert (row["frame"] != rows[-1]).any(axis=(1, 2, 3)).all()
        rows.append(row["frame"].copy())
        assert (row["reward"] == row["terminated"]).all()
        ends += [(t, i) for i in np.flatnonzero(row["terminated"])]
    assert len(ends) == 6 and len({t for t, _ in ends}) == 6  # at different times
    assert row["episode_step"].max() <= EPISODE_STEPS
    assert ends[3][0] - ends[0][0] == EPISODE_STEPS + 1  # and a step for the reset


def test_mock_is_a_stack_of_frames():
    """Its observation equals a stack of its newest frames that the test makes itself."""
    N = 40
    environment = Environment(lambda: make_mock("Mock", N), N)
    assert environment.spec.stacks == {"frame": 4}
    for life in range(2):
        row = environment.initial(life)
        expected = np.zeros((N, 4, 84, 84), np.uint8)
        games = 0
        for _ in range(1100):
            expected[:, :-1] = expected[:, 1:]
            expected[row["episode_step"] == 0, :-1] = 0
            expected[:, -1] = row["frame"][:, -1]
            assert row["frame"].tobytes() == expected.tobytes()
            newest = row["frame"][:, -1].reshape(N, -1)[:, 8:]
            assert newest[::13].any(axis=1).all()  # noise, also where zeros were
            games += (row["episode_step"] == 0).sum()
            row = environment.step(np.zeros(N, np.int64))
        assert games > 2 * N
    assert Environment(lambda: make_mock("Mock/4x84x84", 1), 1).spec.stacks == {}


@pytest.mark.parametrize("name", ["Mock@8", "Mock/4x10x10@8"])
def test_a_pace_is_kept_and_lost_time_is_not_made_up_for(name, monkeypatch):
    """Two environments that make 8 steps per second together have a step every 0.25 seconds."""
    clock, slept = [100.0], []
    sleep = lambda seconds: (slept.append(seconds), clock.append(clock[-1] + seconds))
    monkeypatch.setattr(
        mock, "time", types.SimpleNamespace(monotonic=lambda: clock[-1], sleep=sleep)
    )
    env = make_mock(name, 2)
    env.reset()
    for seconds in (0.0, 0.0625, 0.125, 1.0, 0.0625):  # until the next actions come
        env.step(np.zeros(2, np.int64))
        clock.append(clock[-1] + seconds)
    assert slept == [0.0, 0.25, 0.1875, 0.125, 0.0]


@pytest.mark.parametrize("name", ["Mock/", "Mock/4x", "Mock/-1", "Mock@0", "Mock@5/4"])
def test_mock_refuses(name):
    with pytest.raises(UserError, match=f"--env {name}: expected Mock or Mock/SIZExSIZE"):
        make_mock(name, 3)
