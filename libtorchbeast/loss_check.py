# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Calls `targets` and `loss` on made-up rows, before any actor starts."""

from typing import Any

import torch
from torch import Tensor, nn

from libtorchbeast import losses, models, passes
from libtorchbeast.accelerator.devices import CPU
from libtorchbeast.flags import Flags, UserError, replace
from libtorchbeast.loggers.columns import COLUMNS
from libtorchbeast.losses import Loss, Targets
from libtorchbeast.net_check import call_own, in_words, keep_buffers, made_up_rows
from libtorchbeast.rollouts import Rollout
from libtorchbeast.spec import Spec


def check_loss(
    net: nn.Module,
    spec: Spec,
    flags: Flags,
    targets: Targets,
    loss: Loss,
    own_columns: dict[str, torch.dtype],
) -> tuple[dict[str, Any], list[str]]:
    """Returns the results of `losses.learn_from`, and the columns of the log that are the loss's
    own. The calls leave the network's buffers and torch's random state as they were.

    Args:
        net: on the CPU.
        own_columns: the dtypes of what batches say of columns, `column/NAME` [1, B].

    Raises:
        UserError: one of the two raised an error, or does not return what docs/fork.md says.
    """
    if flags.passes * flags.minibatches > 1:  # a part of many transitions, not of a single one
        flags = replace(flags, passes=2, minibatches=1)
    restore = keep_buffers(nn.ModuleList([net, models.of_learner(net)]))
    with torch.random.fork_rng(devices=[]):
        batch = _made_up(net, spec, flags, own_columns)
        checked = lambda one: _checked_targets(one, targets)
        checked_loss = lambda one: _checked_loss(one, loss)
        targets_of = lambda: losses.targets_of(net, batch, checked, flags, 0.0)
        part = next(iter(passes.parts(batch, targets_of, flags)))
        with torch.enable_grad():
            results = losses.learn_from(
                net, part.batch, part.targets, checked, checked_loss, flags, 0.0
            )
    restore()
    results |= {"sums": part.sums or results["sums"]}
    names = [*results["scalars"], *results["means"]]
    return results, [name for name in names if name not in COLUMNS]


def _made_up(
    net: nn.Module, spec: Spec, flags: Flags, own_columns: dict[str, torch.dtype]
) -> Rollout:
    """A batch [T+1, B, ...] as actors and `own_columns` make one, with rows of zeros."""
    T, B = 3 + vars(flags).get("burn_in", 0) + vars(flags).get("n_steps", 0), 2
    rows = made_up_rows(spec, T + 1, B, 0)
    state = models.initial_state(net, B)
    with torch.no_grad(), models.autocast(net, flags.precision, CPU):
        outputs, _ = models.choose_actions(net, rows, state, greedy=True)
    rows |= {name: torch.ones(T + 1, B) for name in spec.numbers} | outputs
    rows["policy_version"] = torch.zeros(T + 1, B, dtype=torch.int64)
    rows |= {f"column/{name}": torch.ones(1, B, dtype=dtype) for name, dtype in own_columns.items()}
    return rows | {f"core_state/{i}": x for i, x in enumerate(state)}


def _checked_targets(batch: losses.Transitions, targets: Targets) -> dict[str, Tensor]:
    found = _called("targets", targets, batch)
    T, B = batch.real.shape
    for name, x in found.items():
        fits = isinstance(x, Tensor) and x.shape[:2] == (T, B)
        _expect(fits, f"targets() returned {name} {in_words(x)}", f"a tensor [{T}, {B}, ...]")
    return found


def _checked_loss(batch: losses.Transitions, loss: Loss) -> dict[str, Tensor]:
    found = _called("loss", loss, batch)
    T, B = batch.real.shape
    total = found.get("total_loss")
    seen = f"loss() returned {sorted(found)}"
    _expect(total is not None, seen, "total_loss among them, which has the gradient")
    is_scalar = isinstance(total, Tensor) and total.dim() == 0 and total.is_floating_point()
    _expect(is_scalar, f"loss() returned total_loss {in_words(total)}", "a scalar of floats")
    assert isinstance(total, Tensor)
    _expect(total.requires_grad, "loss() returned a total_loss without a gradient", "one with it")
    for name, x in found.items():
        fits = isinstance(x, Tensor) and x.shape in ((), (B,), (T, B))
        expected = f"a scalar, a tensor [{T}, {B}], or a vector [{B}]"
        _expect(fits, f"loss() returned {name} {in_words(x)}", expected)
        is_like = name.startswith(("game_", "eval_", "mean_eval_return/"))
        _expect(not is_like, f"loss() returned {name}", "a name that does not begin so")
    return found


def _called(part: str, function: Any, batch: losses.Transitions) -> dict[str, Any]:
    """Returns what `targets` or `loss` returns. Raises UserError if it raises, or gives no dict."""
    try:
        found = call_own(part, function, batch)
    except UserError as error:  # perhaps it reads what another network has
        name = models.name_of(batch.net) + getattr(batch.net, "chosen", "")
        outputs = ", ".join([*batch.outputs, *models.of_learner(batch.net)])
        raise UserError(f"{error}; the network is {name}, with {outputs}") from error
    _expect(isinstance(found, dict), f"{part}() returned a {type(found).__name__}", "a dict")
    return found


def _expect(holds: bool, seen: str, expected: str) -> None:
    if not holds:
        raise UserError(f"{seen}; expected {expected}")
