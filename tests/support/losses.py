# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The targets and the loss on the page, called on rows and outputs that a test has made."""

from argparse import Namespace
from typing import Any, NamedTuple

import torch

import monobeast
from libtorchbeast import losses
from libtorchbeast.distributions import Categorical


class Loss(NamedTuple):
    """Scalars. Only `total` has a gradient."""

    total: torch.Tensor
    pg: torch.Tensor
    baseline: torch.Tensor
    mean_entropy: torch.Tensor
    clipped_rho_share: torch.Tensor
    mean_rho: torch.Tensor
    largest_reward: torch.Tensor
    mean_value: torch.Tensor
    real_transitions: torch.Tensor


def transitions(rows, outputs, progress=0.0, distribution=None, moments=None, **flags):
    """What `targets` gets for rows [T+1, B, ...] and the outputs of a network on them."""
    values: dict[str, Any] = dict(
        discounting=0.99, baseline_cost=0.5, entropy_cost=0.01, clip_rho_threshold=1.0,
        vtrace_lambda=1.0, reward_clipping="abs_one", ppo_clip=0.0,
        loss_reduction="mean", entropy_schedule="constant",
    )  # fmt: skip
    assert values.keys() >= flags.keys(), flags
    distribution = distribution or Categorical(outputs["policy_logits"].shape[-1])
    net = Namespace(distribution=distribution, **({"moments": moments} if moments else {}))
    settings = Namespace(**values | flags)
    return losses.Transitions(net, settings, rows, {}, (), {}, outputs, progress)


def impala_loss(rows, outputs, **flags):
    """The loss of MonoBeast."""
    batch = transitions(rows, outputs, **flags)
    found = losses.results_of(batch, None, monobeast.targets, monobeast.loss)
    scalars, means = found["scalars"], found["means"]
    return Loss(
        found["total_loss"], scalars["pg_loss"], scalars["baseline_loss"], means["entropy"],
        means["clipped_rho_share"], means["mean_rho"], found["largest_reward"],
        means["mean_value"], found["real_transitions"],
    )  # fmt: skip
