# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MinAtar's Breakout as tensor operations."""

import torch
from torch import Tensor

from examples.tensors.minatar import BOOL, SIDE, Game, inside, paint, way
from libtorchbeast.tensors import State

ALL = 2**30 - 1  # bricks: three rows of ten, from row 1 on


class Breakout(Game):
    """`bricks` is a whole number in which each brick is a bit."""

    moves, channels = "nlr", 4  # paddle, ball, trail, brick
    ints = "pos ball_x ball_y ball_dir last_x last_y bricks"
    state = {"strike": ((), BOOL)}
    draws = {"start": 1}

    def reset(self, state: State, mask: Tensor) -> State:
        right = self.drawn(state, "start", 2)  # where the ball begins
        return self.put(
            state, mask, pos=4, ball_y=3, ball_x=9 * right, ball_dir=2 + right,
            last_y=3, last_x=9 * right, strike=False, bricks=ALL,
        )  # fmt: skip

    def advance(self, state: State, actions: Tensor):
        state, move = self.sticky(state, actions)
        pos = (state["pos"] + move["r"].long() - move["l"].long()).clamp(0, 9)
        # Directions: 0 left up, 1 right up, 2 right down, 3 left down.
        to, last_x, last_y = state["ball_dir"], state["ball_x"], state["ball_y"]
        x = last_x + way((to == 1) | (to == 2))
        y = last_y + way(to >= 2)
        to = torch.where(inside(x), to, to ^ 1)
        x, top = x.clamp(0, 9), y < 0
        y = y.clamp(min=0)
        is_row = (y >= 1) & (y <= 3)
        bit = torch.ones_like(x) << torch.where(is_row, SIDE * (y - 1) + x, 0)
        strike = is_row & (state["bricks"] & bit != 0)
        hit = strike & ~state["strike"]
        bricks = torch.where(hit, state["bricks"] ^ bit, state["bricks"])
        bottom = y == 9
        bricks = bricks.masked_fill(bottom & (bricks == 0), ALL)
        middle = bottom & (last_x == pos)
        edge = bottom & ~middle & (x == pos)
        to = torch.where(top | hit | middle, 3 - to, torch.where(edge, to ^ 2, to))
        y = torch.where(hit | middle | edge, last_y, y)
        state = {
            **state, "pos": pos, "ball_x": x, "ball_y": y, "ball_dir": to, "last_x": last_x,
            "last_y": last_y, "strike": strike, "bricks": bricks,
        }  # fmt: skip
        return state, hit.float(), bottom & ~middle & ~edge, torch.zeros_like(hit)

    def frame(self, state: State) -> Tensor:
        ball, trail = ((state[f"{k}_y"], state[f"{k}_x"], True) for k in ("ball", "last"))
        image = paint(self.channels, (0, 9, state["pos"], True), (1, *ball), (2, *trail))
        bits = torch.arange(30, device=image.device)
        bricks = (state["bricks"][:, None] >> bits) & 1
        image[:, 3, 1:4] = bricks.view(-1, 3, SIDE).bool()
        return image
