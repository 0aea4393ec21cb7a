# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a network's `policy_logits` say about actions: one class for each kind of action space.

The seam between the loss and the kinds of actions: `vtrace.py` and the acting code call the methods
below and know nothing else. `...` stands for any leading dimensions, [T, B] as a rule.
"""

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from libtorchbeast.spec import Actions

MASKED = -1e9  # a logit of probability 0 that is still a number: -inf makes NaN of 0 * log 0


class Distribution(Protocol):
    num_logits: int  # L, the width of `policy_logits`
    num_features: int  # F, the width of `features`
    action_shape: tuple[int, ...]  # of one action
    action_dtype: torch.dtype

    def log_prob(self, policy_logits: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|x) [...], of actions [..., *action_shape]. For Gaussians the density's."""

    def entropy(self, policy_logits: Tensor) -> Tensor:
        """[...] in nats. For Gaussians the differential entropy, which may be negative."""

    def sample(self, policy_logits: Tensor) -> Tensor:
        """An action each, [..., *action_shape]."""

    def mode(self, policy_logits: Tensor) -> Tensor:
        """The most probable action each, [..., *action_shape]."""

    def features(self, actions: Tensor) -> Tensor:
        """Actions as float32 [..., F], for a network that reads its last one."""


def make_distribution(actions: Actions) -> Distribution:
    if actions.kind == "discrete":
        return Categorical(*actions.sizes)
    if actions.kind == "multi_discrete":
        return MultiCategorical(actions.sizes)
    return Gaussian(*actions.sizes)


class Categorical:
    """One of A actions: softmax over logits [..., A]."""

    action_shape, action_dtype = (), torch.int64

    def __init__(self, num_actions: int):
        self.num_logits = self.num_features = num_actions

    def log_prob(self, policy_logits: Tensor, actions: Tensor) -> Tensor:
        return F.log_softmax(policy_logits, dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, policy_logits: Tensor) -> Tensor:
        log_probs = F.log_softmax(policy_logits, dim=-1)
        return -(log_probs.exp() * log_probs).sum(dim=-1)

    def sample(self, policy_logits: Tensor) -> Tensor:
        probs = policy_logits.softmax(dim=-1)
        return torch.multinomial(probs.flatten(0, -2), 1).view(probs.shape[:-1])

    def mode(self, policy_logits: Tensor) -> Tensor:
        return policy_logits.argmax(dim=-1)

    def features(self, actions: Tensor) -> Tensor:
        return F.one_hot(actions, self.num_features).float()


class MultiCategorical:
    """K independent choices: the logits of the first, of the second, ..., side by side."""

    action_dtype = torch.int64

    def __init__(self, sizes: tuple[int, ...]):
        self.sizes, self.action_shape = list(sizes), (len(sizes),)
        self.num_logits = self.num_features = sum(sizes)
        self._parts = [Categorical(size) for size in sizes]

    def log_prob(self, policy_logits: Tensor, actions: Tensor) -> Tensor:
        each = self._each(policy_logits)
        return sum(p.log_prob(x, a) for p, x, a in zip(*each, actions.unbind(-1), strict=True))

    def entropy(self, policy_logits: Tensor) -> Tensor:
        return sum(p.entropy(x) for p, x in zip(*self._each(policy_logits), strict=True))

    def sample(self, policy_logits: Tensor) -> Tensor:
        each = zip(*self._each(policy_logits), strict=True)
        return torch.stack([p.sample(x) for p, x in each], dim=-1)

    def mode(self, policy_logits: Tensor) -> Tensor:
        each = zip(*self._each(policy_logits), strict=True)
        return torch.stack([p.mode(x) for p, x in each], dim=-1)

    def features(self, actions: Tensor) -> Tensor:
        each = zip(self._parts, actions.unbind(-1), strict=True)
        return torch.cat([p.features(a) for p, a in each], dim=-1)

    def _each(self, policy_logits: Tensor) -> tuple[list[Categorical], tuple[Tensor, ...]]:
        return self._parts, policy_logits.split(self.sizes, dim=-1)


class Gaussian:
    """D real numbers, independent given x: logits [..., 2 D] are the means, then the logarithms of
    the standard deviations, the latter kept within LOG_STD. Not squashed: the environment's adapter
    clips what lies beyond the bounds, and the density stays that of what was sampled."""

    LOG_STD = (-5.0, 2.0)
    action_dtype = torch.float32

    def __init__(self, num_dimensions: int):
        self.action_shape = (num_dimensions,)
        self.num_logits, self.num_features = 2 * num_dimensions, num_dimensions

    def log_prob(self, policy_logits: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = self._parameters(policy_logits)
        z = (actions - mean) * (-log_std).exp()
        return -(0.5 * z**2 + log_std + 0.5 * math.log(2 * math.pi)).sum(dim=-1)

    def entropy(self, policy_logits: Tensor) -> Tensor:
        _, log_std = self._parameters(policy_logits)
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=-1)

    def sample(self, policy_logits: Tensor) -> Tensor:
        mean, log_std = self._parameters(policy_logits)
        return mean + log_std.exp() * torch.randn_like(mean)

    def mode(self, policy_logits: Tensor) -> Tensor:
        return self._parameters(policy_logits)[0]

    def features(self, actions: Tensor) -> Tensor:
        return actions.float()

    def _parameters(self, policy_logits: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = policy_logits.chunk(2, dim=-1)
        return mean, log_std.clamp(*self.LOG_STD)
