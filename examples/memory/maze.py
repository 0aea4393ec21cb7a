# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The T-maze of Bakker 2001: `--env examples.memory.maze:TMaze-50-v0`."""

import gymnasium
import numpy as np

NORTH, EAST, SOUTH, WEST = range(4)


class TMaze(gymnasium.Env):
    """A corridor that leads east, `length` steps to a junction. A sign at its beginning says
    whether the goal lies north or south of the junction.

    After Bakker, "Reinforcement Learning with Long Short-Term Memory", NeurIPS 2001; the rewards
    were not checked against the paper. The observation is float32 [3]: 0 1 1 or 1 1 0 at the sign,
    1 0 1 in the corridor, 0 1 0 at the junction. A step against a wall has a reward of -0.1. The
    step north or south from the junction ends the game, with a reward of 4 at the goal and of -0.1
    elsewhere. So the best return is 4, and without memory 1.95 on average.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        self.goal = (NORTH, SOUTH)[self.np_random.integers(2)]
        return self.seen(), {}

    def step(self, action):
        if self.place == self.length and action in (NORTH, SOUTH):
            return self.seen(), 4.0 if action == self.goal else -0.1, True, False, {}
        before = self.place
        move = {EAST: 1, WEST: -1}.get(int(action), 0)
        self.place = min(max(before + move, 0), self.length)
        return self.seen(), -0.1 if self.place == before else 0.0, False, False, {}

    def seen(self):
        if self.place == 0:
            return np.array([0, 1, 1] if self.goal == NORTH else [1, 1, 0], np.float32)
        return np.array([0, 1, 0] if self.place == self.length else [1, 0, 1], np.float32)


for length in (10, 50):
    gymnasium.register(f"TMaze-{length}-v0", TMaze, kwargs={"length": length})
