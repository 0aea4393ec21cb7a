# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Tag: taggers catch runners, in a grid or in a plane, after WarpDrive's (Lan et al. 2021; the
rewards and sizes are not the same).

An agent in a grid stays or makes a step in one of four directions; its action is one of five. In a
plane it pushes with a force in [-1, 1] along each axis. A runner is caught where a tagger is in its
cell, or nearer than REACH in the plane; then it stays where it is and is out of the game. The game
ends when all runners are caught, or after 100 steps.

A tagger gets 1 for each runner that it catches, and -0.01 in each step. A runner gets 0.01 in each
step in which it stays free, and -1 when it is caught. The environment's reward, which is logged as
the game's return, is the sum of the taggers'.
"""

import numpy as np
import torch
from torch import Tensor

from libtorchbeast.spec import Actions
from libtorchbeast.tensors import State, TensorEnv, pick

STEPS = 100
REACH = 0.06  # in a plane, whose sides are 1
SEEN = 4  # how many others an agent sees with partial observation: the nearest
MOVES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))  # x, y, of actions 0 to 4


class Tag(TensorEnv):
    """Agents 0 to taggers - 1 are taggers, the others runners.

    An agent observes itself: place, velocity, whether it is a tagger, whether it is in the game,
    and the time left; and each other agent, or the SEEN nearest: relative place and velocity,
    whether it is a tagger, whether it is in the game. Numbers are scaled to about [-1, 1].

    Args:
        continuous: whether they move in a plane.
        partial: whether agents see only the nearest others.
        shared: whether taggers and runners share one network, as one group.
        size: of the grid.
    """

    def __init__(
        self, taggers=4, runners=1, continuous=False, partial=False, shared=False, size=10
    ):
        A = self.agents = taggers + runners
        self.taggers, self.runners, self.size = taggers, runners, size
        self.continuous, self.partial = continuous, partial
        self.groups = {"agents": A} if shared else {"taggers": taggers, "runners": runners}
        others = min(SEEN, A - 1) if partial else A
        self.width = 7 + 6 * others
        self.observations = {}
        for name, count in self.groups.items():
            self.observations[f"{name}/frame"] = ((count, self.width), "float32")
            self.observations[f"{name}/reward"] = ((count,), "float32")
        self.actions = (
            Actions("box", (2 * A,)) if continuous else Actions("multi_discrete", (5,) * A)
        )
        self.draws = {"places": 2 * A}
        self.state = {
            "place": ((A, 2), torch.float32), "velocity": ((A, 2), torch.float32),
            "free": ((A,), torch.bool), "reward": ((A,), torch.float32), "time": ((), torch.int64),
        }  # fmt: skip

    def reset(self, state: State, mask: Tensor) -> State:
        draws = self.drawn(state, "places").unflatten(1, (self.agents, 2))
        place = draws if self.continuous else pick(draws, self.size).float()
        return self.put(state, mask, place=place, velocity=0.0, free=True, reward=0.0, time=0)

    def advance(self, state: State, actions: Tensor):
        state = self.move(state, actions)
        free, T = state["free"], self.taggers
        caught = free[:, T:] & self.touches(state["place"]).any(1)
        tagged = (self.touches(state["place"]) & free[:, None, T:]).sum(2)
        runner = free[:, T:] * 0.01 - caught * 1.01
        reward = torch.cat([tagged - 0.01, runner], 1).float()
        time, free = state["time"] + 1, torch.cat([free[:, :T], free[:, T:] & ~caught], 1)
        state = {**state, "free": free, "reward": reward, "time": time}
        over = ~free[:, T:].any(1)
        return state, reward[:, :T].sum(1), over, (time >= STEPS) & ~over

    def move(self, state: State, actions: Tensor) -> State:
        place, free = state["place"], state["free"][..., None]
        if self.continuous:
            force = actions.unflatten(1, (self.agents, 2)).clamp(-1, 1)
            velocity = (0.8 * state["velocity"] + 0.01 * force) * free
            place = (place + velocity).clamp(0, 1)
        else:
            y, minus_y, x, minus_x = ((actions == number).float() for number in range(1, 5))
            velocity = torch.stack([x - minus_x, y - minus_y], -1) * free  # as in MOVES
            place = (place + velocity).clamp(0, self.size - 1)
        return {**state, "place": place, "velocity": velocity}

    def touches(self, place: Tensor) -> Tensor:
        """Whether each tagger is close enough to each runner: bool [N, taggers, runners]."""
        way = place[:, : self.taggers, None] - place[:, None, self.taggers :]
        if self.continuous:
            return way[..., 0] * way[..., 0] + way[..., 1] * way[..., 1] < REACH * REACH
        return (way == 0).all(-1)

    def observe(self, state: State) -> dict[str, Tensor]:
        frame, parts, first = self.frame(state), {}, 0
        for name, count in self.groups.items():
            parts[f"{name}/frame"] = frame[:, first : first + count]
            parts[f"{name}/reward"] = state["reward"][:, first : first + count]
            first += count
        return parts

    def frame(self, state: State) -> Tensor:
        """What each agent sees, [N, A, width]."""
        place, velocity, free = state["place"], state["velocity"], state["free"]
        N, A = free.shape
        place = place if self.continuous else place / (self.size - 1)
        velocity = 20 * velocity if self.continuous else velocity
        number = torch.arange(A, device=free.device)
        is_tagger = (number < self.taggers).expand(N, A)
        kind = torch.stack([is_tagger, free], 2).float()
        left = (1 - state["time"] / STEPS).float()[:, None, None].expand(N, A, 1)
        itself = torch.cat([place, velocity, kind, left], 2)
        way = torch.cat([place, velocity], 2)
        others = torch.cat([way[:, None] - way[:, :, None], kind[:, None].expand(N, A, A, 2)], 3)
        same = number[:, None] == number
        if not self.partial:
            others = others.masked_fill(same[..., None], 0)
        else:  # of equal distances the lower number comes first
            near = others[..., 0] * others[..., 0] + others[..., 1] * others[..., 1]
            order = near.masked_fill(same, 99).sort(dim=2, stable=True).indices
            order = order[:, :, : min(SEEN, A - 1), None].expand(-1, -1, -1, 6)
            others = others.gather(2, order)
        return torch.cat([itself, others.flatten(2)], 2)

    def picture(self, state: State) -> np.ndarray:
        image = np.zeros((96, 96, 3), np.uint8)
        scale = 88 if self.continuous else 88 / (self.size - 1)
        places = (scale * state["place"][0].cpu().numpy()).astype(int)
        for i, ((x, y), free) in enumerate(zip(places, state["free"][0].tolist(), strict=True)):
            color = (230, 60, 60) if i < self.taggers else (90, 220, 90) if free else (50, 80, 50)
            image[y + 1 : y + 7, x + 1 : x + 7] = color
        return image
