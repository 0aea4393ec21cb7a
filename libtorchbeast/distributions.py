# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The distributions of actions, given a network's `policy_logits`: one for each action space.

The loss and the acting code know the actions only through the methods of
`Distribution`. `...` stands for any leading dimensions, which are [T, B] as a rule.
"""

import functools
import math
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from libtorchbeast.spec import Actions

MASKED = -1e9  # the logit of a forbidden action; with -inf, 0 * log 0 would be NaN in the entropy


class Distribution(Protocol):
    """Logits are float [..., L]. Results are float32 where the logits are."""

    num_logits: int  # L, the width of `policy_logits`
    num_features: int  # F, the width of `features`
    action_shape: tuple[int, ...]  # of one action
    action_dtype: torch.dtype

    def log_prob(self, policy_logits: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|x) [...] of actions [..., *action_shape]. Of a Gaussian, the log-density."""

    def entropy(self, policy_logits: Tensor) -> Tensor:
        """The entropy [...] in nats. Of a Gaussian, the differential one, which may be negative."""

    def sample(self, policy_logits: Tensor) -> Tensor:
        """One sampled action for each logit vector, [..., *action_shape] of `action_dtype`."""

    def mode(self, policy_logits: Tensor) -> Tensor:
        """The most probable action for each logit vector, [..., *action_shape]."""

    def features(self, actions: Tensor) -> Tensor:
        """Encodes actions as float32 [..., F], for a network that reads its last action."""


def make_distribution(actions: Actions) -> Distribution:
    """The distribution for the environment's kind of actions."""
    if actions.kind == "discrete":
        return Categorical(*actions.sizes)
    if actions.kind == "multi_discrete":
        return MultiCategorical(actions.sizes)
    return Gaussian(*actions.sizes)


class Categorical:
    """One of A actions, with the softmax of the logits [..., A] as probabilities."""

    action_shape: tuple[int, ...] = ()
    action_dtype = torch.int64

    def __init__(self, num_actions: int):
        self.num_logits = self.num_features = num_actions

    def log_prob(self, policy_logits: Tensor, actions: Tensor) -> Tensor:
        return F.log_softmax(policy_logits, dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, policy_logits: Tensor) -> Tensor:
        log_probs = F.log_softmax(policy_logits, dim=-1)
        return -(log_probs.exp() * log_probs).sum(dim=-1)

    def sample(self, policy_logits: Tensor) -> Tensor:
        # torch.multinomial draws one sample in this way, with the same random numbers. But on a GPU
        # it asserts that `probs` are finite, and after that fails, this process cannot use the GPU.
        probs = policy_logits.softmax(dim=-1)
        return (probs / torch.empty_like(probs).exponential_()).argmax(dim=-1)

    def mode(self, policy_logits: Tensor) -> Tensor:
        return policy_logits.argmax(dim=-1)

    def features(self, actions: Tensor) -> Tensor:
        return F.one_hot(actions, self.num_features).float()


class MultiCategorical:
    """K independent choices. The logits of all choices stand one after the other, and actions are
    [..., K]."""

    action_shape: tuple[int, ...]
    action_dtype = torch.int64

    def __init__(self, sizes: tuple[int, ...]):
        self.sizes, self.action_shape = list(sizes), (len(sizes),)
        self.num_logits = self.num_features = sum(sizes)
        self._parts = [Categorical(size) for size in sizes]

    def log_prob(self, policy_logits: Tensor, actions: Tensor) -> Tensor:
        parts = zip(self._each(policy_logits), actions.unbind(-1), strict=True)
        return functools.reduce(torch.add, (p.log_prob(x, a) for (p, x), a in parts))

    def entropy(self, policy_logits: Tensor) -> Tensor:
        return functools.reduce(torch.add, (p.entropy(x) for p, x in self._each(policy_logits)))

    def sample(self, policy_logits: Tensor) -> Tensor:
        return torch.stack([p.sample(x) for p, x in self._each(policy_logits)], dim=-1)

    def mode(self, policy_logits: Tensor) -> Tensor:
        return torch.stack([p.mode(x) for p, x in self._each(policy_logits)], dim=-1)

    def features(self, actions: Tensor) -> Tensor:
        each = zip(self._parts, actions.unbind(-1), strict=True)
        return torch.cat([p.features(a) for p, a in each], dim=-1)

    def _each(self, policy_logits: Tensor) -> Iterator[tuple[Categorical, Tensor]]:
        return zip(self._parts, policy_logits.split(self.sizes, dim=-1), strict=True)


class Gaussian:
    """D real numbers that are independent given x.

    The logits [..., 2 D] are the D means, followed by D numbers that become the logarithms of the
    standard deviations. A sigmoid keeps these within LOG_STD and maps 0 to 0. Its slope is nowhere
    0: with a hard limit, a policy that the entropy bonus has pushed over it could never come back.

    Actions are not squashed. The environment's adapter clips them to the bounds, and `log_prob`
    takes the density of the action before it was clipped.
    """

    LOG_STD = (-5.0, 2.0)  # 0 must be between them
    action_shape: tuple[int, ...]
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
        mean, raw = policy_logits.chunk(2, dim=-1)
        low, high = self.LOG_STD
        width = high - low
        x = 4 / width * raw + math.log(-low / high)  # so that the steepest slope is 1, and 0 -> 0
        # Both are low + width * sigmoid(x). In float32 sigmoid(20) is 1, and its slope would be 0.
        log_std = torch.where(x < 0, low + width * x.sigmoid(), high - width * (-x).sigmoid())
        return mean, log_std
