# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Action spaces: what a Spec says of them, and how a row's actions reach them."""

import numpy as np
import pytest
from gymnasium import spaces

from libtorchbeast.spec import Actions, describe_actions, to_space


@pytest.mark.parametrize(
    "space, expected",
    [
        (spaces.Discrete(3), Actions("discrete", (3,))),
        (spaces.MultiDiscrete([2, 5]), Actions("multi_discrete", (2, 5))),
        (spaces.MultiDiscrete([[2, 5], [3, 4]]), Actions("multi_discrete", (2, 5, 3, 4))),
        (spaces.Box(-1, 1, (2, 3)), Actions("box", (6,))),
        (spaces.Box(-1, 1, ()), Actions("box", (1,))),
    ],
    ids=str,
)
def test_action_spaces(space, expected):
    assert describe_actions(space) == expected
    zeros = expected.zeros(4)
    expected.check(zeros, 4)
    assert all(space.contains(action) for action in to_space(zeros, space))


def test_a_box_is_reached_from_end_to_end_and_never_left():
    low, high = np.array([-2.0, 0.0, -np.inf, 1.0]), np.array([2.0, 10.0, np.inf, np.inf])
    space = spaces.Box(low, high, dtype=np.float64)
    actions = np.array([[-1, -1, -1, -1], [0, 0, 0, 0], [1, 1, 1, 1], [9, -9, 9, 9]], np.float32)
    seen = to_space(actions, space)
    assert seen.dtype == np.float64
    assert seen.tolist() == [[-2, 0, -1, 1], [0, 5, 0, 1], [2, 10, 1, 1], [2, 0, 9, 9]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_bounds_do_not_overflow(dtype):
    most = np.finfo(dtype).max
    space = spaces.Box(-most, most, (5,), dtype)
    seen = to_space(np.array([[-9, -1, 0, 1, 9]], np.float32), space)
    assert seen.tolist() == [[-most, -most, 0, most, most]]
