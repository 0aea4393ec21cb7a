# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The equations of IMPALA and PPO: V-trace, and the terms of the losses. monobeast.py adds them up.

The numbers of equations below refer to:
  [IMPALA] Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
           Actor-Learner Architectures", 2018, https://arxiv.org/abs/1802.01561
  [GAE]    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage
           Estimation", 2016, https://arxiv.org/abs/1506.02438
  [PPO]    Schulman et al., "Proximal Policy Optimization Algorithms", 2017,
           https://arxiv.org/abs/1707.06347

All functions here are pure: they take and return tensors, and know no flags, devices or locks. `T`
is the number of transitions in a rollout, and `B` the number of columns (environments). Time runs
along dimension 0. A rollout has T+1 rows. Transition t leads from row t to row t+1.

`from_importance_weights` has the first six arguments of the function of this name in TorchBeast and
DeepMind's code. Its advantages are not multiplied by importance weights: PPO needs them so, and
with several passes the weights change after each update.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class VTraceReturns(NamedTuple):
    vs: Tensor  # [T, B] float32, v_s of [IMPALA] eq. 1: the targets of the baseline
    advantages: Tensor  # [T, B] float32, see `from_importance_weights`


def check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: Any = None) -> None:
    """Raises ValueError if the tensor's shape or dtype differs from the expected one."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    if dtype not in (None, tensor.dtype):
        raise ValueError(f"{name} has dtype {tensor.dtype}, expected {dtype}")


@torch.no_grad()
def from_importance_weights(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: float | None = 1.0,
    *,
    lambda_: float = 1.0,
    real: Tensor | None = None,
) -> VTraceReturns:
    """V-trace targets and advantages ([IMPALA] eq. 1, remarks 1 and 2).

        v_t = V(x_t) + delta_t + discount_t c_t (v_{t+1} - V(x_{t+1}))
        delta_t = rho_t (r_t + discount_t V(x_{t+1}) - V(x_t))
        rho_t = min(rho_bar, pi/mu),  c_t = lambda min(1, pi/mu)
        advantage_t = r_t + discount_t q_{t+1} - V(x_t)
        q_{t+1} = lambda v_{t+1} + (1 - lambda) V(x_{t+1})

    With lambda = 1, q equals v and the advantage is the paper's (section 4.2). With lambda < 1 and
    on-policy data it is that of [GAE] eq. 16, because q contains V with the weight 1 - lambda.

    Args:
        log_rhos: [T, B] float, log(pi(a_t|x_t) / mu(a_t|x_t)).
        discounts: [T, B] float, gamma, or 0 where transition t leads to a terminal row. It is
            negative where the turn passes to the opponent, whose value counts negatively.
        rewards: [T, B] float, the reward of transition t.
        values: [T, B] float, V(x_t).
        bootstrap_value: [B] float, V(x_T).
        clip_rho_threshold: rho_bar. None means that nothing is clipped.
        lambda_: in [0, 1], see remark 2 of the paper.
        real: [T, B] bool, False where transition t leads across a reset of the environment. There
            rho and c are 0, so that nothing leaks between two episodes. None means that all
            transitions are real.

    Returns:
        VTraceReturns without gradients.

    Raises:
        ValueError: a tensor's shape, or the dtype of `real`, is not the one above.
    """
    for name, tensor in (("discounts", discounts), ("rewards", rewards), ("values", values)):
        check_tensor(name, tensor, log_rhos.shape)
    check_tensor("bootstrap_value", bootstrap_value, log_rhos.shape[1:])

    rhos = log_rhos.exp()
    if real is not None:
        check_tensor("real", real, log_rhos.shape, torch.bool)
        rhos = rhos.masked_fill(~real, 0.0)
    next_values = torch.cat([values[1:], bootstrap_value.unsqueeze(0)])
    clipped_rhos = rhos if clip_rho_threshold is None else rhos.clamp(max=clip_rho_threshold)
    deltas = clipped_rhos * (rewards + discounts * next_values - values)
    vs = values + scan_backwards(discounts * lambda_ * rhos.clamp(max=1.0), deltas)
    next_vs = torch.cat([vs[1:], bootstrap_value.unsqueeze(0)])
    q = torch.lerp(next_values, next_vs, lambda_)
    return VTraceReturns(vs, rewards + discounts * q - values)


def scan_backwards(factors: Tensor, terms: Tensor) -> Tensor:
    """Solves x_t = terms_t + factors_t x_{t+1} with x_T = 0 and returns x [T, B].

    The parallel scan of Hillis and Steele (1986) needs ceil(log2 T) rounds over whole tensors
    instead of T rounds over rows, so a GPU runs fewer kernels.
    """
    x, factors = terms.clone(), factors.clone()
    span = 1
    while span < len(x):  # here x_t holds the terms t to t+span-1; those from t+span are missing
        x[:-span] = x[:-span] + factors[:-span] * x[span:]
        factors[:-span] = factors[:-span] * factors[span:]
        span *= 2
    return x


def standardised(advantages: Tensor, real: Tensor) -> Tensor:
    """The advantages [T, B] with a mean of 0 and a deviation of 1 over the real transitions, as
    implementations of PPO make them. If only one is real, which would have no gradient, they stay
    as they are. `real` is [T, B] bool."""
    count = real.sum()
    centred = advantages - (real * advantages).sum() / count
    scaled = centred / (((real * centred**2).sum() / count).sqrt() + 1e-8)
    return torch.where(count > 1, scaled, advantages)


def clipped_gains(log_rhos: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """min(rho A, clip(rho, 1 - epsilon, 1 + epsilon) A), [PPO] eq. 7, to be maximised.

    Where rho is 1 its gradient is A grad log pi. It is 0 where rho has already left the interval in
    the direction that the advantage asks for.

    Args:
        log_rhos: [T, B] float, log(pi(a|x) / mu(a|x)), with gradients.
        advantages: [T, B] float, without.

    Returns:
        [T, B] float.
    """
    rhos = log_rhos.clamp(max=20.0).exp()  # without the bound one might be infinite
    return torch.minimum(rhos * advantages, rhos.clamp(1 - epsilon, 1 + epsilon) * advantages)


def clipped_errors(values: Tensor, targets: Tensor, before: Tensor, epsilon: float) -> Tensor:
    """max((V - v)^2, (clip(V, V' - epsilon, V' + epsilon) - v)^2), to be minimised. Its gradient is
    0 where V has moved from V' towards v by more than epsilon. It is not in [PPO], but in its
    authors' code.

    Args:
        values: V [T, B] float, with gradients.
        targets: v [T, B] float.
        before: V' [T, B] float, the values before the first update from the batch.

    Returns:
        [T, B] float.
    """
    near = before + (values - before).clamp(-epsilon, epsilon)
    return torch.maximum((values - targets) ** 2, (near - targets) ** 2)
