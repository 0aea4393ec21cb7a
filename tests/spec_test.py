# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Action spaces: what a Spec says of them, and how a row's actions reach them."""

import dataclasses

import numpy as np
import pytest
from gymnasium import spaces

from libtorchbeast.flags import UserError
from libtorchbeast.spec import (
    LONGEST_ONE_HOT,
    Actions,
    Spec,
    check_action_mask,
    describe_actions,
    flatten_space,
    sets_of,
    to_space,
)


@pytest.mark.parametrize("space, expected", [
    (spaces.Discrete(3), Actions("discrete", (3,))),
    (spaces.Discrete(3, start=-4), Actions("discrete", (3,))),
    (spaces.MultiDiscrete([2, 5], start=[5, 0]), Actions("multi_discrete", (2, 5))),
    (spaces.MultiDiscrete([2, 3], dtype=np.uint8), Actions("multi_discrete", (2, 3))),
    (spaces.MultiDiscrete([[2, 5], [3, 4]]), Actions("multi_discrete", (2, 5, 3, 4))),
    (spaces.Box(-1, 1, (2, 3)), Actions("box", (6,))),
    (spaces.Box(-1, 1, ()), Actions("box", (1,))),
], ids=str)  # fmt: skip
def test_action_spaces(space, expected):
    assert describe_actions(space) == expected
    assert str(expected) == f"{type(space).__name__}({', '.join(map(str, expected.sizes))})"
    zeros = expected.zeros(4)
    expected.check(zeros, 4)
    assert all(space.contains(action) for action in to_space(zeros, space))


def test_numbers_that_stand_for_things_are_sets():
    parts = {
        "suit": spaces.Discrete(4),
        "rank": spaces.Discrete(13, start=1),
        "pair": spaces.Tuple([spaces.MultiDiscrete([3, 7]), spaces.Box(0, 9, (2,), np.int64)]),
        "bits": spaces.MultiBinary(4),
        "below": spaces.Discrete(4, start=-1),
        "many": spaces.Discrete(LONGEST_ONE_HOT + 1),
        "wide": spaces.MultiDiscrete([LONGEST_ONE_HOT // 2] * 3),
        "image": spaces.MultiDiscrete(np.full((3, 9, 9), 4)),
    }
    assert sets_of(spaces.Dict(parts)) == {"suit": 4, "rank": 14, "pair/0": 7}
    assert sets_of(spaces.Discrete(5)) == {"frame": 5}


def test_a_box_is_reached_from_end_to_end_and_never_left():
    low, high = np.array([-2.0, 0.0, -np.inf, 1.0]), np.array([2.0, 10.0, np.inf, np.inf])
    space = spaces.Box(low, high, dtype=np.float64)
    actions = np.array([[-1, -1, -1, -1], [0, 0, 0, 0], [1, 1, 1, 1], [9, -9, 9, 9]], np.float32)
    seen = to_space(actions, space)
    assert seen.dtype == np.float64
    assert seen.tolist() == [[-2, 0, -1, 1], [0, 5, 0, 1], [2, 10, 1, 1], [2, 0, 9, 9]]
    for dtype in (np.float32, np.float64):  # the largest bounds do not overflow
        most = np.finfo(dtype).max
        space = spaces.Box(-most, most, (5,), dtype)
        seen = to_space(np.array([[-9, -1, 0, 1, 9]], np.float32), space)
        assert seen.tolist() == [[-most, -most, 0, most, most]]


@pytest.mark.parametrize("action_space, mask", [
    (spaces.Discrete(4), spaces.MultiBinary(5)),
    (spaces.Discrete(4), spaces.Box(0, 1, (4,), np.float32)),
    (spaces.Box(-1, 1, (4,)), spaces.MultiBinary(4)),
], ids=str)  # fmt: skip
def test_an_action_mask_that_is_none_is_refused(action_space, mask):
    observations = flatten_space(spaces.Dict(action_mask=mask))
    with pytest.raises(UserError, match="action_mask: expected .* for each action"):
        check_action_mask(observations, describe_actions(action_space))


@pytest.mark.parametrize(
    "name",
    "reward done terminated truncated episode_over episode_step episode_return last_action action "
    "policy_logits baseline policy_version core_state/0 column/chance discount "
    "game/win".split(),
)
def test_the_name_of_a_rows_other_key_or_of_what_a_batch_says_of_columns_is_refused(name):
    """A batch would have it twice, or the network would never see it."""
    space = spaces.Box(0, 1, (2,))
    for key in reversed(name.split("/")):
        space = spaces.Dict({key: space})
    with pytest.raises(UserError, match=f"^The observation key '{name}' is also a row's key"):
        flatten_space(space)


def test_what_one_agent_sees_has_no_axis_of_agents_no_reward_and_nothing_of_the_loss():
    own = {"a/frame": ((2, 4), "float32"), "a": ((2, 3), "float32"), "b/b": ((1, 5), "uint8")}
    other = {"a/reward": ((2,), "float32"), "b/reward": ((1,), "float32")}
    other |= {
        "a/done": ((2,), "bool"),
        "a/loss/count": ((2, 7), "float32"),
        "b/loss": ((1,), "bool"),
    }
    spec = Spec("Some", 1, own | other, Actions("discrete", (2, 2, 2)))
    seen = {"a/frame": ((4,), "float32"), "a": ((3,), "float32"), "b/b": ((5,), "uint8")}
    assert spec.of_one_agent.observations == seen


def test_a_misfit_says_what_differs():
    spec = Spec("x", 1, {"frame": ((), "int64")}, Actions("discrete", (2,)), sets={"frame": 4})
    assert spec.misfit(spec.signature()) == ""
    other = dataclasses.replace(spec, sets={"frame": 5}).signature()
    both = ("frame int64[] below 5 and Discrete(2)", "frame int64[] below 4 and Discrete(2)")
    assert spec.misfit(other) == "expected {}; seen {}".format(*both)


def test_another_process_gets_the_same_spec_as_json():
    observations = {"frame": ((4, 84, 84), "uint8"), "group/hand": ((3,), "int64")}
    actions = Actions("multi_discrete", (2, np.int64(3)))
    more = dict(stacks={"frame": 4}, sets={"group/hand": 7}, numbers=("discount", "game/won"))
    spec = Spec("Some-v0", 5, observations, actions, frames_per_step=4, **more)
    assert Spec.from_json(spec.to_json()) == spec
