# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from examples.tensors import GAMES, make, plain_tag, reference
from examples.tensors.breakout import Breakout
from examples.tensors.consistency import Comparison
from libtorchbeast.flags import UserError
from libtorchbeast.tensors import TensorVector
from tests.support.forks import check_fork

# How many of each game are played at once, and how many episodes, for a few thousand steps.
EPISODES = {
    "asterix": (8, 4), "breakout": (8, 8), "freeway": (2, 1), "seaquest": (8, 8),
    "space_invaders": (8, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", GAMES)
def test_a_game_is_minatars(name):
    """In few episodes; README.md has the command that compares thousands."""
    num_envs, episodes = EPISODES[name]
    counts = Comparison(*getattr(reference, name)(), num_envs).run(episodes)
    assert counts.rewards > 10 and counts.longest > 100


@pytest.mark.parametrize("name", ["discrete", "crowd", "continuous", "continuous_crowd"])
def test_tag_is_that_of_numpy(name):
    pair = getattr(plain_tag, name)()
    counts = Comparison(*pair, num_envs=4).run(5)
    assert counts.steps > 400 and counts.longest == 100


class HardSeaquest(reference.Seaquest):
    """From the second time at the surface on an enemy comes in each step, and is fast."""

    def reset(self, state, mask):
        state = super().reset(state, mask)
        return self.put(state, mask, e_spawn_speed=3, move_speed=3, diver_count=5)


class HardOriginal(reference.Original):
    def reset(self, draws):
        super().reset(draws)
        game = self.game.env
        game.e_spawn_speed = game.move_speed = 3
        game.diver_count = 5
        return self.observation()


def test_a_crowded_sea_is_minatars():
    make_original = lambda: HardOriginal("seaquest", "nlurdf", choose=reference.fire_and_dive)
    counts = Comparison(HardSeaquest(), make_original, num_envs=8, revived=0.99).run(4)
    assert counts.rewards > 20


def test_bricks_come_again_when_all_are_gone():
    """With a wall of one brick, which the ball hits first."""
    env = Breakout()
    state = env.zeros(2)
    state["draws"] = torch.tensor([[0.5, 0.1], [0.5, 0.9]])
    state, _, _, _, _ = env.step(state, torch.zeros(2, dtype=torch.int64))
    state |= {"bricks": torch.tensor([0, 1]), "ball_y": torch.tensor([8, 8])}
    state |= {"ball_x": torch.tensor([4, 4]), "ball_dir": torch.tensor([2, 2])}
    state, seen, _, terminated, _ = env.step(state, torch.zeros(2, dtype=torch.int64))
    assert seen["frame"][:, 3].sum((1, 2)).tolist() == [30, 1]
    assert terminated.tolist() == [False, False]


@pytest.mark.parametrize("name", [*GAMES, "tag", "tag/3v4/continuous/partial"])
def test_a_step_is_one_graph(name):
    """With fullgraph=True a graph break is an error, so that nothing falls back to eager."""
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = lambda step: torch.compile(step, fullgraph=True, backend=counter, dynamic=False)
    eager, fast = (TensorVector(make(name), 3, compiled=c) for c in (lambda step: step, compiled))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for vector in (eager, fast):
            vector.reset(seed=1)
        for t in range(4):
            actions = torch.full((3, *eager.env.actions.shape), t % 3)
            actions = actions.float() / 2 if eager.env.actions.kind == "box" else actions
            expected, seen = eager.step(actions), fast.step(actions)
            torch.testing.assert_close(seen, expected, rtol=0, atol=0)
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", [*GAMES, "tag", "tag/continuous"])
def test_a_game_is_drawn(name):
    vector = TensorVector(make(name), 2)
    vector.reset(seed=0)
    picture = vector.render()
    assert picture.shape[2] == 3 and picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 2


def test_the_options_of_tag():
    tag = make("tag/partial/12v34/shared")
    assert (tag.taggers, tag.runners) == (12, 34)
    assert tag.partial and not tag.continuous and tag.groups == {"agents": 46}
    assert make("tag").groups == {"taggers": 4, "runners": 1}


@pytest.mark.parametrize(
    "name, expected",
    [
        ("pong", "--env pong: expected one of asterix, breakout, freeway, seaquest, space"),
        ("tag/0v1", "--env tag/0v1: expected a number of taggers and of runners like 4v1, .*'0v1'"),
        ("tag/full", "seen 'full'"),
        ("tag/4v1/3v2", "seen '3v2'"),
    ],
)
def test_a_name_that_is_none_is_refused(name, expected):
    with pytest.raises(UserError, match=expected):
        make(name)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "beast, edited", [("monobeast", "monobeast.py"), ("polybeast", "polybeast_env.py")]
)
def test_the_other_beasts_train_in_tensors(beast, edited, tmp_path):
    check_fork(Path(__file__).parent, beast, tmp_path, {edited})
