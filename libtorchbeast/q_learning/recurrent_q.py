# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The equations of R2D2: its targets, its priorities and its exploration. r2d2.py has its loss.

The sources below are:
  [R2D2]   Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning",
           ICLR 2019, https://openreview.net/forum?id=r1lyTjAqYX
  [Pohlen] Pohlen et al., "Observe and Look Further", 2018, https://arxiv.org/abs/1805.11593
  [Double] van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning", 2015,
           https://arxiv.org/abs/1509.06461
  [PER]    Schaul et al., "Prioritized Experience Replay", 2015, https://arxiv.org/abs/1511.05952
  [Ape-X]  Horgan et al., "Distributed Prioritized Experience Replay", 2018,
           https://arxiv.org/abs/1803.00933

All functions here are pure, as those of vtrace.py are. `T` is the number of transitions in a
sequence, `B` the number of sequences, and `A` the number of actions. A sequence has T+1 rows.
Transition t leads from row t to row t+1. Networks give values h(Q), which are called rescaled.
"""

import torch
from torch import Tensor

from libtorchbeast.distributions import MASKED
from vtrace import check_tensor

EPSILON = 1e-3  # of h


def rescale(x: Tensor) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + EPSILON x ([Pohlen] proposition A.2).

    The difference is written as |x| / (sqrt(|x| + 1) + 1), which keeps its digits near 0.
    """
    return x / ((x.abs() + 1).sqrt() + 1) + EPSILON * x


def unrescale(y: Tensor) -> Tensor:
    """The inverse of `rescale` ([Pohlen] proposition A.2).

    With u = sqrt(|x| + 1) - 1, |y| = u + EPSILON (u^2 + 2 u). The usual formula for the root of
    this equation loses four of the seven digits of float32 near 0; the one here loses none.
    """
    slope = 1 + 2 * EPSILON
    u = 2 * y.abs() / (slope + (slope**2 + 4 * EPSILON * y.abs()).sqrt())
    return y.sign() * (u * u + 2 * u)


def best_value(q: Tensor) -> Tensor:
    """The highest of the Q-values [..., A], or 0 where no action is allowed."""
    best = q.amax(dim=-1)
    return best.masked_fill(best == MASKED, 0.0)


def double_q_values(online_q: Tensor, target_q: Tensor) -> Tensor:
    """The target network's values [...] of the actions that are best for the online network
    ([Double] eq. 4), or 0 where none is allowed. Both arguments are [..., A], rescaled or not."""
    best = online_q.argmax(dim=-1, keepdim=True)
    values = target_q.gather(-1, best).squeeze(-1)
    return values.masked_fill(values == MASKED, 0.0)


def targets(rows: dict[str, Tensor], values: Tensor, discounting: float, num_steps: int) -> Tensor:
    """The rescaled n-step returns h(G_t) that begin at rows 0 to T-1 ([R2D2] eq. 1).

        G_t = r_t + discount_t r_{t+1} + ... + (n discounts) unrescale(values_{t+n})

    The discount is gamma times the transition's own one. A return is shorter where a row is the
    last of its episode or of the sequence: it then ends in that row's value. Behind a terminal row
    the discount is 0, so that its value does not count; an episode that was truncated bootstraps
    from its last observation.

    Args:
        rows: `reward` [T+1, B] float32, `done` and `terminated` [T+1, B] bool, and `discount`
            [T+1, B] float32 if the environment has discounts of its own.
        values: [T+1, B] float32, the rescaled value of each row.
        discounting: gamma.
        num_steps: n, at least 1.

    Returns:
        [T, B] float32, without gradients. Where transition t leads across a reset of the
        environment, it is the value of row t.

    Raises:
        ValueError: a tensor's shape or dtype is not the one above.
    """
    check_tensor("reward", rows["reward"], values.shape, torch.float32)
    check_tensor("done", rows["done"], values.shape, torch.bool)
    check_tensor("terminated", rows["terminated"], values.shape, torch.bool)
    discounts = discounting * (~rows["terminated"][1:]).float()
    if "discount" in rows:
        discounts = discounts * rows["discount"][1:]
    returns = values = unrescale(values.detach())
    for _ in range(num_steps):  # here returns has those of one step less
        longer = rows["reward"][1:] + discounts * returns[1:]
        longer = torch.where(rows["done"][1:], values[:-1], longer)
        returns = torch.cat([longer, values[-1:]])
    return rescale(returns[:-1])


def priorities(errors: Tensor, real: Tensor) -> Tensor:
    """0.9 max |error| + 0.1 mean |error| over the real transitions of a sequence ([R2D2] section
    2.3): errors [T, B] float, 0 where `real` [T, B] is False -> [B] float."""
    size = errors.abs()
    return 0.9 * size.amax(dim=0) + 0.1 * size.sum(dim=0) / real.sum(dim=0).clamp(min=1)


def importance_weights(probabilities: Tensor, exponent: float) -> Tensor:
    """(1 / P)^exponent, divided by the largest of the batch ([PER] section 3.4): [B] -> [B]."""
    return (probabilities.min() / probabilities) ** exponent


def epsilons(num_envs: int) -> Tensor:
    """The probability of a random action in environment i: 0.4^(1 + 7 i / (N - 1)) ([Ape-X] section
    4.1), float32 [num_envs]. A single environment gets 0.4."""
    return 0.4 ** (1 + 7 * torch.arange(num_envs) / max(1, num_envs - 1))
