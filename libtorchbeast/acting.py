# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Choosing actions with a network, for training and for playing."""

import torch
from torch import Tensor, nn

from libtorchbeast.distributions import MASKED
from libtorchbeast.models import CoreState


def forward(
    net: nn.Module, rows: dict[str, Tensor], core_state: CoreState
) -> tuple[dict[str, Tensor], CoreState]:
    """`net(rows, core_state)`, with the logits of actions that the observation `action_mask`
    [..., A] forbids (0, False) at MASKED. Acting and learning both see the policy through this."""
    outputs, core_state = net(rows, core_state)
    if "action_mask" in rows:
        forbidden = rows["action_mask"] == 0
        logits = outputs["policy_logits"].masked_fill(forbidden, MASKED)
        outputs = {**outputs, "policy_logits": logits}
    return outputs, core_state


@torch.no_grad()
def act_on(
    net: nn.Module, row: dict[str, Tensor], core_state: CoreState, greedy: bool = False
) -> tuple[dict[str, Tensor], CoreState]:
    """One forward pass and one action per column.

    Args:
        net: of `models.make_net`, which gives it its `distribution`.
        row: [N, ...] tensors, on the network's device.
        core_state: tuple of [layers, N, H].
        greedy: take the most probable action instead of sampling one.

    Returns:
        the network's outputs [N, ...], floating ones as float32, and `action` [N, ...] (the
        network's own, where it returns one); the next core state, float32.

    Raises:
        ValueError: an output has the name of one of the environment's keys.
    """
    outputs, core_state = forward(net, {k: v.unsqueeze(0) for k, v in row.items()}, core_state)
    if outputs.keys() & row.keys():
        raise ValueError(
            f"forward returned {sorted(outputs.keys() & row.keys())}: expected names that are not "
            f"the environment's"
        )
    outputs = {k: _float32(v.squeeze(0)) for k, v in outputs.items()}
    if "action" not in outputs:
        choose = net.distribution.mode if greedy else net.distribution.sample
        outputs["action"] = choose(outputs["policy_logits"])
    return outputs, tuple(_float32(state) for state in core_state)


def _float32(tensor: Tensor) -> Tensor:
    """The behaviour's numbers are kept as they were used, not in a rounding of their own."""
    return tensor.float() if tensor.is_floating_point() else tensor
