# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Checks a network and a loss against the contract of docs/fork.md, before a run starts and while
it runs."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from libtorchbeast.accelerator.devices import tensors_in
from libtorchbeast.distributions import Distribution
from libtorchbeast.errors import described, place_of
from libtorchbeast.flags import UserError
from libtorchbeast.spec import ROW_FIELDS, Spec, is_row_key

VERY_LARGE = 1e6  # with observations above this, a network's numbers may overflow
HEADS = ("policy_logits", "baseline")


def check_net(net: Any, whole: Spec) -> None:
    """Checks a network that `make_net` makes, with calls on rows of zeros, or of ones if it cannot
    read zeros, in the precision of the caller's autocast context. The calls leave the network's
    buffers and torch's random state as they were. `whole` also has the observations that the
    network does not get. Raises UserError if a part of the network, its state or its outputs is not
    what docs/fork.md says."""
    spec = whole.for_nets
    for name, module in net.named_modules():
        seen = f"has {type(module).__name__} in training mode ({name or 'itself'})"
        why = "with which actors and learner would compute different policies"
        instead = "for example LayerNorm instead of BatchNorm, and dropout 0"
        _expect(not (module.training and _varies(module)), f"{seen}, {why}", instead)
    T, B = 3, 2  # unequal, so that exchanged axes are noticed
    has_state = hasattr(net, "initial_state")
    _expect(has_state, "has no method initial_state", "one that returns (), or a core state")
    state = _called(net, "initial_state", B)
    is_state = isinstance(state, tuple) and all(_is_state(x, B) for x in state)
    expected = f"a tuple of float tensors [layers, {B}, H], or ()"
    _expect(is_state, f"gives {in_words(state)} as initial_state({B})", expected)
    rows, result = _first_call(net, spec, T, B, state)
    _check_result(result, rows, state, net.distribution)
    taken = sorted(result[0].keys() & whole.observations.keys())
    _expect(not taken, f"returned outputs {taken}", "names that observations do not have")
    one = {name: values[:1, :1] for name, values in rows.items()}  # axes of length 1 must stay
    state_of_one = _called(net, "initial_state", 1)
    result = _called(net, "forward", one, state_of_one)
    _check_result(result, one, state_of_one, net.distribution)
    if state:
        _check_restart(net, {name: values[:1] for name, values in rows.items()}, state)
    if _check_repeats(net, ones := made_up_rows(spec, T, B, 1), state):
        for name, x in rows.items():
            ones[name][-1, 0] = x[-1, 0]  # rows that are all equal would not show a mean over them
        _check_steps(net, ones, state)


class InputsChanged(UserError):
    """A network has changed its inputs in place."""


def call_own(part: str, function: Callable[..., Any], *inputs: Any) -> Any:
    """Returns `function(*inputs)`, a call of the network's `part`, or of `targets` or `loss`.
    Raises UserError if it raised an error. The message names the line, and what a forward may
    read."""
    try:
        return function(*inputs)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        given = f"; its inputs are {_inputs_said(inputs[0])}" if part == "forward" else ""
        who = f"{part}() raised" if part in ("targets", "loss") else "Your network raised"
        where = "" if part in ("targets", "loss") else f" in {part}"
        said = f"{who} {described(error)}{where}{place_of(error)}{given}"
        raise UserError(said) from error


def check_dtypes(outputs: dict[str, Any]) -> None:
    """Raises UserError if an output that decides the loss is in bfloat16. If the CPU lacks it, only
    calls on a GPU can show that."""
    for name in HEADS:
        seen = f"returned `{name}` in bfloat16"
        heads = "compute the heads inside torch.autocast(..., enabled=False), as monobeast.Net does"
        is_bf16 = getattr(outputs[name], "dtype", None) == torch.bfloat16
        _expect(not is_bf16, seen, f"float32: {heads}")


def check_finite(net: nn.Module, rows: dict[str, Tensor], outputs: dict[str, Tensor]) -> None:
    """Checks what the network returned for `rows` while it acts. `outputs` are on the CPU. Raises
    UserError if `policy_logits` has NaN or infinity. The text is that of `why_not_finite`."""
    if not np.isfinite(outputs["policy_logits"].numpy()).all():  # faster than torch.isfinite
        raise UserError(why_not_finite(net, rows, ["policy_logits"]))


