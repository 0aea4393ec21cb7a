# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import contextlib
from unittest import mock

import numpy as np
import pytest
import torch

from examples.tensors import consistency
from examples.tensors.consistency import Comparison, Difference, Draws
from libtorchbeast.flags import UserError
from tests.support.tensors import PlainWalk, Walk


def walks():
    return Walk(), PlainWalk


def compare(make_reference=PlainWalk, env=None, episodes=20, **options):
    return Comparison(env or Walk(), make_reference, num_envs=4, **options).run(episodes)


def test_equal_environments():
    counts = compare()
    assert counts.episodes >= 20 and counts.longest == 7
    assert counts.steps > 100 and 0 < counts.rewards < counts.steps
    counts = compare(episodes=1)  # which is counted when it ends
    assert counts.episodes >= 1 and counts.steps >= 4 * 3


def changed(**methods):
    """PlainWalk with other methods. Each gets what the usual one returns."""
    own = {
        name: lambda self, *args, name=name, change=change: change(
            self, getattr(PlainWalk, name)(self, *args)
        )
        for name, change in methods.items()
    }
    return type("Changed", (PlainWalk,), own)


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_each_part_of_a_step_is_compared(part):
    """From step 5 of an episode on: its observation, reward, terminated, truncated."""

    def step(self, result):
        result = list(result)
        if self.time == 5:
            other = {"frame": result[0]["frame"] + [0, 1]} if part == 0 else not result[part]
            result[part] = other
        return result

    name = ["frame", "reward", "terminated", "truncated"][part]
    text = rf"Environment \d, step 5 of its episode, action [012]: {name}"
    with pytest.raises(Difference, match=text):
        compare(changed(step=step))


@pytest.mark.parametrize(
    "method, change, text",
    [
        (
            "reset",
            lambda frame: frame + np.float32([0, 2]),
            r"Environment 0, step 0 .*, a reset: frame\[1\] is 0.0, expected 2.0 \(1 of 2 differ\)",
        ),
        ("seen", lambda frame: frame + np.float32(5e-6), ""),  # rounding is none
        ("seen", lambda frame: frame + np.float32(1e-3), "frame"),
        ("seen", lambda frame: np.zeros(3), r"frame has the shape \[2\], expected \[3\]"),
    ],
)
def test_a_difference_is_told_with_its_place(method, change, text):
    reference = changed(**{method: lambda self, seen: {"frame": change(seen["frame"])}})
    with pytest.raises(Difference, match=text) if text else contextlib.nullcontext():
        compare(reference)


def test_a_part_that_only_one_of_them_has_is_a_difference():
    """Else it would never be compared."""

    class Fuller(Walk):
        def observe(self, state):
            return {**super().observe(state), "time": state["time"]}

    class FullerPlain(PlainWalk):
        def seen(self):
            return {**super().seen(), "time": self.time}

    compare(FullerPlain, Fuller())
    with pytest.raises(Difference, match=r"The parts are \[.*'time', .*\], expected \['frame', 'r"):
        compare(PlainWalk, Fuller())
    with pytest.raises(Difference, match=r"The parts are \['frame', 'r.*\], expected .*'time'"):
        compare(FullerPlain, Walk())


def test_a_reference_may_revive_a_game_and_choose_actions():
    class Revived(PlainWalk):
        def revive(self):
            self.revivals = getattr(self, "revivals", 0) + 1

    class Still(PlainWalk):
        def choose(self, random):
            return 1

    assert compare(Revived, revived=0.9).longest > 7
    assert compare(Still).rewards == 0


def test_draws_are_taken_by_name_and_are_those_of_the_tensors():
    env = Walk()
    env.draws = {"a": 2, "b": 1}
    draws = Draws(env, np.array([0.25, 0.5, 0.75], np.float32))
    assert (draws.take("b"), draws.take("a"), draws.pick("a", 4)) == (0.75, 0.25, 2)
    with pytest.raises(IndexError):
        draws.take("a")


def test_no_draw_is_a_fraction_that_a_test_may_ask_for():
    drawn = Comparison(Walk(), PlainWalk, num_envs=4000)._draw()
    assert drawn.dtype == np.float32 and (drawn > 0).all() and (drawn < 1).all()
    assert ((drawn.astype(float) * 2**24) % 2 == 1).all()


def test_a_compiled_step_can_be_compared():
    env = Walk()
    env.step = step = mock.Mock(side_effect=env.step)
    compare(env=env)
    assert {call.args[1].dtype for call in step.call_args_list} == {torch.int64}


def test_the_command(capsys):
    consistency.main(f"{__name__}:walks --episodes 10 --num_envs 2".split())
    text = capsys.readouterr().out
    assert f"{__name__}:walks: no difference in 1" in text and " whole episodes, " in text


@pytest.mark.parametrize("path", ["nothing", "no.module:f", f"{__name__}:no", f"{__name__}:Walk"])
def test_a_wrong_path_is_refused(path):
    with pytest.raises(UserError, match="expected MODULE:NAME, for example"):
        consistency.load(path)
    with pytest.raises(SystemExit, match="consistency: error: expected MODULE:NAME"):
        consistency.main([path])


def test_a_device_that_torch_lacks_is_refused():
    with pytest.raises(SystemExit, match="--device cuda:99: expected cpu or an accelerator"):
        consistency.main([f"{__name__}:walks", "--device", "cuda:99"])
