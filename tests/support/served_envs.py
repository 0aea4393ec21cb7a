# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments that a server must serve or survive."""

import copy

import grpc
import gymnasium
import numpy as np

from tests.support.envs import Catch, Sampled


class Nested(Sampled):
    """Its observation is a dict that contains a dict, a scalar array and an empty array."""

    parts = {
        "image": gymnasium.spaces.Box(0, 255, (2, 3), np.uint8),
        "inner": gymnasium.spaces.Dict({"x": gymnasium.spaces.Box(-9, 9, (), np.float64)}),
        "none": gymnasium.spaces.Box(0, 1, (0, 4), np.float32),
    }
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.observation_space = gymnasium.spaces.Dict(copy.deepcopy(self.parts))


class Trouble(Catch):
    """Fails in its third step."""

    steps = 0

    def step(self, action):
        self.steps += 1
        return super().step(action) if self.steps < 3 else self.go_wrong()


class Stacked(Catch):
    """Its observation is the two newest boards. Subclasses do not do what their metadata says."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 10, 5), np.uint8)
    metadata = {"frame_stacks": {"frame": 2}}

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.boards = np.stack([self.before_the_first(observation[0]), observation[0]])
        return self.boards.copy(), info

    def before_the_first(self, board):
        return 0 * board

    def step(self, action):
        observation, *rest = super().step(action)
        self.boards = np.stack([self.boards[1], observation[0]])
        return self.shown(), *rest

    def shown(self):
        return self.boards.copy()


class StackedTwice(Stacked):
    def before_the_first(self, board):
        return board


class Reversed(Stacked):
    def shown(self):
        return self.boards[::-1].copy()


class Raises(Trouble):
    def go_wrong(self):
        raise RuntimeError("the ball has rolled under the sofa")


class RaisesValueError(Trouble):
    def go_wrong(self):
        raise ValueError("a paddle of no size")


class GivesNaN(Trouble):
    def go_wrong(self):
        return self.board(), float("nan"), False, False, {}


class GivesAnotherShape(Trouble):
    def go_wrong(self):
        return self.board()[:, 1:], 0.0, False, False, {}


class RaisesAtLength(Trouble):
    def go_wrong(self):
        raise RuntimeError("ß€😀" * 5000 + " end of text")


class RaisesLines(Trouble):
    def go_wrong(self):
        raise RuntimeError("the ball\nhas rolled\n\n  under the sofa")


class Exits(Trouble):
    def go_wrong(self):
        raise SystemExit("the simulator is gone")


class LooksLikeALostClient(Trouble):
    """Raises a gRPC error, as an environment that uses gRPC itself may."""

    def go_wrong(self):
        raise grpc.RpcError("from within")


class Watched(Catch):
    """Counts the environments that are open."""

    def __init__(self, count):
        super().__init__()
        self.count = count
        count.append(self)

    def close(self):
        self.count.remove(self)


gymnasium.register("Stacked-v0", Stacked)