def check_rows(rows: dict[str, Tensor], actions: Distribution) -> None:
    """Checks what decides a loss. A batch that a fork has made might have 0 and 1 for False and
    True, of which `~` makes other numbers. Raises UserError if the batch has another dtype or
    shape."""
    T, B = rows["reward"].shape[0], rows["done"].shape[1]
    known: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "done": (torch.bool, (T, B)),
        "terminated": (torch.bool, (T, B)),
        "reward": (torch.float32, (T, B)),
        "action": (actions.action_dtype, (T, B, *actions.action_shape)),
        "policy_logits": (torch.float32, (T, B, actions.num_logits)),
    }
    for name, (dtype, shape) in known.items():  # of which a replay has no logits, for example
        expected = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
        if name in rows and (seen := in_words(rows[name])) != expected:
            raise UserError(f"A batch has {name} {seen}; expected {expected}")


def why_not_finite(net: nn.Module, rows: dict[str, Tensor], names: list[str]) -> str:
    """Says why the network's outputs `names` have NaN or infinity for `rows`: because of a very
    large observation, if there is one, else because of the network. Returns "" if neither is so."""
    own = [k for k in rows if not is_row_key(k)]
    ends = {k: [x.item() for x in rows[k].double().aminmax()] for k in own if rows[k].numel()}
    sizes = {k: max(-low, high) for k, (low, high) in ends.items()}
    name = max(sizes, key=lambda k: sizes[k], default="")
    if name and sizes[name] > VERY_LARGE:
        seen = f"Observation {name!r} has numbers as large as {sizes[name]:g}"
        return f"{seen}, with which the network or its loss overflows: scale it down in create_env"
    if not names:
        return ""
    code = inspect.unwrap(type(net).forward).__code__
    seen = ", ".join(f"{k} from {low:g} to {high:g}" for k, (low, high) in ends.items())
    return (
        f"Your network returned NaN or infinity in {' and '.join(names)} for {seen}; expected "
        f"finite numbers (forward is {code.co_filename}:{code.co_firstlineno})"
    )


def _inputs_said(rows: dict[str, Tensor]) -> str:
    own = [f"{name} {in_words(x)}" for name, x in rows.items() if name not in ROW_FIELDS]
    return f"{', '.join(own)}, and {list(rows['done'].shape)} each: {', '.join(ROW_FIELDS)}"


@torch.no_grad()
def _called(net: nn.Module, part: str, *inputs: Any, drawn: int = 0) -> Any:
    """Returns what the network's `part` returns, and leaves its buffers and torch's random state as
    they were. So each call gets the same random numbers, unless some are `drawn` before it."""
    restore = keep_buffers(net)
    with torch.random.fork_rng(devices=[]):
        torch.rand(drawn)
        function = net if part == "forward" else getattr(net, part)
        given = inputs[0] | dict(enumerate(inputs[1])) if part == "forward" else {}
        # Each change raises a tensor's version.
        before = {k: x._version for k, x in given.items() if not x.is_inference()}
        try:
            result = call_own(part, function, *inputs)
        finally:
            restore()
    if changed := [name for name in before if given[name]._version > before[name]]:
        raise InputsChanged(f"Your network changed its inputs {changed} in place; expected copies")
    return result


def keep_buffers(net: nn.Module) -> Callable[[], None]:
    """Returns a function that gives the network's buffers the values that they have now."""
    buffers = {name: (buffer, buffer.clone()) for name, buffer in net.named_buffers()}

    def restore() -> None:
        for name, (buffer, before) in buffers.items():
            buffer.copy_(before)
            owner, _, own_name = name.rpartition(".")
            net.get_submodule(owner)._buffers[own_name] = buffer  # it may have been replaced

    return restore


