# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The equations of IMPALA: V-trace, the three losses, and their sum.

The numbers of equations below refer to:
  [IMPALA] Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
           Actor-Learner Architectures", 2018, https://arxiv.org/abs/1802.01561
  [GAE]    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage
           Estimation", 2016, https://arxiv.org/abs/1506.02438

All functions here are pure: they take tensors and return NamedTuples, and know no flags, devices or
locks. `T` is the number of transitions in a rollout, `B` the number of columns (environments), and
`L` the number of logits. Time runs along dimension 0. A rollout has T+1 rows. Transition t leads
from row t to row t+1.

`from_importance_weights` and `from_logits` have the arguments and results of `vtrace` in TorchBeast
and in DeepMind's code. The arguments that are new, such as `lambda_` and `real`, are keywords.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from libtorchbeast.distributions import Categorical, Distribution


class VTraceReturns(NamedTuple):
    vs: Tensor  # [T, B] float32, v_s of [IMPALA] eq. 1: the targets of the baseline
    pg_advantages: Tensor  # [T, B] float32, the factor of grad log pi in [IMPALA] section 4.2


class VTraceFromLogitsReturns(NamedTuple):
    vs: Tensor  # these two as in VTraceReturns
    pg_advantages: Tensor
    log_rhos: Tensor  # [T, B] log(pi(a|x) / mu(a|x)), not clipped
    behavior_action_log_probs: Tensor  # [T, B] log mu(a|x)
    target_action_log_probs: Tensor  # [T, B] log pi(a|x)


class ImpalaLoss(NamedTuple):
    """Scalars. Only `total` has a gradient; the other entries are for the log."""

    total: Tensor  # pg + baseline_cost * baseline - entropy_cost * entropy, after `reduction`
    pg: Tensor
    baseline: Tensor
    entropy: Tensor
    mean_entropy: Tensor  # in nats, the mean over real transitions for either reduction
    clipped_rho_share: Tensor  # share of real transitions with pi/mu above clip_rho_threshold
    mean_rho: Tensor  # mean of min(1, pi/mu) over real transitions
    largest_reward: Tensor  # the largest absolute reward, clipped or scaled as in the loss
    mean_value: Tensor  # mean baseline of rows 0..T-1
    real_transitions: Tensor  # int64, how many transitions were learned from


