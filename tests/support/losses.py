# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The targets and the loss on the page, called on rows and outputs that a test has made."""

from argparse import Namespace
from typing import Any

import monobeast
from libtorchbeast.distributions import Categorical
from libtorchbeast.transitions import Transitions, results_of


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
    return Transitions(net, settings, rows, {}, (), {}, outputs, progress)


def impala_loss(rows, outputs, **flags):
    batch = transitions(rows, outputs, **flags)
    found = results_of(batch, None, monobeast.targets, monobeast.loss)
    numbers = {name: found[name] for name in ("total_loss", "largest_reward", "real_transitions")}
    return Namespace(**numbers, **found["scalars"], **found["means"])
