# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Updates that are not made: because a loss or a gradient is NaN or infinite, or because no
transition is real."""

import logging
import math
import os
from typing import Any

import torch
from torch import nn

from libtorchbeast.accelerator.devices import copy_to_host
from libtorchbeast.agents import batches_of_groups
from libtorchbeast.flags import Flags, UserError
from libtorchbeast.net_check import keep_buffers, why_not_finite
from libtorchbeast.rollouts import Rollout
from libtorchbeast.transitions import transitions_of

MAX_SKIPPED_IN_A_ROW = 20
MAX_EMPTY_IN_A_ROW = 1000
MAX_DUMPS = 3

logger = logging.getLogger(__name__)


class Skipped:
    """Counts what is skipped. Of the batches that were not finite the first ones and the last are
    kept in `dump_dir`, unless that is None.

    Attributes:
        count: number of updates skipped because the loss or the gradient was not finite.
    """

    def __init__(self, net: nn.Module, flags: Flags, dump_dir: str | None):
        self._net, self._flags, self._dump_dir = net, flags, dump_dir
        self.count = self._in_a_row = self._empty_in_a_row = 0

    def note_empty(self, is_empty: bool) -> bool:
        """Takes note of whether a batch has no real transition, which it returns. Raises UserError
        if it was the last of too many in a row."""
        self._empty_in_a_row = self._empty_in_a_row + 1 if is_empty else 0
        if self._empty_in_a_row >= MAX_EMPTY_IN_A_ROW:
            said = "had no transition to learn from: each row of the environments begins an episode"
            raise UserError(f"{MAX_EMPTY_IN_A_ROW} batches in a row {said}")
        return is_empty

    def must_skip(self, numbers: dict[str, Any]) -> bool:
        """Whether the update with these numbers must be skipped."""
        is_finite = all(map(math.isfinite, (numbers["total_loss"], numbers["grad_norm"])))
        self._in_a_row = 0 if is_finite else self._in_a_row + 1
        return not is_finite

    def skip(
        self, batch: Rollout | None, part: Rollout, numbers: dict[str, Any], updates: int
    ) -> None:
        """Logs why an update is skipped.

        Args:
            batch: what is kept. None: this rank had no batch.
            part: what the update should have learned from, on the device.

        Raises:
            UserError: it was the last of too many in a row.
        """
        self.count += 1
        if batch is None:
            return
        is_last = self._in_a_row >= MAX_SKIPPED_IN_A_ROW
        where = "not dumped"
        if self._dump_dir and (is_last or self.count <= MAX_DUMPS):
            where = os.path.join(self._dump_dir, f"nonfinite-{self.count}.tar")
            try:
                torch.save(copy_to_host({"batch": batch, "model": self._net.state_dict()}), where)
            except (OSError, RuntimeError) as error:  # torch raises RuntimeError on a full disk
                where = f"not dumped: {error}"
        outputs = self._outputs(part)
        rows = {k: x for k, x in batch.items() if k not in outputs}
        why = why_not_finite(self._net, rows, [k for k, fits in outputs.items() if not fits])
        shown = [f"{k} {v:g}" for k, v in numbers.items() if not isinstance(v, list)]
        seen = ", ".join(shown) + f"; batch: {where}"
        said = f"a loss or gradient that is not finite ({seen}). {why}".rstrip()
        logger.error("Update %d skipped, which had %s", updates, said)
        if is_last:
            raise UserError(f"{MAX_SKIPPED_IN_A_ROW} updates in a row had {said}")

    @torch.no_grad()
    def _outputs(self, part: Rollout) -> dict[str, bool]:
        """The names of the network's outputs, and whether each is finite."""
        net, flags, restore = self._net, self._flags, keep_buffers(self._net)
        each = [transitions_of(*own, flags, 0.0).outputs for own in batches_of_groups(net, part)]
        restore()
        names = dict.fromkeys(name for one in each for name in one)
        return {k: all(bool(x[k].isfinite().all()) for x in each if k in x) for k in names}