def check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], *dtypes: torch.dtype) -> None:
    """Raises ValueError if the tensor's shape or dtype differs from the expected one."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    if dtypes and tensor.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{name} has dtype {tensor.dtype}, expected {expected}")


@torch.no_grad()
def from_importance_weights(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    *,
    lambda_: float = 1.0,
    real: Tensor | None = None,
) -> VTraceReturns:
    """V-trace targets and policy-gradient advantages ([IMPALA] eq. 1, remarks 1 and 2).

        v_t = V(x_t) + delta_t + discount_t c_t (v_{t+1} - V(x_{t+1}))
        delta_t = rho_t (r_t + discount_t V(x_{t+1}) - V(x_t))
        rho_t = min(rho_bar, pi/mu),  c_t = lambda min(1, pi/mu)
        advantage_t = min(rho_bar_pg, pi/mu) (r_t + discount_t q_{t+1} - V(x_t))
        q_{t+1} = lambda v_{t+1} + (1 - lambda) V(x_{t+1})

    With lambda = 1, q equals v as in the paper. With lambda < 1 and on-policy data the advantage is
    that of [GAE] eq. 16, because q contains V with the weight 1 - lambda.

    Args:
        log_rhos: [T, B] float, log(pi(a_t|x_t) / mu(a_t|x_t)).
        discounts: [T, B] float, gamma, or 0 where transition t leads to a terminal row.
        rewards: [T, B] float, the reward of transition t.
        values: [T, B] float, V(x_t).
        bootstrap_value: [B] float, V(x_T).
        clip_rho_threshold: rho_bar. None means that nothing is clipped.
        clip_pg_rho_threshold: rho_bar_pg. None means that nothing is clipped.
        lambda_: in [0, 1], see remark 2 of the paper.
        real: [T, B] bool, False where transition t leads across a reset of the environment. There
            rho, c and rho_pg are 0, so that nothing leaks between two episodes. None means that
            all transitions are real.

    Returns:
        VTraceReturns without gradients.

    Raises:
        ValueError: a tensor's shape or dtype is not the one above.
    """
    for name, tensor in (("discounts", discounts), ("rewards", rewards), ("values", values)):
        check_tensor(name, tensor, log_rhos.shape)
    check_tensor("bootstrap_value", bootstrap_value, log_rhos.shape[1:])

    rhos = log_rhos.exp()
    if real is not None:
        check_tensor("real", real, log_rhos.shape, torch.bool)
        rhos = rhos.masked_fill(~real, 0.0)
    next_values = torch.cat([values[1:], bootstrap_value.unsqueeze(0)])
    deltas = _at_most(clip_rho_threshold, rhos) * (rewards + discounts * next_values - values)
    vs = values + scan_backwards(discounts * lambda_ * rhos.clamp(max=1.0), deltas)
    advantages = advantages_of(vs, discounts, rewards, values, bootstrap_value, lambda_)
    return VTraceReturns(vs, _at_most(clip_pg_rho_threshold, rhos) * advantages)


def _at_most(threshold: float | None, rhos: Tensor) -> Tensor:
    return rhos if threshold is None else rhos.clamp(max=threshold)


def advantages_of(
    vs: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    lambda_: float,
) -> Tensor:
    """r_t + gamma ((1 - lambda) V(x_{t+1}) + lambda v_{t+1}) - V(x_t), [T, B]. With lambda = 1 this
    is the factor beside the importance weight in [IMPALA] section 4.2, and on-policy it is [GAE]'s
    advantage."""
    next_values, next_vs = (torch.cat([x[1:], bootstrap_value.unsqueeze(0)]) for x in (values, vs))
    return rewards + discounts * torch.lerp(next_values, next_vs, lambda_) - values


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


def from_logits(
    behavior_policy_logits: Tensor,
    target_policy_logits: Tensor,
    actions: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    *,
    lambda_: float = 1.0,
    real: Tensor | None = None,
    distribution: Distribution | None = None,
) -> VTraceFromLogitsReturns:
    """V-trace for policies that are given by their logits.

    Args:
        behavior_policy_logits: [T, B, L] float, of the policy mu that chose the actions.
        target_policy_logits: [T, B, L] float, of the policy pi that is trained.
        actions: [T, B, ...], with the shape and dtype of the distribution's actions.
        distribution: says what the logits mean. None means a softmax over them.
        Others: see `from_importance_weights`.

    Returns:
        VTraceFromLogitsReturns. `target_action_log_probs`, `behavior_action_log_probs` and
        `log_rhos` have gradients with respect to the logits; the other two have none.

    Raises:
        ValueError: a tensor's shape or dtype is not the one above.
    """
    distribution = distribution or Categorical(behavior_policy_logits.shape[-1])
    check_tensor("target_policy_logits", target_policy_logits, behavior_policy_logits.shape)
    shape = behavior_policy_logits.shape[:-1] + distribution.action_shape
    check_tensor("actions", actions, shape, distribution.action_dtype)
    target_action_log_probs = distribution.log_prob(target_policy_logits, actions)
    behavior_action_log_probs = distribution.log_prob(behavior_policy_logits, actions)
    log_rhos = target_action_log_probs - behavior_action_log_probs
    returns = from_importance_weights(
        log_rhos,
        discounts,
        rewards,
        values,
        bootstrap_value,
        clip_rho_threshold,
        clip_pg_rho_threshold,
        lambda_=lambda_,
        real=real,
    )
    return VTraceFromLogitsReturns(
        *returns, log_rhos, behavior_action_log_probs, target_action_log_probs
    )


def impala_loss(
    rows: dict[str, Tensor],
    outputs: dict[str, Tensor],
    *,
    discounting: float = 0.99,
    baseline_cost: float = 0.5,
    entropy_cost: float = 0.01,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    lambda_: float = 1.0,
    clip_rewards: bool = True,
    reduction: str = "mean",
    distribution: Distribution | None = None,
) -> ImpalaLoss:
    """The IMPALA loss of one batch of rollouts ([IMPALA] section 4.2).

        sum over real transitions t of
            - advantage_t log pi(a_t|x_t) + baseline_cost/2 (v_t - V(x_t))^2 - entropy_cost H(pi)

    The transition t -> t+1 is real unless done[t+1], that is, unless row t+1 begins an episode. The
    discount of a real transition is `discounting`, or 0 if terminated[t+1]. An episode that was
    truncated bootstraps from the value of its last observation.

    Args:
        rows: the rollout: `reward` [T+1, B] float32, `done` and `terminated` [T+1, B] bool,
            `action` [T+1, B, ...], and the behaviour policy's `policy_logits` [T+1, B, L] float32.
        outputs: of the network in training, on these rows: `policy_logits` [T+1, B, L] and
            `baseline` [T+1, B], both float32.
        clip_rewards: whether rewards are clipped to [-1, 1].
        reduction: "sum" over time and batch as in the paper, or "mean" over real transitions.
        distribution: says what the logits mean. None means a softmax over them.
        Others: see `from_importance_weights`.

    Returns:
        ImpalaLoss of float32 scalars.

    Raises:
        ValueError: a shape or dtype differs from the above, or the reduction is unknown.
    """
    logits, values = outputs["policy_logits"], outputs["baseline"]
    distribution = distribution or Categorical(logits.shape[-1])
    _check_rollout(rows, logits, values, distribution)

    real = ~rows["done"][1:]
    rewards = rows["reward"][1:].clamp(-1, 1) if clip_rewards else rows["reward"][1:]
    vtrace = from_logits(
        rows["policy_logits"][:-1],
        logits[:-1],
        rows["action"][:-1],
        discounting * (~rows["terminated"][1:]).float(),
        rewards,
        values[:-1].detach(),
        values[-1].detach(),
        clip_rho_threshold,
        clip_pg_rho_threshold,
        lambda_=lambda_,
        real=real,
        distribution=distribution,
    )
    return join_terms(
        vtrace.pg_advantages * vtrace.target_action_log_probs,
        (vtrace.vs - values[:-1]) ** 2,
        distribution.entropy(logits[:-1]),
        real=real,
        log_rhos=vtrace.log_rhos,
        rewards=rewards,
        values=values[:-1],
        baseline_cost=baseline_cost,
        entropy_cost=entropy_cost,
        clip_rho_threshold=clip_rho_threshold,
        reduction=reduction,
    )


def _check_rollout(
    rows: dict[str, Tensor], logits: Tensor, values: Tensor, distribution: Distribution
) -> None:
    """Raises ValueError if a tensor is not as `impala_loss` takes it."""
    check_tensor("baseline", values, logits.shape[:-1], torch.float32)
    check_tensor("behavior's policy_logits", rows["policy_logits"], logits.shape, torch.float32)
    shape = (*values.shape, distribution.num_logits)
    check_tensor("policy_logits", logits, shape, torch.float32)
    check_tensor("done", rows["done"], values.shape, torch.bool)
    check_tensor("terminated", rows["terminated"], values.shape, torch.bool)
    check_tensor("reward", rows["reward"], values.shape, torch.float32)
    shape = (*values.shape, *distribution.action_shape)
    check_tensor("action", rows["action"], shape, distribution.action_dtype)


def join_terms(
    gains: Tensor,
    errors: Tensor,
    entropies: Tensor,
    *,
    real: Tensor,
    log_rhos: Tensor,
    rewards: Tensor,
    values: Tensor,
    baseline_cost: float,
    entropy_cost: float,
    clip_rho_threshold: float | None,
    reduction: str,
) -> ImpalaLoss:
    """Joins the terms of all transitions into a loss, and into numbers for the log.

        sum over real transitions of
            - gain + baseline_cost/2 error - entropy_cost entropy

    Args:
        gains, errors, entropies: [T, B] float32, with gradients.
        real: [T, B] bool.
        log_rhos, rewards, values: [T, B] float32, for the log alone.
        Others: see `impala_loss`.

    Raises:
        ValueError: the reduction is unknown.
    """
    if reduction not in ("sum", "mean"):
        raise ValueError(f'reduction is {reduction!r}, expected "sum" or "mean"')
    weights = real.float()
    count = weights.sum().clamp(min=1.0)  # a batch without real transitions has a loss of 0
    scale = 1.0 / count if reduction == "mean" else 1.0
    pg = -(weights * gains).sum()
    baseline = 0.5 * (weights * errors).sum()
    entropy = (weights * entropies).sum()
    rhos = log_rhos.detach().exp()
    above = rhos > (clip_rho_threshold or float("inf"))
    return ImpalaLoss(
        total=scale * (pg + baseline_cost * baseline - entropy_cost * entropy),
        pg=scale * pg.detach(),
        baseline=scale * baseline.detach(),
        entropy=scale * entropy.detach(),
        mean_entropy=entropy.detach() / count,
        clipped_rho_share=(weights * above).sum() / count,
        mean_rho=(weights * rhos.clamp(max=1.0)).sum() / count,
        largest_reward=(weights * rewards).abs().max(),
        mean_value=values.detach().mean(),
        real_transitions=real.sum(),
    )
