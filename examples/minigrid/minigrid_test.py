# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from examples.minigrid.words import NUMBERS, Words
from tests.support.forks import FORKS, check_fork


class Says(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        said=gymnasium.spaces.Text(100), direction=gymnasium.spaces.Discrete(4)
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, text):
        self.text = text

    def reset(self, *, seed=None, options=None):
        return {"said": self.text, "direction": 3}, {}


def test_words_become_numbers():
    env = Words(Says("Open the door, then the çekmece"), "said", length=8)
    observation, _ = env.reset()
    assert env.observation_space.contains(observation) and observation["direction"] == 3
    open_, the, door, then, again, drawer, *padding = observation["said"]
    assert the == again and len({0, open_, the, door, then, drawer}) == 6 and padding == [0, 0]
    assert door == 1 + 0x8AE5542D % (NUMBERS - 1)  # its CRC-32
    other, _ = Words(Says("the DOOR"), "said", length=2).reset()
    np.testing.assert_array_equal(other["said"], [the, door])


@pytest.mark.parametrize("beast", FORKS)
def test_the_fork_trains(beast, tmp_path):
    check_fork(Path(__file__).parent, beast, tmp_path)
