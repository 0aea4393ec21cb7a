# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What several learners share: the sum of their gradients, and equal weights."""

import io
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from libtorchbeast.distributed.ranks import Ranks

COMPARE_EVERY = 1000  # number of updates between two comparisons of the ranks' weights
KINDS = ("scalars", "means", "sums")  # of the results that are added up

logger = logging.getLogger(__name__)


class Gradients:
    """The gradients of one rank and what travels with them, as one flat tensor, which one
    all-reduce adds up. Results of a loss are added up as its gradient is, numbers for the log that
    are means stay means, and statistics are sums.

    Args:
        is_mean: whether the loss is a mean over real transitions, not their sum.
        like: results of `transitions.learn_from`, which say what else travels.

    Attributes:
        deviations: how many times the ranks' weights were found to differ.
        optional: names of the numbers for the log, which some ranks may not return.
    """

    def __init__(
        self, ranks: Ranks, parameters: list[nn.Parameter], is_mean: bool, like: dict[str, Any]
    ):
        self._ranks, self._parameters, self._is_mean = ranks, parameters, is_mean
        self.deviations = 0
        others = {(kind, k): x for kind in KINDS for k, x in like.get(kind, {}).items()}
        self.optional = [k for kind, k in others if kind != "sums"]
        sizes = [*(p.numel() for p in parameters), 1, *(x.numel() for x in others.values())]
        self._flat = torch.zeros(sum(sizes) + len(self.optional) + 4, device=parameters[0].device)
        parts = iter(self._flat.split([*sizes, len(self.optional), 4]))
        # Each lies in memory as its weights do, for example with the channels last. torch's fused
        # Adam takes that for granted.
        self._views = [next(parts).as_strided(p.shape, p.stride()) for p in parameters]
        self._loss = next(parts)
        self._others = {name: next(parts).view(x.shape) for name, x in others.items()}
        self._returned, self._counts = parts
        count = lambda kind: sum(x.numel() for x in like.get(kind, {}).values())
        first = sum(p.numel() for p in parameters) + 1 + count("scalars")  # of the means
        self._weighted = self._flat[0 if is_mean else first : first + count("means")]

    def sum(
        self, results: dict[str, Any], wants_to_stop: bool, new_steps: int | None = None
    ) -> dict[str, Any]:
        """Gives the parameters the gradient of the loss over the real transitions of all ranks.

        Args:
            results: of this rank's loss, whose gradients the parameters have. {} if this rank has
                no batch, and so adds nothing.
            new_steps: how many steps this rank adds to the run. None: its real transitions.

        Returns:
            The results over all ranks; `new_steps`, their sum; `stops`, the number of ranks that
            want to stop; `has_sums`, which is 0 if no rank has statistics. For each of the names
            `optional`, `returned` has the number of real transitions of the ranks that return it,
            over which it is a mean. If the loss or gradient of one rank is not finite, nor is the
            sum's. What `like` lacks is not summed.
        """
        number = lambda x: self._flat.new_full((), float(x))
        nothing, stops, has_sums = map(number, (0, wants_to_stop, bool(results.get("sums"))))
        grads = [nothing if p.grad is None else p.grad for p in self._parameters]
        own = [results.get(kind, {}).get(k, nothing) for kind, k in self._others]
        loss = results.get("total_loss", nothing).detach()
        real = results.get("real_transitions", nothing).detach()
        added = real if new_steps is None else number(new_steps)
        optional = [(kind, k) for kind, k in self._others if kind != "sums"]
        returned = [real if k in results.get(kind, {}) else nothing for kind, k in optional]
        targets = [*self._views, self._loss, *self._others.values(), *self._returned, *self._counts]
        values = [*grads, loss, *own, *returned, real, added, stops, has_sums]
        for target, x in zip(targets, values, strict=True):
            target.copy_(x)
        self._weighted *= self._counts[0]
        self._ranks.sum(self._flat)
        self._weighted /= self._counts[0].clamp(min=1.0)
        for p, view in zip(self._parameters, self._views, strict=True):
            p.grad = view  # of zeros if no rank has one: all ranks make the same step
        names = ("total_loss", "real_transitions", "new_steps", "stops", "has_sums")
        summed = dict(zip(names, (self._loss[0], *self._counts), strict=True))
        summed |= {k: x for k, x in results.items() if k in ("vectors", "largest_reward")}
        summed |= {kind: dict(results.get(kind, {})) for kind in KINDS}
        shares = dict(zip(self.optional, self._counts[0] / self._returned.clamp(1.0), strict=True))
        for (kind, k), x in self._others.items():
            is_mean = kind == "means" or (kind == "scalars" and self._is_mean)  # of who returns it
            summed[kind][k] = x * shares[k] if is_mean else x
        return summed | {"returned": self._returned}

    def compare(self, updates: int, state: Callable[[], Any], load: Callable[[Any], None]) -> None:
        """The weights of all ranks are equal, unless processors of different kinds round otherwise.
        Then all ranks take those of rank 0. They are compared every COMPARE_EVERY updates."""
        if updates % COMPARE_EVERY:
            return
        digests = self._ranks.gathered(digest(self._parameters))
        if differ := int((digests != digests[0]).any(dim=1).sum()):
            self.deviations += 1
            said = "The weights of %d ranks differ from those of rank 0, which all ranks take now "
            said += "(seen %d times since the start). Do their processors differ?"
            logger.warning(said, differ, self.deviations)
            load(from_rank_0(self._ranks, state()))


def from_rank_0(ranks: Ranks, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of rank 0's learner, given this rank's own."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = ranks.from_rank_0(buffer.getvalue())
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def digest(tensors: list[nn.Parameter]) -> Tensor:
    """Two whole numbers [2] float32 that change with any bit of float32 tensors."""
    total = sum(x.detach().contiguous().view(torch.int32).long().sum() for x in tensors)
    assert isinstance(total, Tensor)
    return torch.stack([total & 0xFFFFFF, (total >> 24) & 0xFFFFFF]).float()
