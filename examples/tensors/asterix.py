# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MinAtar's Asterix as tensor operations."""

import torch
from torch import Tensor

from examples.tensors.minatar import BOOL, INT, Game, inside, line, paint, way
from libtorchbeast.tensors import State, pick


class Asterix(Game):
    moves, channels = "nlurd", 4  # player, enemy, trail, gold
    ints = "x y spawn_speed spawn_timer move_speed move_timer ramp_timer ramp_index"
    # A row from 1 to 8 has at most one entity.
    state = {
        "entity_x": ((8,), INT),
        **{name: ((8,), BOOL) for name in ("there", "rightward", "is_gold")},
    }
    draws = {"spawn": 3}  # direction, whether it is gold, row

    def reset(self, state: State, mask: Tensor) -> State:
        return self.put(
            state, mask, x=5, y=5, spawn_speed=10, spawn_timer=10, move_speed=5, move_timer=5,
            ramp_timer=100, ramp_index=0, there=False,
        )  # fmt: skip

    def spawn(self, state: State) -> State:
        """Puts an entity at the side of a free row, if there is one, where the timer is up."""
        rightward, is_gold, row = self.drawn(state, "spawn").unbind(1)
        free, due = ~state["there"], state["spawn_timer"] == 0
        nth = pick(row, free.sum(1))[:, None]
        new = due[:, None] & free & (free.cumsum(1) == nth + 1)
        x = torch.where(rightward < 1 / 2, 0, 9)
        return {
            **state,
            "spawn_timer": torch.where(due, state["spawn_speed"], state["spawn_timer"]),
            "there": state["there"] | new,
            "entity_x": torch.where(new, x[:, None], state["entity_x"]),
            "rightward": torch.where(new, (rightward < 1 / 2)[:, None], state["rightward"]),
            "is_gold": torch.where(new, (is_gold < 1 / 3)[:, None], state["is_gold"]),
        }

    def advance(self, state: State, actions: Tensor):
        state, move = self.sticky(state, actions)
        state = self.spawn(state)
        x = (state["x"] + move["r"].long() - move["l"].long()).clamp(0, 9)
        y = (state["y"] + move["d"].long() - move["u"].long()).clamp(1, 8)
        there, is_gold, entity_x = state["there"], state["is_gold"], state["entity_x"]
        same_row = y[:, None] == line(y)[1:9]
        touch = there & same_row & (entity_x == x[:, None])  # before the entities move
        there = there & ~(touch & is_gold)
        moves = (state["move_timer"] == 0)[:, None] & there
        entity_x = entity_x + moves.long() * way(state["rightward"])
        there = there & inside(entity_x)
        again = moves & there & same_row & (entity_x == x[:, None])
        there = there & ~(again & is_gold)
        touches = touch | again
        move_timer = torch.where(state["move_timer"] == 0, state["move_speed"], state["move_timer"])
        state = {
            **state, "x": x, "y": y, "there": there, "entity_x": entity_x,
            "spawn_timer": state["spawn_timer"] - 1, "move_timer": move_timer - 1,
        }  # fmt: skip
        reward = (touches & is_gold).sum(1).float()
        terminated = (touches & ~is_gold).any(1)
        return self.ramp(state), reward, terminated, torch.zeros_like(terminated)

    def ramp(self, state: State) -> State:
        """Makes the game harder every 102 steps."""
        spawn_speed, move_speed = state["spawn_speed"], state["move_speed"]
        can = (spawn_speed > 1) | (move_speed > 1)
        due = can & (state["ramp_timer"] < 0)
        faster = due & (move_speed > 1) & (state["ramp_index"] % 2 == 1)
        return {
            **state,
            "move_speed": move_speed - faster.long(),
            "spawn_speed": spawn_speed - (due & (spawn_speed > 1)).long(),
            "ramp_index": state["ramp_index"] + due.long(),
            "ramp_timer": (state["ramp_timer"] - (can & ~due).long()).masked_fill(due, 100),
        }

    def frame(self, state: State) -> Tensor:
        x, there = state["entity_x"], state["there"]
        y = line(x)[1:9].expand_as(x)
        entities = (1 + 2 * state["is_gold"].long(), y, x, there)
        trails = (2, y, x - way(state["rightward"]), there)
        return paint(self.channels, (0, state["y"], state["x"], True), entities, trails)
