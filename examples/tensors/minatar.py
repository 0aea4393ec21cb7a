# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MinAtar's games (Young and Tian 2019) as tensor operations, exact: the same draws and actions
give the same observations, rewards and ends as the package MinAtar 1.0.15, with sticky actions,
difficulty ramping and minimal actions (`MinAtar/Breakout-v1`). examples.tensors.consistency
compares them.

Each game is in a file beside this one, which has the code that they share. Parts of a state have
the original's names, if it has any. `x` and `y` are columns and rows of the image.
"""

import colorsys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libtorchbeast.spec import Actions
from libtorchbeast.tensors import State, TensorEnv

INT, BOOL = torch.int64, torch.bool
SIDE = 10  # images are 10 x 10
STICKY = 0.1  # the probability that the last action is repeated


class Game(TensorEnv):
    """What the games have in common."""

    moves: str  # the minimal actions: none, left, right, up, down, fire
    channels: int
    ints: str  # names of the state's whole numbers [N]

    def __init__(self):
        self.observations = {"frame": ((self.channels, SIDE, SIDE), "bool")}
        self.actions = Actions("discrete", (len(self.moves),))
        self.draws = {"sticky": 1, **self.draws}
        names = ["last_action", *self.ints.split()]
        self.state = {**{name: ((), INT) for name in names}, **self.state}

    def sticky(self, state: State, actions: Tensor) -> tuple[State, dict[str, Tensor]]:
        """Returns the state with the action that is played, and for each move whether that is it.
        An action between two episodes is not played, so `last_action` stays as it is."""
        repeat = (self.drawn(state, "sticky") < STICKY) | state["ended"]
        action = torch.where(repeat, state["last_action"], actions)
        played = {move: action == i for i, move in enumerate(self.moves)}
        return {**state, "last_action": action}, played

    def observe(self, state: State) -> dict[str, Tensor]:
        return {"frame": self.frame(state)}

    def frame(self, state: State) -> Tensor:
        """The image, bool [N, channels, 10, 10]."""
        raise NotImplementedError

    def picture(self, state: State) -> np.ndarray:
        hues = [colorsys.hsv_to_rgb(i / self.channels, 0.7, 1.0) for i in range(self.channels)]
        colors = (255 * np.array([(0, 0, 0), *hues])).astype(np.uint8)
        frame = self.frame(state)[0].cpu().numpy()
        return colors[(frame * np.arange(1, self.channels + 1)[:, None, None]).max(0)]


def inside(x: Tensor) -> Tensor:
    return (x >= 0) & (x < SIDE)


def line(like: Tensor) -> Tensor:
    """0 to 9, on the device of a tensor."""
    return torch.arange(SIDE, device=like.device)


def way(right: Tensor) -> Tensor:
    """1 where True, -1 where False."""
    return 2 * right.long() - 1


def paint(channels: int, *points: tuple[int | Tensor, int | Tensor, Tensor, Any]) -> Tensor:
    """An image bool [N, channels, 10, 10] of points.

    Args:
        points: for each, its channel, y, x, and whether it is painted: tensors [N, k] or [N], or
            numbers, but x is a tensor. A point whose x is outside of the image is not painted.
    """
    dump = 100 * channels  # an index for the points that are not painted
    index = [
        torch.where(inside(x) & there, 100 * channel + SIDE * y + x, dump).view(len(x), -1)
        for channel, y, x, there in points
    ]
    x = index[0]
    image = torch.zeros((len(x), dump + 1), dtype=BOOL, device=x.device)
    return image.scatter(1, torch.cat(index, 1), True)[:, :dump].view(-1, channels, SIDE, SIDE)
