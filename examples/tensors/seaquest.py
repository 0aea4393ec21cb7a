# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MinAtar's Seaquest as tensor operations.

The original keeps lists, newest last, and their order matters where two things are in one cell.

- There are at most two friendly bullets and two divers at a time: they are [N, 2], older first.
- Enemies are [N, 32], a ring in which `next` is the place of the next one. There are never more
  than 31: when one comes in each step, each of them stays for 30 steps only.
- A submarine's bullet is gone before its next shot, so it is kept in the submarine's place of the
  ring, with the same row and direction, and lives on there when the submarine is gone.
"""

from typing import Any

import torch
from torch import Tensor

from examples.tensors.minatar import BOOL, INT, Game, inside, line, paint, way
from libtorchbeast.tensors import State, pick

RING = 32
AWAY = -99  # the column of a bullet that does not fly; nothing else can be in such a cell


def first(candidates: Tensor, rank: Tensor) -> Tensor:
    """bool [N, K], True at the candidate of the least rank, if there is one. All ranks differ."""
    place = rank.masked_fill(~candidates, 999).argmin(1, keepdim=True)
    numbers = torch.arange(candidates.shape[1], device=candidates.device)
    return candidates & (numbers == place)


def cell(y: Tensor, x: Tensor) -> Tensor:
    """A number for each cell, also for x = -1 and x = 10, which are outside of the image."""
    return 16 * y + x


class Seaquest(Game):
    # Front and back of the submarine, its bullets, trails, bullets of enemies, fish, submarines,
    # oxygen, divers on board, divers.
    moves, channels = "nlurdf", 10
    ints = (
        "sub_x sub_y oxygen diver_count shot_timer e_spawn_timer e_spawn_speed d_spawn_timer "
        "move_speed ramp_index next"
    )
    state = {
        **{name: ((), BOOL) for name in ("sub_or", "surface")},
        **{f"bullet_{name}": ((2,), INT) for name in ("x", "y")},
        **{f"bullet_{name}": ((2,), BOOL) for name in ("right", "there")},
        **{f"diver_{name}": ((2,), INT) for name in ("x", "y", "timer")},
        **{f"diver_{name}": ((2,), BOOL) for name in ("right", "there")},
        **{f"enemy_{name}": ((RING,), INT) for name in ("x", "y", "timer", "shot", "bullet")},
        **{f"enemy_{name}": ((RING,), BOOL) for name in ("right", "there", "is_sub")},
    }
    draws = {"enemy": 3, "diver": 2}  # direction, (whether it is a submarine), row

    def reset(self, state: State, mask: Tensor) -> State:
        return self.put(
            state, mask, oxygen=200, diver_count=0, sub_x=5, sub_y=0, sub_or=False,
            bullet_there=False, diver_there=False, enemy_there=False, enemy_bullet=AWAY,
            e_spawn_speed=20, e_spawn_timer=20, d_spawn_timer=30, move_speed=5, ramp_index=0,
            shot_timer=0, surface=True,
        )  # fmt: skip

    def advance(self, state: State, actions: Tensor):
        state, move = self.sticky(state, actions)
        state = self.move_player(self.spawn_diver(self.spawn_enemy(state)), move)
        state, killed = self.move_bullets(state)
        state = self.move_divers(state)
        state, more, lost = self.move_enemies(state)
        state, saved, drowned = self.breathe(state)
        reward = (killed + more + saved).float()
        return state, reward, lost | drowned, torch.zeros_like(lost)

    # ------------------------------------------------------------------------- what comes into play
    def spawn_enemy(self, state: State) -> State:
        """Lets a fish or submarine come from a side, unless one in its row goes the other way."""
        right, is_sub, row = self.drawn(state, "enemy").unbind(1)
        right, row = (right < 1 / 2)[:, None], 1 + pick(row, 8)[:, None]
        against = (state["enemy_right"] != right) & (state["enemy_y"] == row)
        due = state["e_spawn_timer"] == 0
        comes = due & ~(against & state["enemy_there"]).any(1)
        place = torch.arange(RING, device=row.device) == state["next"][:, None]
        new: dict[str, Any] = {
            "x": torch.where(right, 0, 9), "y": row, "right": right, "there": True,
            "is_sub": (is_sub < 1 / 3)[:, None], "timer": state["move_speed"][:, None],
            "shot": 10, "bullet": AWAY,
        }  # fmt: skip
        old = {name: state[f"enemy_{name}"] for name in new}
        at = place & comes[:, None]
        state = {**state, **{f"enemy_{k}": torch.where(at, new[k], old[k]) for k in new}}
        timer = torch.where(due, state["e_spawn_speed"], state["e_spawn_timer"])
        state["e_spawn_timer"] = (timer - 1).clamp(min=0)
        state["next"] = (state["next"] + comes.long()) % RING
        return state

    def spawn_diver(self, state: State) -> State:
        right, row = self.drawn(state, "diver").unbind(1)
        due, right = state["d_spawn_timer"] == 0, right < 1 / 2
        x = torch.where(right, 0, 9)
        state = self.push(state, due, "diver", x=x, y=1 + pick(row, 8), right=right, timer=5)
        timer = state["d_spawn_timer"].masked_fill(due, 30)
        return {**state, "d_spawn_timer": (timer - 1).clamp(min=0)}

    def push(self, state: State, mask: Tensor, kind: str, **values: Tensor | int) -> State:
        """Appends a bullet or diver. The one that is there becomes the older."""
        pair = {name: state[f"{kind}_{name}"] for name in (*values, "there")}
        older = pair["there"][:, 1:].long()  # at most one of the two is there
        new = dict(state)
        for name, old in pair.items():
            value = torch.where(mask, values.get(name, True), 0)
            pushed = torch.cat([old.gather(1, older), value[:, None].to(old.dtype)], 1)
            new[f"{kind}_{name}"] = torch.where(mask[:, None], pushed, old)
        return new

    # --------------------------------------------------------------------- what moves, and where
    def move_player(self, state: State, move: dict[str, Tensor]) -> State:
        x, y, right = state["sub_x"], state["sub_y"], state["sub_or"]
        fire = move["f"] & (state["shot_timer"] == 0)
        state = self.push(state, fire, "bullet", x=x, y=y, right=right)
        return {
            **state,
            "sub_x": (x + move["r"].long() - move["l"].long()).clamp(0, 9),
            "sub_y": (y + move["d"].long() - move["u"].long()).clamp(0, 8),
            "sub_or": (right | move["r"]) & ~move["l"],
            "shot_timer": (state["shot_timer"].masked_fill(fire, 5) - 1).clamp(min=0),
        }

    def age(self, state: State) -> Tensor:
        """Ranks of the enemies [N, 32], the oldest first."""
        numbers = torch.arange(RING, device=state["next"].device)
        return (numbers - state["next"][:, None]) & (RING - 1)

    def move_bullets(self, state: State) -> tuple[State, Tensor]:
        """Moves the friendly bullets, the newer first. Each kills the oldest fish in its cell, or
        else the oldest submarine. Returns also how many were killed."""
        x = state["bullet_x"] + way(state["bullet_right"])
        flies = state["bullet_there"] & inside(x)
        alive, enemies = state["enemy_there"], cell(state["enemy_y"], state["enemy_x"])
        rank, bullets = self.age(state) + RING * state["enemy_is_sub"], cell(state["bullet_y"], x)
        pair = []
        for i in (1, 0):
            at = alive & flies[:, i : i + 1] & (enemies == bullets[:, i : i + 1])
            alive = alive & ~first(at, rank)
            pair.append(flies[:, i] & ~at.any(1))
        killed = state["enemy_there"].sum(1) - alive.sum(1)
        there = torch.stack(pair[::-1], 1)
        return {**state, "bullet_x": x, "bullet_there": there, "enemy_there": alive}, killed

    def move_divers(self, state: State) -> State:
        """Takes divers on board, the newer first, and moves the others."""
        count, pair = state["diver_count"], []
        for i in (1, 0):
            x, y, timer, right, there = (
                state[f"diver_{k}"][:, i] for k in ("x", "y", "timer", "right", "there")
            )
            same_row = y == state["sub_y"]
            taken = there & same_row & (x == state["sub_x"]) & (count < 6)
            count = count + taken.long()
            moves = there & ~taken & (timer == 0)
            x = torch.where(moves, x + way(right), x)
            again = moves & same_row & (x == state["sub_x"]) & (count < 6)
            count = count + again.long()
            pair.append((x, torch.where(moves, 5, timer - 1), there & ~taken & ~again & inside(x)))
        new = [torch.stack(both[::-1], 1) for both in zip(*pair, strict=True)]
        names = ("diver_x", "diver_timer", "diver_there")
        return {**state, "diver_count": count, **dict(zip(names, new, strict=True))}

    def move_enemies(self, state: State) -> tuple[State, Tensor, Tensor]:
        """Moves the enemies, the newest first, and the bullets of submarines. Returns also how many
        swam into a friendly bullet, and where the player was hit."""
        there, is_sub, y = (state[f"enemy_{k}"] for k in ("there", "is_sub", "y"))
        moves = there & (state["enemy_timer"] == 0)
        x = state["enemy_x"] + torch.where(moves, way(state["enemy_right"]), 0)
        timer = torch.where(moves, state["move_speed"][:, None], state["enemy_timer"] - 1)
        player = cell(state["sub_y"], state["sub_x"])[:, None]
        before, after = cell(y, state["enemy_x"]), cell(y, x)
        hits = there & ((before == player) | (after == player))
        alive = there & inside(x)
        can_die = moves & alive & (after != player)
        rank = RING * ~is_sub - self.age(state)
        # In Python an enemy before its move equals one after its move if `code` equals `new_code`.
        code = 4096 * (state["enemy_right"] + 2 * is_sub * (1 + state["enemy_shot"]))
        code, new_code = code + before + 256 * state["enemy_timer"], code + after + 256 * timer
        again = skipped = torch.zeros_like(there)
        bullets, flies = cell(state["bullet_y"], state["bullet_x"]), []
        for i in (0, 1):  # in a bullet's cell the newest submarine dies, or else the newest fish
            at = can_die & state["bullet_there"][:, i : i + 1] & (after == bullets[:, i : i + 1])
            flies.append(state["bullet_there"][:, i] & ~at.any(1))
            dies = first(at, rank)
            can_die = can_die & ~dies
            # But the original's `list.remove` takes the oldest enemy that equals it, which may be
            # one that has not moved yet. Then the enemy that should die is met once more.
            place = dies.long().argmax(1, keepdim=True)
            older = alive & there & ~moves & (rank > rank.gather(1, place))
            twin = first(
                older & at.any(1, keepdim=True) & (code == new_code.gather(1, place)), -rank
            )
            has_twin = twin.any(1, keepdim=True)
            again, skipped = again | (dies & has_twin), skipped | twin
            alive = alive & ~torch.where(has_twin, twin, dies)
        died = (there & inside(x)).sum(1) - alive.sum(1)
        state = {
            **state, "enemy_x": x, "enemy_timer": timer - again.long(), "enemy_there": alive,
            "bullet_there": torch.stack(flies, 1),
        }  # fmt: skip
        state, shot = self.shoot(state, there & is_sub & ~skipped, again & is_sub)
        return state, died, hits.any(1) | shot

    def shoot(self, state: State, subs: Tensor, again: Tensor) -> tuple[State, Tensor]:
        """Lets submarines shoot and moves their bullets. Returns also where the player is hit."""
        shot, bullet = state["enemy_shot"], state["enemy_bullet"]
        for each in (subs, again):
            fires = each & (shot == 0)
            bullet = torch.where(fires, state["enemy_x"], bullet)
            shot = torch.where(fires, 10, shot - each.long())
        player, y = cell(state["sub_y"], state["sub_x"])[:, None], state["enemy_y"]
        after = bullet + way(state["enemy_right"])
        hits = (cell(y, bullet) == player) | (cell(y, after) == player)
        bullet = torch.where(inside(after), after, AWAY)
        return {**state, "enemy_shot": shot, "enemy_bullet": bullet}, hits.any(1)

    def breathe(self, state: State) -> tuple[State, Tensor, Tensor]:
        """Uses up oxygen, or surfaces. Returns also the reward, and where the player is lost."""
        oxygen, divers, under = state["oxygen"], state["diver_count"], state["sub_y"] > 0
        arrives = ~under & ~state["surface"]
        drowned = (oxygen <= 0) | (arrives & (divers == 0))
        surfaces = arrives & (divers != 0)
        full = surfaces & (divers == 6)
        reward = torch.where(full, oxygen * 10 // 200, 0)
        spawn, speed = state["e_spawn_speed"], state["move_speed"]
        harder = surfaces & ((spawn > 1) | (speed > 2))
        faster = harder & (speed > 2) & (state["ramp_index"] % 2 == 1)
        return {
            **state,
            "oxygen": (oxygen - under.long()).masked_fill(surfaces, 200),
            "diver_count": divers.masked_fill(full, 0) - surfaces.long(),
            "surface": (state["surface"] | surfaces) & ~under,
            "move_speed": speed - faster.long(),
            "e_spawn_speed": spawn - (harder & (spawn > 1)).long(),
            "ramp_index": state["ramp_index"] + harder.long(),
        }, reward, drowned  # fmt: skip

    def frame(self, state: State) -> Tensor:
        x, y = state["sub_x"], state["sub_y"]
        gauge = (state["oxygen"].clamp(min=0) * 10 // 200)[:, None]
        columns = line(x).expand(len(x), 10)
        divers = (columns >= 9 - state["diver_count"][:, None]) & (columns < 9)
        d_x, d_y, d_there = (state[f"diver_{k}"] for k in ("x", "y", "there"))
        e_x, e_y, e_there = (state[f"enemy_{k}"] for k in ("x", "y", "there"))
        return paint(
            self.channels,
            (0, y, x, True), (1, y, x - way(state["sub_or"]), True),
            (2, state["bullet_y"], state["bullet_x"], state["bullet_there"]),
            (3, e_y, e_x - way(state["enemy_right"]), e_there),
            (3, d_y, d_x - way(state["diver_right"]), d_there),
            (4, e_y, state["enemy_bullet"], True),
            (5 + state["enemy_is_sub"].long(), e_y, e_x, e_there),
            (7, 9, columns, columns < gauge), (8, 9, columns, divers),
            (9, d_y, d_x, d_there),
        )  # fmt: skip
