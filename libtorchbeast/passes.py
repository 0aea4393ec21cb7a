# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The parts of a batch that each update learns from (--passes, --minibatches).

With several of them the targets are computed once, before the first update from the batch. If each
update computed them from its own values, these would soon fit the batch, and the policy would get
stuck (results/README.md, "Control"). Luo et al. 2019 (IMPACT, https://arxiv.org/abs/1912.00167) and
Petrenko et al. 2020 (Sample Factory, https://arxiv.org/abs/2006.11751) combine PPO and V-trace.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from libtorchbeast.accelerator.devices import to_device
from libtorchbeast.flags import Flags
from libtorchbeast.rollouts import COLUMN_PREFIXES, Rollout, core_state_of


class Part(NamedTuple):
    """What one update learns from."""

    batch: Rollout  # rows [T+1, B, ...] and core states; {} of a rank without a batch
    targets: dict[str, Tensor] | None  # [T, B, ...]; None if the update computes them itself
    sums: dict[str, Tensor]  # the statistics of the whole batch; {} with a single part
    new_steps: int | None = None  # what it adds to the run; None: its real transitions


NO_PART = Part({}, None, {}, new_steps=0)


def parts(
    batch: Rollout, targets_of: Callable[[], tuple[dict[str, Tensor], Any]], flags: Flags
) -> Iterator[Part]:
    """Yields the parts of a batch, which is on the device. Each of the --passes divides its columns
    into --minibatches parts, drawn anew. Without a recurrent state each transition is a column of
    its own, so that the minibatches mix all of them. `targets_of` returns the targets and the
    statistics of the batch."""
    if flags.passes * flags.minibatches == 1:
        yield Part(batch, None, {})
        return
    targets, sums = targets_of()
    T, B = len(batch["done"]) - 1, batch["done"].shape[1]
    is_recurrent = bool(core_state_of(batch))
    count, select = (B, _columns) if is_recurrent else (T * B, _transitions)
    each: Iterable[Selected] = ()
    for index in range(flags.passes):
        if flags.minibatches > 1 or not index:  # one part is the same in each pass
            order = torch.randperm(count) if flags.minibatches > 1 else torch.arange(count)
            drawn = [*order.tensor_split(min(flags.minibatches, count))]
            if not is_recurrent:  # also the number of each transition's second row
                drawn = [torch.cat([numbers, numbers + B]) for numbers in drawn]
            sizes = [len(numbers) for numbers in drawn]
            on_device = to_device(torch.cat(drawn), batch["done"].device).split(sizes)
            each = (select(batch, targets, numbers) for numbers in on_device)
            each = each if flags.minibatches > 1 else [*each]
        for own in each:
            yield Part(*own, sums, new_steps=0 if index else None)


Selected = tuple[Rollout, dict[str, Tensor]]


def _columns(batch: Rollout, targets: dict[str, Tensor], columns: Tensor) -> Selected:
    chosen = lambda x: x.index_select(1, columns)
    return {k: chosen(x) for k, x in batch.items()}, {k: chosen(x) for k, x in targets.items()}


def _transitions(batch: Rollout, targets: dict[str, Tensor], both: Tensor) -> Selected:
    """Transition t of column b has the number t * B + b. Its two rows become rows 0 and 1 of a
    column, [2, n, ...]. `both` [2 n] has the numbers of all first rows, then of all second ones."""
    # With a dimension more, because torch selects no numbers of uint16 from a vector on the CPU.
    pick = lambda x, numbers: x.flatten(0, 1).unsqueeze(-1).index_select(0, numbers).squeeze(-1)
    own = {k: x for k, x in batch.items() if not k.startswith(COLUMN_PREFIXES)}
    rows = {k: pick(x, both).unflatten(0, (2, -1)) for k, x in own.items()}
    numbers = both[: len(both) // 2]
    columns = numbers % batch["done"].shape[1]
    rows |= {k: x.index_select(1, columns) for k, x in batch.items() if k.startswith("column/")}
    return rows, {k: pick(x, numbers).unsqueeze(0) for k, x in targets.items()}
