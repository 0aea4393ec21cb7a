# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A small environment of tensors, and the same in NumPy."""

import numpy as np
import torch

from libtorchbeast.spec import Actions
from libtorchbeast.tensors import TensorEnv


class Walk(TensorEnv):
    """A walk on a line from one of the places 0 to 3, at most 7 steps long. It terminates at 6. The
    reward is the step's length, which may be 0 or negative."""

    observations = {"frame": ((2,), "float32")}
    state = {"place": ((), torch.float32), "time": ((), torch.int64)}
    draws = {"start": 1}

    def __init__(self, kind="discrete"):
        sizes = {"discrete": (3,), "multi_discrete": (3, 3), "box": (2,)}
        self.actions = Actions(kind, sizes[kind])

    def reset(self, state, mask):
        place = self.drawn(state, "start", 4).float()
        return self.put(state, mask, place=place, time=0)

    def advance(self, state, actions):
        move = actions.float() if self.actions.kind == "discrete" else actions.float().mean(1)
        move = move if self.actions.kind == "box" else move - 1
        time, place = state["time"] + 1, state["place"] + move
        state = {**state, "place": place, "time": time}
        return state, move, place >= 6, time >= 7

    def observe(self, state):
        return {"frame": torch.stack([state["place"], state["time"].float()], 1)}


class Turns(Walk):
    """Tells a discount from -1 to 1 with each step."""

    own_discounts = True
    state = {**Walk.state, "discount": ((), torch.float32)}

    def advance(self, state, actions):
        state, *result = super().advance(state, actions)
        odd = state["time"] % 2 > 0
        return state | {"discount": torch.where(odd, -1.0, 0.5)}, *result


class PlainWalk:
    """The same with discrete actions, for examples.tensors.consistency."""

    def reset(self, draws):
        self.place, self.time = float(draws.pick("start", 4)), 0
        return self.seen()

    def step(self, action, draws):
        self.place += action - 1
        self.time += 1
        return self.seen(), action - 1, self.place >= 6, self.time >= 7

    def seen(self):
        return {"frame": np.array([self.place, self.time], np.float32)}


class Foreign:
    """A vector environment that shows no more than Gymnasium asks for, as one of Isaac Lab would,
    and gives tensors on `device`."""

    def __init__(self, vector, device="cpu"):
        for name in ("num_envs", "metadata", "single_observation_space", "single_action_space"):
            setattr(self, name, getattr(vector, name))
        self._vector, self._device = vector, device

    def reset(self, *, seed=None, options=None):
        return self._there(self._vector.reset(seed=seed))

    def step(self, actions):
        assert actions.device.type == torch.device(self._device).type
        return self._there(self._vector.step(actions.cpu()))

    def _there(self, result):
        move = lambda x: x.to(self._device) if isinstance(x, torch.Tensor) else x
        there = [move(x) for x in result[1:]]
        return {k: move(x) for k, x in result[0].items()}, *there

    def close(self):
        pass
