# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MinAtar's Freeway as tensor operations."""

import torch
from torch import Tensor

from examples.tensors.minatar import INT, SIDE, Game, line, paint, way
from libtorchbeast.tensors import State, pick


class Freeway(Game):
    moves, channels = "nud", 7  # chicken, car, and a trail for each of a car's five speeds
    ints = "pos move_timer terminate_timer"
    state = {name: ((8,), INT) for name in ("car_x", "car_timer", "car_speed")}
    draws = {"cars": 16}  # 8 speeds, 8 directions

    def speeds(self, state: State) -> Tensor:
        """Random speeds [N, 8] of the cars, negative to the left. A car moves every |speed| + 1
        steps."""
        speed, right = self.drawn(state, "cars").split(8, 1)
        return (1 + pick(speed, 5)) * way(right > 0.5)

    def reset(self, state: State, mask: Tensor) -> State:
        speed = self.speeds(state)
        return self.put(
            state, mask, pos=9, move_timer=3, terminate_timer=2500,
            car_x=0, car_timer=speed.abs(), car_speed=speed,
        )  # fmt: skip

    def advance(self, state: State, actions: Tensor):
        state, move = self.sticky(state, actions)
        can = state["move_timer"] == 0
        up, down = move["u"] & can, move["d"] & can
        move_timer = state["move_timer"].masked_fill(up | down, 3)
        pos = (state["pos"] - up.long() + down.long()).clamp(0, 9)
        win = pos == 0
        pos = pos.masked_fill(win, 9)
        speed = torch.where(win[:, None], self.speeds(state), state["car_speed"])
        timer = torch.where(win[:, None], speed.abs(), state["car_timer"])
        moves, before = timer == 0, state["car_x"]
        x = torch.where(moves, (before + speed.sign()) % SIDE, before)
        on_its_row = pos[:, None] == line(pos)[1:9]
        hit = (on_its_row & ((before == 4) | (x == 4))).any(1)
        terminate_timer = state["terminate_timer"] - 1
        state = {
            **state, "pos": pos.masked_fill(hit, 9), "move_timer": (move_timer - 1).clamp(min=0),
            "terminate_timer": terminate_timer, "car_x": x, "car_speed": speed,
            "car_timer": torch.where(moves, speed.abs(), timer - 1),
        }  # fmt: skip
        return state, win.float(), terminate_timer < 0, torch.zeros_like(win)

    def frame(self, state: State) -> Tensor:
        x, speed, pos = state["car_x"], state["car_speed"], state["pos"]
        y = line(x)[1:9].expand_as(x)
        chicken = (0, pos, torch.full_like(pos, 4), True)
        trail = (1 + speed.abs(), y, (x - speed.sign()) % SIDE, True)
        return paint(self.channels, chicken, (1, y, x, True), trail)
