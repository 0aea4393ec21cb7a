# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Graphs of an accelerator. The kernels of a function are recorded once, and later calls start all
of them together, which costs the host as little as one. Without graphs the same function is called.

A graph runs the recorded kernels again, on the same memory. So inputs are copied into tensors of
the graph, results are in the same tensors at each call, and what Python computed is as it was when
the graph was recorded: numbers, branches, and how often a loop ran. A function that waits for the
device, to read a number, cannot be recorded. It is called without a graph, and so is a function
whose graph gives other results in its first calls. A warning says so.

All code that needs hardware with graphs is in this module. The tests record and replay graphs on
the simulated device (tests/support/simulated_graph.py).
"""

import argparse
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from libtorchbeast.accelerator.devices import (
    FIRST,
    Event,
    device_stream,
    drawing,
    has_streams,
    mapped,
    tensors_in,
)
from libtorchbeast.net_check import keep_buffers

WARM_UP = 3  # calls before a graph is recorded, in which libraries choose their kernels
CHECKED = 2  # replays whose results are checked; the first has the inputs that were recorded
TOLERANCE = 0.05  # of a tensor's largest number; in bf16 a padded batch is rounded differently
SAME = 1e-6  # the tolerance for a function with the same kernels with and without a graph

logger = logging.getLogger(__name__)


def why_none(net: nn.Module, device: torch.device, flags: argparse.Namespace) -> str:
    """Why no call of the network is recorded, in words, or ""."""
    if not has_streams(device) or not (_has_own() or device.type == "cuda"):
        return f"torch has none for {device.type}"
    if not all(getattr(module, "has_graphs", True) for module in net.modules()):
        return "the network has has_graphs = False"
    return "--compile is given" if flags.compile else ""


def why_no_update(net: nn.Module, device: torch.device, flags: argparse.Namespace) -> str:
    """Why no update of the network is recorded, in words, or ""."""
    if cast(Any, net).initial_state(1):
        return "the network is recurrent: it restarts in other rows of each batch"
    return why_none(net, device, flags)


class Graph:
    """A function, recorded at one of its first calls and replayed at the later ones. If inputs have
    other shapes than the recorded ones, the function itself is called. One thread at a time may
    call this, in any stream, and must have waited for the calls before.

    Args:
        name: what it does, for warnings.
        function: takes and returns tensors on the device, in dicts, lists and tuples.
        keep: saves what `function` changes in place, and returns a function that restores it, as
            `keep_buffers` does.
        device: of all tensors.
        columns: the inputs may have fewer columns (dimension 1) than this. They are padded with
            columns of this call or of earlier ones, which are cut from the results. None: the
            inputs have the same shapes at each call.
        priority: see `device_stream`.
        tolerance: how much results may differ from the function's own, as a share of the largest.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        keep: Callable[[], Callable[[], None]],
        device: torch.device,
        columns: int | None = None,
        priority: int = 0,
        tolerance: float = TOLERANCE,
    ):
        self._name, self._function, self._keep, self._device = name, function, keep, device
        self._columns, self._priority, self._tolerance = columns, priority, tolerance
        self._is_off, self._calls, self._replays = False, 0, 0
        self._graph: Any = None
        self._inputs: list[Tensor] = []
        self._outputs: Any = None

    def __call__(self, *inputs: Any) -> Any:
        """Returns the function's results. The next call may overwrite them."""
        self._calls += 1
        if not self._is_off and self._calls > WARM_UP and self._graph is None:
            self._record(inputs)
        if self._graph is None or not self._fit(inputs):
            return self._function(*inputs)
        self._replays += 1
        restore = self._keep() if self._replays <= CHECKED else None
        self._copy(inputs)
        self._graph.replay()
        outputs = self._outputs
        if self._columns is not None:
            columns = tensors_in(inputs)[0].shape[1]
            outputs = mapped(outputs, lambda x: x[:, :columns])
        if restore is not None:
            outputs = mapped(outputs, Tensor.clone)  # because `restore` may overwrite them
            restore()
            outputs = self._checked(outputs, self._function(*inputs))
        return outputs

    def _fit(self, inputs: Any) -> bool:
        """Whether the inputs have the shapes and dtypes of those that were recorded."""
        given = tensors_in(inputs)
        return len(given) == len(self._inputs) and all(
            x.dtype == own.dtype and self._padded(x.shape) == own.shape
            for x, own in zip(given, self._inputs, strict=True)
        )

    def _padded(self, shape: torch.Size) -> torch.Size:
        if self._columns is None or shape[1] > self._columns:
            return shape
        return torch.Size((shape[0], self._columns, *shape[2:]))

    def _copy(self, inputs: Any) -> None:
        """Copies the inputs into those of the graph."""
        pairs = list(zip(self._inputs, tensors_in(inputs), strict=True))
        if self._columns is not None:
            pairs = [(own[:, : x.shape[1]], x) for own, x in pairs]
        torch._foreach_copy_([own for own, _ in pairs], [x for _, x in pairs])

    def _record(self, inputs: Any) -> None:
        # Columns that no call has filled yet are copies of the first, which the network can read.
        is_padded = self._columns is not None
        room = lambda x: (x[:, :1].expand(self._padded(x.shape)) if is_padded else x).clone()
        own = mapped(list(inputs), room)
        self._inputs = tensors_in(own)
        self._copy(inputs)
        restore, has_run = self._keep(), Event(self._device)
        stream = device_stream(self._device, self._priority)  # it begins after the work above
        try:
            # One graph at a time is recorded. `has_run` makes later work wait, also for what is
            # only recorded, because torch's sanitizer takes recorded kernels for kernels that ran.
            alone = drawing(self._device)
            fresh = _casts_are_not_kept(self._device.type)
            # Nothing would be recorded in torch's own thread for gradients.
            with alone, stream, has_run, fresh, torch.autograd.set_multithreading_enabled(False):
                with _Watch(), _WatchNew():  # libraries reserve memory at a thread's first call
                    self._function(*own)
                graph = _begin()
                try:
                    self._outputs = self._function(*own)
                except BaseException:
                    with contextlib.suppress(RuntimeError):  # which says that this has failed
                        graph.capture_end()
                    raise
                graph.capture_end()
            self._graph = graph
        except Exception as error:  # a network's own error is raised again, without a graph
            self._turn_off(str(error).splitlines()[0])
        finally:
            has_run.wait()
            restore()

    def _checked(self, outputs: Any, expected: Any) -> Any:
        """Returns `outputs`, or the function's own if two numbers differ by too much."""
        for pair in zip(tensors_in(outputs), tensors_in(expected), strict=True):
            seen, own = (x.detach().float().nan_to_num() for x in pair)
            limit = self._tolerance * (own.abs().max() + 2e-4) if own.numel() else 0.0
            if ((seen - own).abs() > limit).any():
                self._turn_off("its results are not those of the same calls without one")
                return expected
        return outputs

    def _turn_off(self, why: str) -> None:
        logger.warning("graphs: %s no (%s)", self._name, why)
        self._is_off, self._graph, self._outputs, self._inputs = True, None, None, []


