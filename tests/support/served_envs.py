# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments that a server must serve or survive."""

import copy

import gymnasium
import numpy as np

from tests.support.envs import Catch


class Stacked(Catch):
    """Its observation is the two newest boards."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 10, 5), np.uint8)
    metadata = {"frame_stacks": {"frame": 2}}

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.boards = np.stack([0 * observation[0], observation[0]])
        return self.boards.copy(), info

    def step(self, action):
        observation, *rest = super().step(action)
        self.boards = np.stack([self.boards[1], observation[0]])
        return self.boards.copy(), *rest


class Raises(Catch):
    """Raises the error in its third step."""

    steps = 0

    def __init__(self, error):
        super().__init__()
        self.error = error

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            raise copy.copy(self.error)
        return super().step(action)


class Watched(Catch):
    """Counts the environments that are open."""

    def __init__(self, count):
        super().__init__()
        self.count = count
        count.append(self)

    def close(self):
        self.count.remove(self)


gymnasium.register("Stacked-v0", Stacked)