def _first_call(net: nn.Module, spec: Spec, T: int, B: int, state: tuple) -> tuple[dict, Any]:
    """Returns rows and what the network returned for them. An observation space may lack zeros, so
    a network that raises or returns NaN for them is called with ones."""
    failures = []
    for value in (0, 1):
        rows = made_up_rows(spec, T, B, value)
        try:
            result = _called(net, "forward", rows, state)
        except UserError as error:
            failures.append(error)
            continue
        if value == 1 or all(x.isfinite().all() for x in tensors_in(result)):
            return rows, result
    raise failures[0]


def _check_result(result: Any, rows: dict, state: tuple, actions: Distribution) -> None:
    is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], dict)
    expected = "a pair: a dict of outputs, and the core state"
    _expect(is_pair, f"returned {in_words(result)}", expected)
    outputs, next_state = result
    _check_outputs(outputs, rows, actions)
    # A state in bfloat16 is accepted, because rollouts keep it in float32.
    seen, expected = (in_words(x).replace("bfloat16", "float32") for x in (next_state, state))
    _expect(seen == expected, f"returned the core state {seen}", f"{expected}, as initial_state")


def _check_repeats(net: nn.Module, rows: dict[str, Tensor], state: tuple[Tensor, ...]) -> bool:
    """Two calls must return the same, although they draw different random numbers. The rows are
    ones, because dropout does not change zeros. Returns whether the network can read them."""
    try:
        with torch.autocast("cpu", enabled=False):  # which rounds
            calls = [_called(net, "forward", rows, state, drawn=count) for count in (0, 1)]
    except InputsChanged:
        raise
    except UserError:
        return False
    for name in HEADS:
        first, second = (outputs[name] for outputs, _ in calls)
        differ = (first - second).abs().max() > 1e-3 * first.abs().max()  # not if one is NaN
        seen = f"returned two different {name} for the same inputs, in training mode"
        why = "with which actors and learner would compute different policies"
        instead = "the same: no F.dropout(..., training=self.training), no change of its inputs"
        _expect(not differ, f"{seen}, {why}", instead)
    return True


def _check_restart(net: nn.Module, row: dict[str, Tensor], state: tuple[Tensor, ...]) -> None:
    """Calls with a row that begins an episode must return the same, whatever the state."""

    def results(state: tuple[Tensor, ...]) -> list[Tensor]:
        outputs, next_state = _called(net, "forward", row, state)
        return [outputs["policy_logits"], outputs["baseline"], *(x.float() for x in next_state)]

    pairs = zip(results(state), results(tuple(x + 1 for x in state)), strict=True)
    if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in pairs):
        raise UserError(
            "Your network does not restart its core state where `done` is true; pass the state "
            "through models.unroll, or replace it by initial_state there (docs/fork.md)"
        )


def _check_steps(net: nn.Module, rows: dict[str, Tensor], state: tuple[Tensor, ...]) -> None:
    """A learner's call with all rows must give the policy of an actor's calls with one row each,
    also where an episode begins in between, and of a column alone."""
    rows["done"][1, 0] = True
    each: list[Tensor] = []
    with torch.autocast("cpu", enabled=False):
        whole, _ = _called(net, "forward", rows, state)
        state = tuple(x[:, :1] for x in state)
        for t in range(len(rows["done"])):
            row = {name: x[t : t + 1, :1] for name, x in rows.items()}
            outputs, state = _called(net, "forward", row, state)
            each.append(outputs["policy_logits"])
    first, second = whole["policy_logits"][:, :1], torch.cat(each)
    differ = (first - second).abs().max() > 0.02 * first.abs().max()  # more than bfloat16 rounds
    seen = f"returned other policy_logits for {len(each)} rows at once than for one after the other"
    why = "a core state that restarts at each `done` (models.unroll), and no other use of time"
    _expect(not differ, seen, f"the same: {why} (docs/fork.md)")


