# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Choosing actions with a network, for training and for playing."""

import torch
from torch import Tensor, nn

from libtorchbeast.models import CoreState


@torch.no_grad()
def act_on(
    net: nn.Module, row: dict[str, Tensor], core_state: CoreState, greedy: bool = False
) -> tuple[dict[str, Tensor], CoreState]:
    """One forward pass and one action per column.

    Args:
        row: [N, ...] tensors, on the network's device.
        core_state: tuple of [layers, N, H].
        greedy: take the most probable action instead of sampling one.

    Returns:
        the network's outputs [N, ...], floating ones as float32, and `action` [N] int64 (the
        network's own, where it returns one); the next core state, float32.

    Raises:
        ValueError: an output has the name of one of the environment's keys.
    """
    outputs, core_state = net({k: v.unsqueeze(0) for k, v in row.items()}, core_state)
    if outputs.keys() & row.keys():
        raise ValueError(
            f"forward returned {sorted(outputs.keys() & row.keys())}: expected names that are not "
            f"the environment's"
        )
    outputs = {k: _float32(v.squeeze(0)) for k, v in outputs.items()}
    if "action" not in outputs:
        logits = outputs["policy_logits"]
        if greedy:
            outputs["action"] = logits.argmax(dim=-1)
        else:
            outputs["action"] = torch.multinomial(logits.softmax(dim=-1), 1).squeeze(-1)
    return outputs, tuple(_float32(state) for state in core_state)


def _float32(tensor: Tensor) -> Tensor:
    """The behaviour's numbers are kept as they were used, not in a rounding of their own."""
    return tensor.float() if tensor.is_floating_point() else tensor
