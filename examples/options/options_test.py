# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from examples.options.atari import GAMMA, LENGTHS, Options
from libtorchbeast.environment import Environment
from tests.support.forks import SMALL, command, run_python
from tests.support.processes import ROOT, load


class Counting(gymnasium.Env):
    """Shows the number of steps and the last action. A game has 30 steps; its first life, 20."""

    observation_space, action_space = Box(-1, 30, (2,), np.int64), Discrete(3)
    metadata = {"render_modes": [], "frame_stacks": {"frame": 4}}

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.array([0, -1]), {}

    def step(self, action):
        self.steps += 1
        is_lost = self.steps == 20
        info = {"torchbeast": {"life_lost": is_lost}}
        return np.array([self.steps, action]), 1, is_lost, self.steps == 30, info


def test_an_action_lasts_until_the_episode_ends():
    env = Options(Counting())
    assert env.action_space == Discrete(9) and not env.metadata["frame_stacks"]
    env.reset()
    expected = [  # action, what is seen, reward, terminated, truncated
        (2, [1, 2], 1, False, False),
        (4, [5, 1], 4, False, False),
        (8, [20, 2], 15, True, False),  # the life is lost in it
        (6, [30, 0], 10, False, True),
    ]
    for action, seen, reward, *ends in expected:
        observation, *others, info = env.step(action)
        assert observation.tolist() == seen and others == [float(reward), *ends]
        own = {"life_lost": ends[0], "discount": pytest.approx(GAMMA ** (reward - 1))}
        assert info["torchbeast"] == own


def test_a_row_has_the_discount_of_its_option():
    env = Environment(lambda: Options(Counting()), 1, "counting")
    env.initial(0)
    for index, length in enumerate(LENGTHS[:2]):
        row = env.step(np.array([3 * index]))
        np.testing.assert_allclose(row["discount"], GAMMA ** (length - 1))


def test_the_command_trains_on_freeway(tmp_path):
    small = f"{SMALL} --xpid run --envs_per_actor 4 --num_actors 1 --savedir {tmp_path}".split()
    run_python([*command(Path(__file__).parent, "monobeast"), *small], ROOT)
    assert load(tmp_path / "run")["step"] >= 400
