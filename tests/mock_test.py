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
    """Without a size, an observation is a stack of its newest frames."""
    environment, is_stack = Environment(lambda: make_mock(name, 3), 3), name == "Mock"
    assert environment.spec.observations == {"frame": (shape, "uint8")}
    assert environment.spec.num_actions == 6
    assert environment.spec.stacks == ({"frame": 4} if is_stack else {})
    before, ends = environment.initial(0)["frame"].copy(), []
    assert not (is_stack and before[:, :-1].any())
    for t in range(1, 2 * EPISODE_STEPS + 10):
        row = environment.step(np.zeros(3, np.int64))
        frame = row["frame"].copy()
        assert (frame != before).any(axis=(1, 2, 3)).all()
        if is_stack:
            older = np.where(row["done"][:, None, None, None], 0, before[:, 1:])
            assert frame[:, :-1].tobytes() == older.tobytes()
            assert frame[:, -1].reshape(3, -1)[:, 8:].any(axis=1).all()  # noise, where zeros were
        assert (row["reward"] == row["terminated"]).all()
        ends += [(t, i) for i in np.flatnonzero(row["terminated"])]
        before = frame
    assert len(ends) == 6 and len({t for t, _ in ends}) == 6  # at different times
    assert row["episode_step"].max() <= EPISODE_STEPS
    assert ends[3][0] - ends[0][0] == EPISODE_STEPS + 1  # and a step for the reset
    assert not (is_stack and environment.initial(1)["frame"][:, :-1].any())


def test_a_pace_is_kept_and_lost_time_is_not_made_up_for(monkeypatch):
    """Two environments that make 8 steps per second together have a step every 0.25 seconds."""
    clock, slept = [100.0], []
    sleep = lambda seconds: (slept.append(seconds), clock.append(clock[-1] + seconds))
    monkeypatch.setattr(
        mock, "time", types.SimpleNamespace(monotonic=lambda: clock[-1], sleep=sleep)
    )
    env = make_mock("Mock/4x10x10@8", 2)
    env.reset()
    for seconds in (0.0, 0.0625, 0.125, 1.0, 0.0625):  # until the next actions come
        env.step(np.zeros(2, np.int64))
        clock.append(clock[-1] + seconds)
    assert slept == [0.0, 0.25, 0.1875, 0.125, 0.0]


@pytest.mark.parametrize("name", ["Mock/", "Mock/4x", "Mock/-1", "Mock@0", "Mock@5/4"])
def test_mock_refuses(name):
    with pytest.raises(UserError, match=f"--env {name}: expected Mock or Mock/SIZExSIZE"):
        make_mock(name, 3)
