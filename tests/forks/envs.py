# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Small environments: `--env tests.forks.envs:Signals-v0` imports this module."""

import collections

import gymnasium
import numpy as np

from tests.support.games import Guess

SIZE = 5


class Signals(Guess):
    """One of three cells is lit. The action that is its number gives 1, the others nothing. An
    episode has 8 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (1, 3, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def ask(self):
        self.signal = int(self.np_random.integers(3))
        image = np.zeros((1, 3, 3), np.uint8)
        image[0, 1, self.signal] = 255
        return image

    def worth(self, action):
        return float(action == self.signal)


class Room(gymnasium.Env):
    """A walk in a square room. It begins in a corner, gives no reward, and ends after 20 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (1, SIZE, SIZE), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)
    moves = ((0, 1), (1, 0), (0, -1), (-1, 0))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = (0, 0), 0
        return self.seen(), {}

    def step(self, action):
        pairs = zip(self.place, self.moves[action], strict=True)
        self.place = tuple(min(SIZE - 1, max(0, x + move)) for x, move in pairs)
        self.steps += 1
        return self.seen(), 0.0, self.steps == 20, False, {}

    def seen(self):
        image = np.zeros((1, SIZE, SIZE), np.uint8)
        image[0][self.place] = 255
        return image


class CountedRoom(Room):
    """Says for the loss alone how often this place was visited in this episode."""

    observation_space = gymnasium.spaces.Dict(
        image=Room.observation_space,
        loss=gymnasium.spaces.Dict(visits=gymnasium.spaces.Box(1, np.inf, (), np.float32)),
    )

    def reset(self, **options):
        self.visits = collections.Counter()
        return super().reset(**options)

    def seen(self):
        self.visits[self.place] += 1
        return dict(image=super().seen(), loss=dict(visits=np.float32(self.visits[self.place])))


class Tasks(Signals):
    """Signals in two tasks, of which an episode has one. In the second a right action gives 50, and
    each step costs 30."""

    observation_space = gymnasium.spaces.Dict(
        image=Signals.observation_space, task=gymnasium.spaces.Box(0, 1, (2,), np.uint8)
    )

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.task = int(self.np_random.integers(2))
        return super().reset()

    def step(self, action):
        seen, reward, *ends = super().step(action)
        return seen, 50 * reward - 30 if self.task else reward, *ends

    def ask(self):
        return dict(image=super().ask(), task=np.eye(2, dtype=np.uint8)[self.task])


for env in (Signals, Room, CountedRoom, Tasks):
    gymnasium.register(f"{env.__name__}-v0", env, disable_env_checker=True)
