# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MinAtar's Space Invaders as tensor operations.

The aliens move as one block of 4 x 6, so the state has the place of its corner, and `aliens` says
which of them are alive. At most two friendly bullets fly at a time, and one of the aliens'. One
that does not fly is outside of the image: its x is AWAY.
"""

import torch
from torch import Tensor

from examples.tensors.minatar import BOOL, INT, SIDE, Game, inside, line, paint
from libtorchbeast.tensors import State

AWAY = -9


class SpaceInvaders(Game):
    moves, channels = "nlrf", 6  # cannon, alien, aliens go left, right, friendly, enemy bullet
    ints = (
        "pos block_x block_y alien_dir enemy_move_interval alien_move_timer alien_shot_timer "
        "shot_timer e_bullet_x e_bullet_y"
    )
    state = {
        "aliens": ((24,), BOOL),
        "f_bullet_x": ((2,), INT),
        "f_bullet_y": ((2,), INT),
    }

    def reset(self, state: State, mask: Tensor) -> State:
        return self.put(
            state, mask, pos=5, alien_dir=-1, enemy_move_interval=12, alien_move_timer=12,
            alien_shot_timer=10, shot_timer=0, f_bullet_x=AWAY, e_bullet_x=AWAY,
            aliens=True, block_x=2, block_y=0,
        )  # fmt: skip

    def places(self, state: State) -> tuple[Tensor, Tensor]:
        """y and x of the aliens, [N, 24]."""
        number = torch.arange(24, device=state["pos"].device)
        y = state["block_y"][:, None] + number // 6
        y = torch.where(y < SIDE, y, y - SIDE)  # what sinks into the ground comes from above
        return y, state["block_x"][:, None] + number % 6

    def advance(self, state: State, actions: Tensor):
        state, move = self.sticky(state, actions)
        pos = (state["pos"] + move["r"].long() - move["l"].long()).clamp(0, 9)
        state = self.move_bullets({**state, "pos": pos}, move["f"])
        lost = (state["e_bullet_x"] == pos) & (state["e_bullet_y"] == 9)
        moves = state["alien_move_timer"] == 0
        lost = lost | self.aliens_at(state, pos)
        state, landed = self.move_aliens(state, moves)
        lost = lost | landed | (moves & self.aliens_at(state, pos))
        state, killed = self.kill(self.shoot(state))
        clear = ~state["aliens"].any(1)
        harder = clear & (state["enemy_move_interval"] > 6)
        state = self.put(state, clear, aliens=True, block_x=2, block_y=0)
        state["enemy_move_interval"] = state["enemy_move_interval"] - harder.long()
        return state, killed.float(), lost, torch.zeros_like(lost)

    def move_bullets(self, state: State, fire: Tensor) -> State:
        fire = fire & (state["shot_timer"] == 0)
        x, y = state["f_bullet_x"], state["f_bullet_y"]
        # A new one takes the place of one that does not fly.
        place = torch.where(inside(x[:, 0]), 1, 0)[:, None]
        new = fire[:, None] & (line(x)[:2] == place)
        x, y = torch.where(new, state["pos"][:, None], x), torch.where(new, 9, y) - 1
        e_y = state["e_bullet_y"] + 1
        return {
            **state,
            "shot_timer": (state["shot_timer"].masked_fill(fire, 5) - 1).clamp(min=0),
            "f_bullet_x": x.masked_fill(y < 0, AWAY),
            "f_bullet_y": y,
            "e_bullet_x": state["e_bullet_x"].masked_fill(e_y > 9, AWAY),
            "e_bullet_y": e_y,
        }

    def aliens_at(self, state: State, pos: Tensor) -> Tensor:
        """Where an alien stands on the cannon."""
        y, x = self.places(state)
        return (state["aliens"] & (y == 9) & (x == pos[:, None])).any(1)

    def move_aliens(self, state: State, moves: Tensor) -> tuple[State, Tensor]:
        """Moves the aliens sideways, or at an edge down. Returns also where they land."""
        aliens, to = state["aliens"], state["alien_dir"]
        y, x = self.places(state)
        edge = torch.where(to < 0, 0, 9)
        turns = moves & (aliens & (x == edge[:, None])).any(1)
        interval = torch.minimum(aliens.sum(1), state["enemy_move_interval"])
        new = {
            **state,
            "block_x": torch.where(moves & ~turns, state["block_x"] + to, state["block_x"]),
            "block_y": (state["block_y"] + turns.long()) % SIDE,
            "alien_dir": torch.where(turns, -to, to),
            "alien_move_timer": torch.where(moves, interval, state["alien_move_timer"]) - 1,
        }
        return new, turns & (aliens & (y == 9)).any(1)

    def shoot(self, state: State) -> State:
        """Lets the lowest alien shoot that is nearest to the cannon's column, on its left first."""
        timer, pos = state["alien_shot_timer"], state["pos"][:, None]
        shoots = timer == 0
        y, x = self.places(state)
        order = 10 * (2 * (x - pos).abs() + (x > pos)) - y
        first = order.masked_fill(~state["aliens"], 999).argmin(1, keepdim=True)
        state = self.put(
            state, shoots, e_bullet_x=x.gather(1, first)[:, 0], e_bullet_y=y.gather(1, first)[:, 0]
        )
        return {**state, "alien_shot_timer": timer.masked_fill(shoots, 10) - 1}

    def kill(self, state: State) -> tuple[State, Tensor]:
        """Takes out aliens and friendly bullets in one cell. Returns also how many aliens."""
        (y, x), bullets = self.places(state), []
        alive = state["aliens"]
        for i in range(2):
            b_x, b_y = state["f_bullet_x"][:, i : i + 1], state["f_bullet_y"][:, i : i + 1]
            hit = alive & (x == b_x) & (y == b_y)
            alive = alive & ~hit
            bullets.append(b_x.masked_fill(hit.any(1, keepdim=True), AWAY))
        killed = state["aliens"].sum(1) - alive.sum(1)
        return {**state, "aliens": alive, "f_bullet_x": torch.cat(bullets, 1)}, killed

    def frame(self, state: State) -> Tensor:
        y, x = self.places(state)
        alive, left = state["aliens"], (2 + (state["alien_dir"] > 0).long())[:, None]
        cannon = (0, 9, state["pos"], True)
        friendly = (4, state["f_bullet_y"], state["f_bullet_x"], True)
        enemy = (5, state["e_bullet_y"], state["e_bullet_x"], True)
        aliens = ((1, y, x, alive), (left, y, x, alive))
        return paint(self.channels, cannon, *aliens, friendly, enemy)
