# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`--mode export`: a trained policy as one file that runs without this repository."""

import contextlib
import importlib.util
import io
import logging
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import rich
import torch
from torch import Tensor, nn

from libtorchbeast.environment import Environment, Row
from libtorchbeast.errors import described
from libtorchbeast.flags import Flags, UserError, run_path
from libtorchbeast.loggers.files import write_whole
from libtorchbeast.models import CoreState, choose_actions, initial_state, seen_by_nets
from libtorchbeast.net_check import call_own
from libtorchbeast.spec import ROW_FIELDS

EXAMPLE = """
import torch
policy = torch.export.load({path!r}).module()
B = 1  # any number of environments
inputs = {{
{inputs}
}}
core_state = ({core_state})
outputs, core_state = policy(inputs, core_state)  # {outputs}
"""
SIZE = "A size became a constant: take sizes as x.shape[0], not len(x). "
COMMENTS = {
    "reward": "  # of the last action",
    "done": "  # whether an episode begins",
    "last_action": "  # as the policy gave it",
}


class Policy(nn.Module):
    """Chooses actions for one row of B environments: samples, or if `greedy` the most probable."""

    def __init__(self, net: nn.Module, greedy: bool):
        super().__init__()
        self.net, self.greedy = net, greedy

    def forward(self, inputs: dict[str, Tensor], core_state: CoreState):
        """Returns the network's outputs [B, ...], `action` first, and the next core state.

        Where `inputs["done"]` is True, `reward`, `last_action` and the core state are ignored.
        """
        row = dict(inputs)
        for name in ("reward", "last_action"):
            x = inputs[name]
            row[name] = x.masked_fill(inputs["done"].view(-1, *[1] * (x.dim() - 1)), 0)
        row = {name: x[None] for name, x in row.items()}  # [T = 1, B, ...]
        outputs, core_state = choose_actions(self.net, row, core_state, self.greedy)
        outputs = {"action": outputs["action"]} | outputs
        return {name: x[0] for name, x in outputs.items()}, core_state


def write(flags: Flags, net: nn.Module, env: Environment) -> None:
    """Writes the policy to SAVEDIR/XPID/policy.pt2, and to policy.onnx if the packages for it are
    installed. Then prints an example that uses the first file.

    Args:
        flags: name the run; --greedy says how the policy chooses its actions.
        net: the trained network, in evaluation mode.
        env: one environment.

    Raises:
        UserError: torch.export cannot trace the network, or the file cannot be written.
    """
    path = Path(run_path(flags), "policy.pt2")
    onnx = path.with_suffix(".onnx")
    for name in ("torch", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)  # otherwise they log each of their steps
    with warnings.catch_warnings(action="ignore"):
        traced = trace(Policy(net, flags.greedy).eval(), env.initial(flags.seed))
        _save(traced.program, path)
        why_not = _write_onnx(traced, onnx)
    text = f"Policy: {path}\nPolicy: {onnx}{why_not}\n{example(traced, path)}"
    rich.get_console().print(text, soft_wrap=True, markup=False, highlight=False)


def _save(program: torch.export.ExportedProgram, path: Path) -> None:
    """Replaces the file whole, or not at all. On a full disk torch itself would abort."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    unlink_older = lambda: path.with_suffix(".onnx").unlink(missing_ok=True)
    try:
        write_whole(path, buffer.getbuffer(), first=unlink_older)
    except OSError as error:
        raise UserError(f"{path} was not written: {error}") from error


class Traced(NamedTuple):
    program: torch.export.ExportedProgram
    inputs: dict[str, Tensor]  # of the trace
    core_state: CoreState
    outputs: list[str]  # their names
    sizes: Any  # dynamic_shapes of torch.export: B may change


def trace(policy: Policy, row: Row) -> Traced:
    """Turns the policy into a program of torch.

    Args:
        row: of one environment. The program gets its observation, `reward`, `done` and
            `last_action`, or the whole row if the network reads more.
    """
    rows = {name: torch.from_numpy(x.repeat(2, axis=0)) for name, x in row.items()}
    hidden = tuple(f"{group.name}/loss/" for group in getattr(policy.net, "groups", ()))
    all_inputs = {k: x for k, x in seen_by_nets(rows).items() if not k.startswith(hidden)}
    rare = ROW_FIELDS.keys() - {"reward", "done"}
    inputs = {name: x for name, x in all_inputs.items() if name not in rare}
    core_state = initial_state(policy.net, 2)  # torch.export takes a size of 1 for a constant
    try:
        outputs, _ = policy(inputs, core_state)
    except UserError as error:
        if not isinstance(error.__cause__, KeyError):
            raise
        inputs = all_inputs
        outputs, _ = policy(inputs, core_state)
    batch = torch.export.Dim("batch")
    sizes = {name: {0: batch} for name in inputs}, tuple({1: batch} for _ in core_state)
    export = lambda: torch.export.export(policy, (inputs, core_state), dynamic_shapes=sizes)
    with contextlib.redirect_stderr(io.StringIO()):  # before an error torch prints the whole graph
        try:
            program = call_own("torch.export", export)
        except UserError as error:
            hint = SIZE if "specialized it to be a constant" in str(error) else ""
            raise UserError(f"torch.export cannot trace this network. {hint}{error}") from error
    return Traced(program, inputs, core_state, list(outputs), sizes)


def _write_onnx(traced: Traced, path: Path) -> str:
    """Writes the policy as ONNX. Returns "", or why that was not possible."""
    if not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        return " was not written: pip install onnx onnxscript"
    states = [f"core_state/{i}" for i in range(len(traced.core_state))]
    try:
        torch.onnx.export(
            traced.program, (), path, dynamic_shapes=traced.sizes,
            input_names=[*traced.inputs, *states],
            output_names=[*traced.outputs, *(f"next_{name}" for name in states)],
            external_data=False, verbose=False,
        )  # fmt: skip
    except Exception as error:  # of many kinds, for what ONNX cannot express
        return f" was not written: {described(error)}"
    return ""


def example(traced: Traced, path: Path) -> str:
    """Python code that loads the policy and calls it once, where an episode begins."""
    lines = [f"    {k!r}: {_zeros(x, 0)},{COMMENTS.get(k, '')}" for k, x in traced.inputs.items()]
    return EXAMPLE.format(
        path=str(path),
        inputs="\n".join(lines).replace("'done': torch.zeros", "'done': torch.ones"),
        core_state="".join(f"{_zeros(x, 1)}, " for x in traced.core_state).rstrip(),
        outputs=", ".join(traced.outputs),
    )


def _zeros(x: Tensor, axis: int) -> str:
    """Python code for zeros like `x`, with B along the axis."""
    shape = ", ".join("B" if i == axis else str(size) for i, size in enumerate(x.shape))
    return f"torch.zeros({shape}{'' if x.dtype == torch.float32 else f', dtype={x.dtype}'})"
