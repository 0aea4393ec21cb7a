# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""bsuite's memory chain: `--env examples.memory.chain:Chain-100-v0`."""

import gymnasium
import numpy as np


class Chain(gymnasium.Env):
    """A game of `length` steps: "memory length" of Osband et al. 2019 (bsuite,
    https://arxiv.org/abs/1908.03568). The first observation is a bit; the last action must be it.

    The observation is float32 [2]: the bit as -1 or 1, later 0; and the time left, which falls from
    1 to 1 / length. Actions have no effect before the last, whose reward is 1 or -1. So the return
    of a policy that guesses is 0 on average. A policy without memory can do better only by passing
    the bit on from action to action, since it sees its last action.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.bit = int(self.np_random.integers(2))
        return self.seen(2 * self.bit - 1), {}

    def step(self, action):
        self.time += 1
        ended = self.time == self.length
        reward = (1.0 if action == self.bit else -1.0) if ended else 0.0
        return self.seen(0), reward, ended, False, {}

    def seen(self, context):
        return np.array([context, 1 - self.time / self.length], np.float32)


for length in (10, 100):
    gymnasium.register(f"Chain-{length}-v0", Chain, kwargs={"length": length})
