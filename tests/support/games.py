# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Games for spaces_test.py, one for each kind of observations and actions. An agent can win only if
it sees the whole observation and the environment gets exactly its actions."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Guess(gymnasium.Env):
    """Each of the eight observations of a game asks for an action. The reward is at most 1. A
    subclass defines what is asked and what an answer is worth."""

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.ask(), {}

    def step(self, action):
        assert self.action_space.contains(action), (action, type(action))
        reward = self.worth(action)
        self.steps += 1
        return self.ask(), reward, self.steps == 8, False, {}


class Pairs(Guess):
    """The agent must repeat two numbers, which it sees in a Dict that contains a Tuple. The reward
    is -1, 0 or 1 for none, one or both of them."""

    action_space = spaces.MultiDiscrete([3, 4])
    observation_space = spaces.Dict(
        hand=spaces.Box(0, 1, (3,), np.float32),
        table=spaces.Tuple([spaces.Box(0, 255, (2, 2), np.uint8), spaces.Box(-1, 1, (1,))]),
    )

    def ask(self):
        self.wanted = self.np_random.integers(self.action_space.nvec)
        table = (255 * (np.arange(4) == self.wanted[1])).reshape(2, 2).astype(np.uint8)
        hand = np.eye(3, dtype=np.float32)[self.wanted[0]]
        return {"hand": hand, "table": (table, np.zeros(1, np.float32))}

    def worth(self, action):
        return float((action == self.wanted).sum()) - 1.0


class Allowed(Guess):
    """Of six actions some are forbidden. A forbidden action raises. The lowest action that is
    allowed gives a reward of 1."""

    action_space = spaces.Discrete(6)
    observation_space = spaces.Dict(action_mask=spaces.MultiBinary(6), copy=spaces.MultiBinary(6))

    def ask(self):
        self.mask = self.np_random.integers(0, 2, 6).astype(np.int8)
        self.mask[self.np_random.integers(6)] = 1
        return {"action_mask": self.mask, "copy": self.mask}

    def worth(self, action):
        if not self.mask[action]:
            raise RuntimeError(f"{action} is forbidden by {self.mask}")
        return float(action == self.mask.argmax())


class Target(Guess):
    """The agent must name a point in a rectangle. The reward is 1 minus the distances in both
    directions, each divided by half of the side."""

    action_space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64)
    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def ask(self):
        self.wanted = self.np_random.uniform(-0.8, 0.8, 2).astype(np.float32)
        return self.wanted

    def worth(self, action):
        return 1.0 - float(np.abs((action - [0, 5]) / [2, 5] - self.wanted).sum())


class Number(Guess):
    """The agent must name the number that it sees, in spaces without axes."""

    action_space = observation_space = spaces.Box(-1, 1, (), np.float32)

    def ask(self):
        return np.float32(self.np_random.uniform(-0.8, 0.8))

    def worth(self, action):
        assert self.action_space.contains(np.asarray(action))
        return -abs(float(action))


for env in (Pairs, Allowed, Target, Number):
    gymnasium.register(f"{env.__name__}-v0", env)
