# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Bonuses for what is new in MiniGrid: the environments, the network, and what computes the bonus.

--env examples.rnd.exploration:MultiRoom-N7-S4-v0 --net examples.rnd.exploration.Net
"""

import collections
from typing import Any

import gymnasium
import minigrid
import numpy as np
import torch
from torch import Tensor, nn

from libtorchbeast.distributions import make_distribution
from libtorchbeast.flags import Flags
from libtorchbeast.models import CoreState
from libtorchbeast.spec import Spec
from libtorchbeast.transitions import Transitions

KINDS = (11, 6, 4)  # MiniGrid's objects and colours; its states, or an agent's directions


# ===================================================================================== environments
def make_env(kind: str, **options: Any) -> gymnasium.Env:
    """MiniGrid's environment without the mission, which is the same in every episode here."""
    env = getattr(minigrid.envs, kind)(**options)
    return Visits(gymnasium.wrappers.FilterObservation(env, ["image"]))


class Visits(gymnasium.ObservationWrapper):
    """Adds `loss/visits`, how often the agent has seen this view in this episode, and logs the
    number of different views in an episode as `game_views`."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.metadata = {**env.metadata, "game_numbers": ["views"]}
        visits = gymnasium.spaces.Box(0, float("inf"), ())
        self.observation_space = gymnasium.spaces.Dict(
            {**env.observation_space.spaces, "loss/visits": visits}
        )
        self.visits: collections.Counter[bytes] = collections.Counter()

    def reset(self, **options: Any) -> Any:
        self.visits.clear()
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        *row, info = super().step(action)
        return *row, {**info, "torchbeast": {"game_numbers": {"views": len(self.visits)}}}

    def observation(self, seen: dict[str, Any]) -> dict[str, Any]:
        view = seen["image"].tobytes()
        self.visits[view] += 1
        return {**seen, "loss/visits": np.float32(self.visits[view])}


for n, size in ((7, 4), (7, 8), (10, 4), (12, 10)):
    rooms = dict(kind="MultiRoomEnv", minNumRooms=n, maxNumRooms=n, maxRoomSize=size)
    gymnasium.register(f"MultiRoom-N{n}-S{size}-v0", make_env, kwargs=rooms)
corridor = dict(kind="KeyCorridorEnv", num_rows=3, room_size=3)
gymnasium.register("KeyCorridor-S3-R3-v0", make_env, kwargs=corridor)
gymnasium.register("DoorKey-8x8-v0", make_env, kwargs=dict(kind="DoorKeyEnv", size=8))


# ========================================================================================== network
def one_hot(view: Tensor) -> Tensor:
    """A view [T, B, 7, 7, 3] of bytes -> [T, B, 7 * 7 * 21] float32."""
    kinds = [torch.arange(n, device=view.device) for n in KINDS]
    parts = [x.unsqueeze(-1) == n for x, n in zip(view.unbind(-1), kinds, strict=True)]
    return torch.cat(parts, -1).flatten(2).float()


def layers(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(7 * 7 * sum(KINDS), 128), nn.ReLU(), nn.Linear(128, outputs))


class Net(nn.Module):
    """Has a value for the rewards, `baseline`, and one for the bonus, `loss/bonus_value`."""

    def __init__(self, spec: Spec, flags: Flags):
        super().__init__()
        self.distribution = make_distribution(spec.actions)
        self.see = nn.Sequential(layers(128), nn.ReLU())
        self.policy, self.values = nn.Linear(128, spec.num_actions), nn.Linear(128, 2)
        nn.init.orthogonal_(self.policy.weight, 0.01)

    def initial_state(self, batch_size: int) -> CoreState:
        return ()

    def forward(self, inputs: dict[str, Tensor], core_state: CoreState = ()):
        x = self.see(one_hot(inputs["image"]))
        with torch.autocast(x.device.type, enabled=False):  # the heads stay float32
            logits, values = self.policy(x.float()), self.values(x.float())
        outputs = {"policy_logits": logits, "baseline": values[..., 0]}
        return {**outputs, "loss/bonus_value": values[..., 1]}, core_state

    def for_loss(self, spec: Spec, flags: Flags) -> dict[str, nn.Module]:
        kind, _, first = flags.bonus.partition("-")
        explorer = {"none": Explorer, "rnd": Novelty, "ride": Impact}[kind]
        return dict(explorer=explorer(spec, only_first=bool(first)))

    def parameter_groups(self, flags: Flags) -> list[dict[str, Any]]:
        return [dict(params=net.parameters()) for net in (self, self.explorer)]

    def statistics(self, batch: Transitions) -> dict[str, Tensor]:
        x, weights = batch.targets["bonus_return"], batch.weights
        return dict(moments=torch.stack([(weights * x**n).sum() for n in range(3)]))

    def take_statistics(self, sums: dict[str, Tensor]) -> None:
        self.explorer.moments += sums["moments"]


# ============================================================================================ bonus
class Explorer(nn.Module):
    """Computes the bonus of each transition, here none: its novelty, times a factor that falls with
    the number of visits in this episode. With `only_first` the factor is 1 for the first visit and
    0 for the others, as in BeBold (Zhang et al. 2020, https://arxiv.org/abs/2012.08621)."""

    def __init__(self, spec: Spec, only_first: bool):
        super().__init__()
        self.only_first = only_first
        self.register_buffer("moments", torch.zeros(3))  # of all `bonus_return`: sums of powers

    def novelty(self, batch: Transitions) -> Tensor:
        """[T, B] float32."""
        return torch.zeros_like(batch.reward)

    def factor(self, visits: Tensor) -> Tensor:
        """[T, B] -> [T, B] float32."""
        return torch.ones_like(visits)

    def losses(self, batch: Transitions) -> dict[str, Tensor]:
        """Scalars, whose sum trains this module."""
        return {}

    def bonus(self, batch: Transitions) -> dict[str, Tensor]:
        """The bonus [T, B] and its discounted sum since the rollout's beginning, `bonus_return`.

        The bonus is divided by the standard deviation of these sums in all batches so far (Burda et
        al. 2018, section 2.4), so its returns are of size 1. In the first batch it is 0.
        """
        visits = batch.next["loss/visits"]
        factor = (visits == 1).float() if self.only_first else self.factor(visits)
        bonus = self.novelty(batch) * factor * batch.weights
        t = torch.arange(len(bonus), device=bonus.device)
        powers = (batch.flags.discounting ** (t.unsqueeze(1) - t)).tril()  # [T, T]
        count, total, squares = self.moments
        deviation = (squares / count - (total / count) ** 2).sqrt()
        return dict(bonus=(bonus / deviation).nan_to_num(0, 0), bonus_return=powers @ bonus)


class Novelty(Explorer):
    """Random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894): new is
    what a trained network cannot predict of a random one."""

    def __init__(self, spec: Spec, only_first: bool):
        super().__init__(spec, only_first)
        self.goal, self.predictor = layers(64).requires_grad_(False), layers(64)
        for layer in (self.goal[0], self.goal[2]):
            nn.init.orthogonal_(layer.weight, 2**0.5)

    def novelty(self, batch: Transitions) -> Tensor:
        view = one_hot(batch.next["image"])
        return (self.predictor(view) - self.goal(view)).square().mean(-1)

    def losses(self, batch: Transitions) -> dict[str, Tensor]:
        return dict(rnd_loss=batch.mean(self.novelty(batch)))


class Impact(Explorer):
    """RIDE (Raileanu and Rocktaeschel 2020, https://arxiv.org/abs/2002.12292): new is what changes
    the view much, in an embedding that knows what the agent controls."""

    def __init__(self, spec: Spec, only_first: bool):
        super().__init__(spec, only_first)
        A = self.num_actions = spec.num_actions
        self.embed = layers(128)
        self.inverse = nn.Sequential(nn.Linear(2 * 128, 128), nn.ReLU(), nn.Linear(128, A))
        self.forward_model = nn.Sequential(nn.Linear(128 + A, 128), nn.ReLU(), nn.Linear(128, 128))

    def embedded(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """The embeddings [T, B, 128] of rows t and t+1."""
        return self.embed(one_hot(batch.now["image"])), self.embed(one_hot(batch.next["image"]))

    def novelty(self, batch: Transitions) -> Tensor:
        now, then = self.embedded(batch)
        return (then - now).norm(dim=-1)

    def factor(self, visits: Tensor) -> Tensor:
        return visits.rsqrt()

    def losses(self, batch: Transitions) -> dict[str, Tensor]:
        now, then = self.embedded(batch)
        action = nn.functional.one_hot(batch.now["action"], self.num_actions).float()
        guess = self.inverse(torch.cat([now, then], -1)).log_softmax(-1)
        error = self.forward_model(torch.cat([now, action], -1)) - then
        return dict(
            inverse_loss=-0.1 * batch.mean((guess * action).sum(-1)),
            forward_loss=5 * batch.mean(error.square().sum(-1)),
        )
