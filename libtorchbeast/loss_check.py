# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Calls `targets` and `loss` on made-up rows, before any actor starts."""

import contextlib
from typing import Any

import torch
from torch import nn

from libtorchbeast import models, passes
from libtorchbeast.accelerator.devices import CPU
from libtorchbeast.flags import Flags, UserError, replace
from libtorchbeast.loggers.columns import COLUMNS
from libtorchbeast.net_check import keep_buffers, made_up_rows
from libtorchbeast.rollouts import Rollout
from libtorchbeast.spec import Spec
from libtorchbeast.transitions import Loss, Targets, learn_from, targets_of


def check_loss(
    net: nn.Module,
    spec: Spec,
    flags: Flags,
    targets: Targets,
    loss: Loss,
    batch_columns: dict[str, torch.dtype],
) -> tuple[dict[str, Any], list[str]]:
    """Calls both with observations of zeros, or of ones if that fails (as `net_check.check_net`).
    The calls leave the network's buffers and torch's random state as they were.

    Args:
        net: on the CPU.
        batch_columns: the dtypes of what batches say of columns, `column/NAME` [1, B].

    Returns:
        The results of `learn_from`, and the columns of the log that are the loss's own.

    Raises:
        UserError: one of the two raised an error, or does not return what docs/fork.md says.
    """
    own = flags
    if flags.passes * flags.minibatches > 1:  # a part of many transitions, not of a single one
        own = replace(flags, passes=2, minibatches=1)

    def results_of(value: int) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            stack.callback(keep_buffers(nn.ModuleList([net, models.of_learner(net)])))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            batch = _made_up(net, spec, own, batch_columns, value)
            find = lambda: targets_of(net, batch, targets, own, 0.0)
            part = next(iter(passes.parts(batch, find, own)))
            with torch.enable_grad():
                results = learn_from(net, part.batch, part.targets, targets, loss, own, 0.0)
            return results | {"sums": part.sums or results["sums"]}

    try:
        results = results_of(0)
    except UserError as error:
        try:
            results = results_of(1)
        except UserError:
            raise error from None
    names = [*results["scalars"], *results["means"]]
    if like := [k for k in names if k.startswith(("game_", "eval_", "mean_eval_return/"))]:
        raise UserError(f"loss() returned {like}; expected names that do not begin so")
    if own is not flags and (vectors := [*results["vectors"]]):
        raise UserError(f"loss() returned vectors {vectors}; expected none with --passes")
    return results, [name for name in names if name not in COLUMNS]


def _made_up(
    net: nn.Module, spec: Spec, flags: Flags, batch_columns: dict[str, torch.dtype], value: int
) -> Rollout:
    """A batch [T+1, B, ...] as actors and `batch_columns` make one, all observations `value`."""
    T, B = 3 + vars(flags).get("burn_in", 0) + vars(flags).get("n_steps", 0), 2
    rows = made_up_rows(spec, T + 1, B, value)
    state = models.initial_state(net, B)
    with torch.no_grad(), models.autocast(net, flags.precision, CPU):
        outputs, _ = models.choose_actions(net, rows, state, greedy=True)
    rows |= {name: torch.ones(T + 1, B) for name in spec.numbers} | outputs
    rows["policy_version"] = torch.zeros(T + 1, B, dtype=torch.int64)
    rows |= {f"column/{name}": torch.ones(1, B, dtype=x) for name, x in batch_columns.items()}
    return rows | {f"core_state/{i}": x for i, x in enumerate(state)}
