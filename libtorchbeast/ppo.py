# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PPO's loss (--ppo_clip), with the targets of V-trace, for several updates from each batch.

The numbers of equations below refer to Schulman et al., "Proximal Policy Optimization Algorithms",
2017, https://arxiv.org/abs/1707.06347. Luo et al. 2019 (IMPACT, https://arxiv.org/abs/1912.00167)
and Petrenko et al. 2020 (Sample Factory, https://arxiv.org/abs/2006.11751) join PPO with V-trace.

The advantages and the targets of the values are computed once, before the first update from a
batch. If each update computed them from its own values, these would soon fit the batch, and the
policy would get stuck (results/README.md, "Control").
"""

import torch
from torch import Tensor

from libtorchbeast.distributions import Distribution
from vtrace import ImpalaLoss, advantages_of, from_logits, join_terms


@torch.no_grad()
def with_targets(
    rows: dict[str, Tensor],
    outputs: dict[str, Tensor],
    *,
    discounting: float,
    clip_rho_threshold: float,
    lambda_: float,
    clip_rewards: bool,
    distribution: Distribution,
) -> dict[str, Tensor]:
    """Returns rows 0 to T-1 of a rollout, each with what `loss` needs of the row after it.

    Args:
        rows: the rollout [T+1, B, ...], as `vtrace.impala_loss` takes it.
        outputs: of the network in training, on these rows.
        Others: see `vtrace.impala_loss`.

    Returns:
        [T, B, ...] tensors. The new ones are float32, and bool for `ppo/real`:
            ppo/real: whether the transition from this row to the next one is real.
            ppo/reward: the reward of that transition, clipped or scaled as in the loss.
            ppo/target: v of [IMPALA] eq. 1 (see vtrace.py), the target of the value.
            ppo/advantage: with on-policy data, that of [GAE] eq. 16 (see vtrace.py).
            ppo/value: the value V' before the first update.
    """
    real, values = ~rows["done"][1:], outputs["baseline"]
    rewards = rows["reward"][1:].clamp(-1, 1) if clip_rewards else rows["reward"][1:]
    discounts = discounting * (~rows["terminated"][1:]).float()
    of_rollout = discounts, rewards, values[:-1], values[-1]
    now = {name: x[:-1] for name, x in rows.items()}
    logits = now["policy_logits"], outputs["policy_logits"][:-1]
    trace = from_logits(
        *logits, now["action"], *of_rollout, clip_rho_threshold,
        lambda_=lambda_, real=real, distribution=distribution,
    )  # fmt: skip
    return now | {
        "ppo/real": real,
        "ppo/reward": rewards,
        "ppo/target": trace.vs,
        "ppo/advantage": advantages_of(trace.vs, *of_rollout, lambda_),
        "ppo/value": values[:-1],
    }


def loss(
    rows: dict[str, Tensor],
    outputs: dict[str, Tensor],
    *,
    epsilon: float,
    baseline_cost: float,
    entropy_cost: float,
    clip_rho_threshold: float,
    reduction: str,
    distribution: Distribution,
) -> ImpalaLoss:
    """The loss of some of the transitions of a batch.

        sum over real transitions of
            - objective(pi/mu, advantage) + baseline_cost/2 errors(V) - entropy_cost H(pi)

    The advantages are standardised over these transitions, as implementations of PPO do.

    Args:
        rows: some of the columns [T, B, ...] that `with_targets` returned, or some of its
            transitions as columns of one row each.
        outputs: of the network in training, on these rows.
        epsilon: bounds `objective` and `clipped_errors`.
        Others: see `vtrace.impala_loss`.
    """
    logits, values = outputs["policy_logits"], outputs["baseline"]
    now, then = (distribution.log_prob(x, rows["action"]) for x in (logits, rows["policy_logits"]))
    advantages = _standardised(rows["ppo/advantage"], rows["ppo/real"].float())
    return join_terms(
        objective(now - then, advantages, epsilon),
        clipped_errors(values, rows["ppo/target"], rows["ppo/value"], epsilon),
        distribution.entropy(logits),
        real=rows["ppo/real"],
        log_rhos=now - then,
        rewards=rows["ppo/reward"],
        values=values,
        baseline_cost=baseline_cost,
        entropy_cost=entropy_cost,
        clip_rho_threshold=clip_rho_threshold,
        reduction=reduction,
    )


def _standardised(advantages: Tensor, weights: Tensor) -> Tensor:
    """The advantages with a mean of 0 and a deviation of 1 over those whose weight is 1."""
    count = weights.sum().clamp(min=1.0)
    advantages = advantages - (weights * advantages).sum() / count
    return advantages / (((weights * advantages**2).sum() / count).sqrt() + 1e-8)


def objective(log_rhos: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """min(rho A, clip(rho, 1 - epsilon, 1 + epsilon) A), eq. 7, to be maximised.

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
    0 where V has moved from V' towards v by more than epsilon.

    It is not in the paper, but in its authors' code.

    Args:
        values: V [T, B] float, with gradients.
        targets: v [T, B] float.
        before: V' [T, B] float, the values before the first update from the batch.

    Returns:
        [T, B] float.
    """
    near = before + (values - before).clamp(-epsilon, epsilon)
    return torch.maximum((values - targets) ** 2, (near - targets) ** 2)