def _check_outputs(outputs: dict[str, Any], rows: dict[str, Tensor], actions: Distribution) -> None:
    T, B = rows["done"].shape
    own = outputs.keys() - {*HEADS, "action"}
    in_rows = sorted(name for name in own if name in rows or is_row_key(name))
    _expect(not in_rows, f"returned outputs {in_rows}", "names that rows do not have")
    lacks = sorted({*HEADS} - outputs.keys())
    _expect(not lacks, f"returned the outputs {sorted(outputs)}", f"{lacks} among them")
    known = {
        "policy_logits": torch.zeros(T, B, actions.num_logits),
        "baseline": torch.zeros(T, B),
        "action": torch.zeros(T, B, *actions.action_shape, dtype=actions.action_dtype),
    }
    check_dtypes(outputs)
    for name, seen in outputs.items():
        shape = tuple(getattr(seen, "shape", ()))
        fits = in_words(seen) == in_words(known[name]) if name in known else shape[:2] == (T, B)
        expected = in_words(known[name]) if name in known else f"a tensor [{T}, {B}, ...]"
        where = f"for inputs [{T}, {B}, ...]"
        _expect(fits, f"returned {name} {in_words(seen)} {where}", expected)
    for name in HEADS:
        is_finite = bool(outputs[name].isfinite().all())
        seen = f"returned NaN or infinity in {name} for observations of zeros and of ones"
        _expect(is_finite, seen, "finite numbers")


def check_tensors(part: str, found: Any) -> None:
    """Raises UserError if `targets`, `loss` or `statistics` returned no dict {name: tensor}."""
    expect(isinstance(found, dict), f"{part}() returned {in_words(found)}", "a dict")
    wrong = [k for k in found if not (isinstance(k, str) and k.isprintable())]
    expect(not wrong, f"{part}() returned a dict with the keys {wrong}", "names")
    for name, x in found.items():
        expect(isinstance(x, Tensor), f"{part}() returned {name} {in_words(x)}", "a tensor")


def check_targets(found: dict[str, Any], T: int, B: int) -> None:
    """Raises UserError if `targets` returned anything but tensors [T, B, ...]."""
    for name, x in found.items():
        seen = f"targets() returned {name} {in_words(x)}"
        expect(x.shape[:2] == (T, B), seen, f"[{T}, {B}, ...]")


def check_results(found: dict[str, Any], T: int, B: int, taken: set[str]) -> None:
    """Raises UserError if `loss` did not return what docs/fork.md says, or a `taken` name."""
    seen, total = f"loss() returned {sorted(found)}", found.get("total_loss")
    expect("total_loss" in found, seen, "total_loss among them, which has the gradient")
    is_scalar = total is not None and total.dim() == 0 and total.requires_grad
    seen = f"loss() returned total_loss {in_words(total)}"
    expect(is_scalar, seen, "a scalar of floats with a gradient, such as batch.mean of a term")
    names = sorted(found.keys() & (taken | {""}))
    expect(not names, f"loss() returned {names}, which are taken", "other names")
    for name, x in found.items():
        expected = f"a scalar, a tensor [{T}, {B}], or a vector [{B}]"
        fits = x.shape in ((), (B,), (T, B))
        expect(fits, f"loss() returned {name} {in_words(x)}", expected)


def expect(holds: bool, seen: str, expected: str) -> None:
    if not holds:
        raise UserError(f"{seen}; expected {expected}")


def _expect(holds: bool, seen: str, expected: str) -> None:
    expect(holds, f"Your network {seen}", expected)


def _varies(module: nn.Module) -> bool:
    """Whether a module in training mode computes other outputs in other batches or calls."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def made_up_rows(spec: Spec, T: int, B: int, value: int) -> dict[str, Tensor]:
    """Rows as an actor gives them to a network, whose observations have `value` everywhere. The
    first row begins an episode."""
    leaves = spec.observations | {name: ((), dtype) for name, dtype in ROW_FIELDS.items()}
    leaves["last_action"] = (spec.actions.shape, spec.actions.dtype.name)
    rows = {k: torch.from_numpy(np.zeros((T, B, *s), dtype)) for k, (s, dtype) in leaves.items()}
    for name in spec.observations:
        rows[name].fill_(value)
    rows["done"][0] = True
    return rows


def _is_state(value: Any, B: int) -> bool:
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return is_float and value.dim() >= 2 and value.shape[1] == B


def in_words(value: Any) -> str:
    """What a network returned, in words: tensors as dtype[shape], anything else by its type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(in_words, value))})"
    return f"a {type(value).__name__}"