def _has_own() -> bool:
    """Whether torch has graphs for any accelerator, as from 2.13 on; before, for CUDA only."""
    return hasattr(torch.accelerator, "Graph")


def _begin() -> Any:
    """Begins to record in the current stream. Other threads may go on working."""
    if _has_own():
        graph = torch.accelerator.Graph(capture_error_mode="thread_local")
        graph.capture_begin()
        return graph
    of_cuda = torch.cuda.CUDAGraph()
    of_cuda.capture_begin(capture_error_mode="thread_local")
    return of_cuda


def keep(tensors: Iterable[Tensor]) -> Callable[[], None]:
    """Returns a function that gives the tensors the values that they have now."""
    own = [x.detach() for x in tensors]
    before = [x.clone() for x in own]
    return lambda: torch._foreach_copy_(own, before)


class _Watch(TorchDispatchMode):
    """A context that raises RuntimeError at what cannot be recorded: an operation that needs a
    number on the host, or one between host and device. A recording that fails on the way would
    leave torch's memory of the device in disorder."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_read = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
        is_copy = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        devices = {x.device for x in tensors_in((args, kwargs, result)) if x.dim() or is_copy}
        is_put = func is torch.ops.aten.index_put_.default  # x[mask] = y asks for a size
        if is_read or len(devices) > 1 or (is_put and args[2].device == args[0].device):
            raise RuntimeError(f"{func} is between the host and the device")
        return result


class _WatchNew(TorchFunctionMode):
    """Does what `_Watch` does for new tensors of Python's numbers, whose copy to the device is in
    none of the operations that `_Watch` sees."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor):
            if result.device.type != "cpu":
                raise RuntimeError(f"{func.__name__} is between the host and the device")
        return result


def _casts_are_not_kept(device: str) -> torch.autocast:
    """Autocast keeps casts of weights. One from before a graph would not change with the weights,
    and nobody else may use those of a graph."""
    dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return torch.autocast(device, dtype, enabled, cache_enabled=False)


# ====================================================================================== inference
def sizes(most: int) -> list[int]:
    """The numbers of columns for which inference has graphs: a quarter, a half, and all of the
    `most` that a batch may have. A batch is padded to the next of them."""
    return sorted({-(-most // share) for share in (4, 2, 1)})


class Forward:
    """Replaces the `forward` of a network that acts, with a graph for each of a few batch sizes."""

    def __init__(self, net: nn.Module, device: torch.device, most: int):
        self._own = net.forward
        keep = functools.partial(keep_buffers, net)
        graph = functools.partial(Graph, function=net.forward, keep=keep, device=device)
        self._graphs = {
            size: graph(f"inference of {size} columns", columns=size, priority=FIRST)
            for size in sizes(most)
        }

    def __call__(self, inputs: dict[str, Tensor], core_state: tuple[Tensor, ...] = ()) -> Any:
        T, B = inputs["reward"].shape
        for size, graph in self._graphs.items():
            if B <= size and T == 1:
                return graph(inputs, core_state)
        return self._own(inputs, core_state)


def for_inference(nets: list[nn.Module], most: int, flags: argparse.Namespace) -> None:
    """Lets networks on an accelerator act by graphs, and says whether they do. Each is called by
    one thread, on batches of at most `most` columns."""
    device = next(nets[0].parameters()).device
    if device.type == "cpu":
        return
    if why := why_none(nets[0], device, flags):
        logger.info("graphs: inference no (%s)", why)
        return
    for net in nets:
        net.forward = Forward(net, device, most)
    logger.info("graphs: inference %d sizes", len(sizes(most)))
