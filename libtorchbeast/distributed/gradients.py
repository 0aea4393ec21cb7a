# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The gradients of several learners, added up in one flat tensor."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from libtorchbeast.distributed.ranks import Ranks


class Gradients:
    """The gradients of a network and what travels with them, as one flat tensor.

    Args:
        parameters: the network's.
        is_mean: whether the loss is a mean over real transitions, not their sum.
    """

    PARTS = ("total", "pg", "baseline")  # of a loss; they are added up as its gradient is

    def __init__(self, ranks: Ranks, parameters: Iterable[nn.Parameter], is_mean: bool):
        self._ranks, self._parameters, self._is_mean = ranks, list(parameters), is_mean
        sizes = [p.numel() for p in self._parameters]
        device = self._parameters[0].device
        self._flat = torch.zeros(sum(sizes) + len(self.PARTS) + 2, device=device)
        *views, self._parts, self._counts = self._flat.split([*sizes, len(self.PARTS), 2])
        pairs = zip(views, self._parameters, strict=True)
        # Each lies in memory as its weights do, for example with the channels last. torch's fused
        # Adam takes that for granted.
        self._views = [view.as_strided(p.shape, p.stride()) for view, p in pairs]

    def sum(self, parts: dict[str, Tensor], wants_to_stop: bool) -> dict[str, Tensor]:
        """Gives the parameters the gradient of the loss over the real transitions of all ranks.

        Args:
            parts: of this rank's loss, whose gradients the parameters have. {} if this rank has no
                batch, and so adds nothing.

        Returns:
            `parts` of the loss over all ranks, `real_transitions`, and `stops`, the number of ranks
            that want to stop. If the loss or gradient of one rank is not finite, nor is the sum's.
        """
        nothing = self._flat.new_zeros(())
        stops = self._flat.new_full((), float(wants_to_stop))
        grads = [nothing if p.grad is None else p.grad for p in self._parameters]
        tail = [parts.get(name, nothing).detach() for name in self.PARTS]
        tail += [parts.get("real_transitions", nothing), stops]
        targets = [*self._views, *self._parts, *self._counts]
        for target, x in zip(targets, (*grads, *tail), strict=True):
            target.copy_(x)
        of_loss = self._flat[: -len(self._counts)]
        if self._is_mean:
            of_loss *= self._counts[0]
        self._ranks.sum(self._flat)
        if self._is_mean:
            of_loss /= self._counts[0].clamp(min=1.0)
        for p, view in zip(self._parameters, self._views, strict=True):
            p.grad = view if p.grad is not None or not parts else None
        own = {name: x for name, x in zip(self.PARTS, self._parts, strict=True) if name in parts}
        counts = {"real_transitions": self._counts[0], "stops": self._counts[1]}
        return parts | {"total": self._parts[0]} | own | counts


def digest(tensors: Iterable[Tensor]) -> Tensor:
    """Two whole numbers [2] float32 that change with any bit of float32 tensors."""
    total = sum(x.detach().contiguous().view(torch.int32).long().sum() for x in tensors)
    assert isinstance(total, Tensor)
    return torch.stack([total & 0xFFFFFF, (total >> 24) & 0xFFFFFF]).float()
