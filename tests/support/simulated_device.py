# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Simulated accelerators sim:0 and sim:1, for tests of the order of events without a GPU.

Everything is computed at once, on the CPU. What a GPU would do later is kept as books:

- Each kernel runs in its thread's current stream. Vector clocks say which kernels a stream, an
  event or a thread of the host has waited for. Memory that one stream writes and another reads or
  writes, without an order between them, raises Race. Memory that is freed while a stream may use it
  for which `record_stream` was not called is noted in `errors`.
- A copy into page-locked memory delivers rubbish until the host has waited for it. Page-locked
  memory that changes before the host has waited for the copy out of it raises Race.
- Tensors of two devices, or of a device and the host, do not mix. The host cannot read a device's
  memory.
- `counts` has the kernels, the copies in either direction, and the waits of the host.

What this cannot see: CUDA's kernels and libraries, TF32, time, and drivers.

`installed()` makes it the accelerator of torch, and replaces torch.Stream, torch.Event and
torch.accelerator.current_stream for as long. It stands on torch's experimental support for devices
in Python, so it is pinned to one version of torch; `needs_simulated_device` skips a test elsewhere.
"""

import collections
import contextlib
import functools
import gc
import itertools
import threading
import types
import weakref
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

TORCH = "2.13"  # the version whose interface this file uses
NAME, NUM_DEVICES = "sim", 2
aten = torch.ops.aten

is_possible = torch.__version__.startswith(f"{TORCH}.")
needs_simulated_device = pytest.mark.skipif(
    not is_possible, reason=f"the simulated device stands on the interface of torch {TORCH}"
)


class Race(RuntimeError):
    """Two uses of memory have no order between them."""


counts: collections.Counter[str] = collections.Counter()
errors: list[str] = []  # what cannot be raised where it happens
broken: set[int] = set()  # the devices whose driver fails as soon as they are used
can_pin = True  # whether memory can be page-locked

_books = threading.RLock()  # protects all clocks and books
_is_installed = False


# ============================================================================= clocks and streams
Clock = dict[int, int]  # a stream's number -> how many of its kernels are known to have ended


def join(clock: Clock, other: Clock) -> None:
    """Whoever owns `clock` now also knows what `other` says."""
    for stream, count in other.items():
        clock[stream] = max(count, clock.get(stream, 0))


_clocks: weakref.WeakKeyDictionary[threading.Thread, Clock] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


class _Thread(threading.local):
    """What a thread of the host has waited for, and the streams that it has entered."""

    def __init__(self):
        self.clock: Clock = {}
        _clocks[threading.current_thread()] = self.clock
        self.streams: list[Stream] = []
        self.stack = contextlib.ExitStack()
        self.graph = None  # that is being recorded (tests/support/simulated_graph.py)


# By default torch computes a device's gradients in another thread, which has entered no stream.
_gradients_in_this_thread = functools.partial(torch.autograd.set_multithreading_enabled, False)
_thread = _Thread()


class Stream:
    """Stands for torch.Stream. Its clock says what its next kernel comes after."""

    def __init__(self, device=None, priority: int = 0):
        self.device, self.priority = _device(device), priority
        self.number, self.clock = next(_numbers), {}

    def begin_kernel(self) -> int:
        """Returns the kernel's number in this stream. It comes after all that the launching thread
        has waited for."""
        join(self.clock, _thread.clock)
        self.clock[self.number] = self.clock.get(self.number, 0) + 1
        return self.clock[self.number]

    def wait_stream(self, other: "Stream") -> None:
        with _books:
            join(self.clock, other.clock)

    def synchronize(self) -> None:
        _wait_for(self.clock)

    def __enter__(self) -> "Stream":
        _thread.streams.append(self)
        _thread.stack.enter_context(_gradients_in_this_thread())
        return self

    def __exit__(self, *error) -> None:
        assert _thread.streams.pop() is self
        if not _thread.streams:
            _thread.stack.close()


class Event:
    """Stands for torch.Event."""

    def __init__(self, device=None):
        self.clock: Clock = {}

    def record(self, stream: Stream) -> None:
        with _books:
            self.clock = dict(stream.clock)

    def wait(self, stream: Stream) -> None:
        with _books:
            join(stream.clock, self.clock)


class RLock:
    """Stands for threading.RLock. A thread that gets it knows what the one before had waited for.
    Threads learn of each other's waits only by this and by `Thread.join`."""

    def __init__(self):
        self._lock, self._clock = threading.RLock(), {}

    def acquire(self, *args, **kwargs) -> bool:
        is_taken = self._lock.acquire(*args, **kwargs)
        if is_taken:
            join(_thread.clock, self._clock)
        return is_taken

    def release(self, *_) -> None:
        join(self._clock, _thread.clock)
        self._lock.release()

    __enter__, __exit__ = acquire, release


_join_thread = threading.Thread.join


def _join(thread: threading.Thread, timeout: float | None = None) -> None:
    """Stands for Thread.join."""
    _join_thread(thread, timeout)
    if not thread.is_alive():
        join(_thread.clock, _clocks.get(thread, {}))


def _device(device=None) -> torch.device:
    """The device with its number, which is that of the entered stream if none is given."""
    device = torch.device(NAME if device is None else device)
    assert device.type == NAME, f"expected a simulated device, seen {device}"
    if device.index is None:
        index = _thread.streams[-1].device.index if _thread.streams else 0
        device = torch.device(NAME, index)
    return device


@functools.cache
def default_stream(device: torch.device) -> Stream:
    return Stream(device)


def current_stream(device=None) -> Stream:
    device = _device(device)
    entered = [stream for stream in _thread.streams if stream.device == device]
    return entered[-1] if entered else default_stream(device)


# ================================================================================ what is pending
# Copies between the host and a device for which the host has not waited, and what to do then.
_pending: list[tuple["Use", Callable[[], object]]] = []


def _wait_for(clock: Clock) -> None:
    """The calling thread waits for all that the clock says."""
    counts["waits"] += 1
    with _books:
        join(_thread.clock, clock)
        ended = [p for p in _pending if p[0].is_before(_thread.clock)]
        _pending[:] = [p for p in _pending if p not in ended]
    for _, end in ended:
        end()


def finish() -> None:
    """Ends all copies, and raises what any of them or any freed memory has done wrong."""
    ended, _pending[:] = list(_pending), []
    for _, end in ended:
        end()
    if errors:
        raise Race("; ".join(errors))


# ============================================================================ memory and its books
class Use(NamedTuple):
    """A kernel that reads or writes a block."""

    stream: int
    number: int  # in its stream
    name: str

    def is_before(self, clock: Clock) -> bool:
        return clock.get(self.stream, 0) >= self.number


class Block:
    """The books of one piece of a device's memory."""

    def __init__(self, stream: Stream, written: Use | None = None):
        self.stream = stream  # in which it was allocated, and in which it will be given to others
        self.graph = _thread.graph and _thread.graph.adopt(self)  # to which it belongs for ever
        self.written = written
        self.read: dict[int, Use] = {}  # since then, by stream
        self.recorded = {stream.number}  # the streams that are known to use it

    def uses(self) -> list[Use]:
        return [*filter(None, [self.written]), *self.read.values()]

    def __del__(self):
        if self.graph is not None:
            return
        known = dict(self.stream.clock)
        join(known, _thread.clock)
        for use in self.uses():
            if use.stream not in self.recorded and not use.is_before(known):
                errors.append(f"memory freed while {use.name} in stream {use.stream} may use it")


def _begin(stream: Stream, name: str, read: list[Block], written: list[Block]) -> Use:
    """Enters a kernel or a copy, and its uses of memory, into the books."""
    if stream.device.index in broken:
        raise RuntimeError(f"{stream.device}: the driver does not answer\nand a second line")
    with _books:
        own = Use(stream.number, stream.begin_kernel(), name)
        for block in written:
            for use in block.uses():
                if not use.is_before(stream.clock):
                    raise Race(f"{name} overwrites what {use.name} in another stream may still use")
            block.written, block.read = own, {}
        for block in read:
            if block not in written:
                if block.written and not block.written.is_before(stream.clock):
                    other = block.written.name
                    raise Race(f"{name} reads what {other} in another stream may still write")
                block.read[stream.number] = own
    return own


class SimTensor(torch.Tensor):
    """A tensor on a simulated device: one on the CPU, `inner`, and the books of its memory."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, block: Block):
        like = dict(strides=inner.stride(), storage_offset=inner.storage_offset())
        like |= dict(dtype=inner.dtype, device=block.stream.device)
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **like)

    def __init__(self, inner: torch.Tensor, block: Block):
        self.inner, self.block = inner, block

    def __repr__(self) -> str:
        return f"SimTensor({self.inner!r}, device={self.device})"

    def record_stream(self, stream: Stream) -> None:
        self.block.recorded.add(stream.number)

    def tolist(self) -> list:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        raise Race("the host asks for a pointer into a device's memory")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _execute(func, args, kwargs or {})


# ========================================================================= page-locked memory
_pinned: dict[int, weakref.ref] = {}  # the address of each page-locked storage


def is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in _pinned


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    if not can_pin:
        raise RuntimeError(f"{NAME} has no page-locked memory")
    storage = tensor.untyped_storage()
    if pointer := storage.data_ptr():
        _pinned[pointer] = weakref.ref(storage, lambda _: _pinned.pop(pointer, None))
    return tensor


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


# ======================================================================================== copies
def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    """`target.copy_(source)` between the host and a device, or between two devices."""
    if not isinstance(target, SimTensor):
        _copy_to_host(target, source, non_blocking)
    elif not isinstance(source, SimTensor):
        _copy_to_device(target, source, non_blocking)
    else:
        ours, others = current_stream(source.device), current_stream(target.device)
        ours.wait_stream(others)  # as CUDA does it: in the source's stream, with a barrier
        _begin(ours, "copy between devices", [source.block], [target.block])
        others.wait_stream(ours)
        counts["between_devices"] += 1
        target.inner.copy_(source.inner)


def _copy_to_host(target: torch.Tensor, source: SimTensor, non_blocking: bool) -> None:
    stream = current_stream(source.device)
    own = _begin(stream, "copy to host", [source.block], [])
    counts["to_host"] += 1
    value = source.inner.clone()
    deliver = torch.no_grad()(lambda: target.copy_(value))
    if non_blocking and is_pinned(target):
        target.copy_(torch.full_like(_bytes(target), 0x7F).view(target.dtype).view(target.shape))
        with _books:
            _pending.append((own, deliver))
    else:
        _wait_for(stream.clock)
        deliver()


def _copy_to_device(target: SimTensor, source: torch.Tensor, non_blocking: bool) -> None:
    stream = current_stream(target.device)
    own = _begin(stream, "copy to device", [], [target.block])
    counts["to_device"] += 1
    target.inner.copy_(source)
    if not (non_blocking and is_pinned(source)):
        _wait_for(stream.clock)
        return
    before = _bytes(source).clone()

    def check() -> None:
        if not torch.equal(_bytes(source), before):
            raise Race("page-locked memory changed before the copy from it had ended")

    with _books:
        _pending.append((own, check))


# ======================================================================================= kernels
# Views and allocations, which run no kernel.
_NO_KERNELS = (
    "view", "_unsafe_view", "alias", "detach", "t.", "transpose", "as_strided", "expand",
    "select.int", "slice.Tensor", "unsqueeze", "squeeze", "permute", "_reshape_alias", "split",
    "unbind", "chunk", "empty", "lift_fresh", "narrow",
)  # fmt: skip
# The host waits for these, because it needs their result or its shape.
_WAIT = {
    aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default,
    aten.nonzero.default, aten.masked_select.default, aten._unique2.default,
    aten.unique_consecutive.default,
}  # fmt: skip
# These take indices that are on the host.
_MIX = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


def _execute(func, args: tuple, kwargs: dict):
    """Runs an operation of which at least one argument is a SimTensor."""
    if func is aten.copy_.default and args[0].device != args[1].device:
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        if _thread.graph:
            _thread.graph.refuse("a copy from or to the host, or another device")
        _copy(args[0], args[1], bool(non_blocking))
        return args[0]
    if func is aten._to_copy.default and "device" in kwargs:
        return _to_copy(*args, **kwargs)
    inputs = _sims((args, kwargs))
    stream = current_stream(inputs[0].device)
    name = str(func).removeprefix("aten.")
    _check_devices(name, inputs, () if func in _MIX else (args, kwargs))
    own, has_kernel = None, not name.startswith(_NO_KERNELS)
    if graph := _thread.graph if has_kernel else None:
        graph.begin(name, func, args, kwargs)
    elif has_kernel:
        own = _begin(stream, name, *_uses(func, args, kwargs))
        counts["kernels"] += 1
    if func in _WAIT:
        _wait_for(stream.clock)
    kwargs = {k: v for k, v in kwargs.items() if k != "device"}
    inner = pytree.tree_map(lambda x: x.inner if isinstance(x, SimTensor) else x, (args, kwargs))
    result = (function := _REPLACED.get(func, func))(*inner[0], **inner[1])
    if graph:
        graph.end(function, inner, result)
    blocks = {x.inner.untyped_storage().data_ptr(): x.block for x in inputs if x.numel()}

    def wrapped(x):
        if not isinstance(x, torch.Tensor):
            return x
        block = blocks.get(x.untyped_storage().data_ptr())
        return SimTensor(x, Block(stream, own) if block is None else block)

    outputs = pytree.tree_map(wrapped, result)
    return torch.utils._python_dispatch.return_and_correct_aliasing(func, args, kwargs, outputs)


def _tensors(tree, kind=torch.Tensor) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, kind)]


_sims = functools.partial(_tensors, kind=SimTensor)


def _check_devices(name: str, inputs: list[SimTensor], arguments) -> None:
    others = [x for x in _tensors(arguments) if not isinstance(x, SimTensor) and x.dim()]
    seen = {str(x.device) for x in (*inputs, *others)}
    if len(seen) > 1:
        raise RuntimeError(f"{name}: expected all tensors on one device, seen {sorted(seen)}")


def _uses(func, args: tuple, kwargs: dict) -> tuple[list[Block], list[Block]]:
    """The memory that an operation reads, and the memory that it writes."""
    read: list[Block] = []
    written: list[Block] = []
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        (written if writes else read).extend(x.block for x in _sims(value))
    return read, written


def _to_copy(source: SimTensor, *, device, dtype=None, non_blocking=False, **options):
    """`source.to(device, dtype)`, which always copies."""
    options.pop("pin_memory", None)
    dtype = dtype or source.dtype
    target = torch.empty_like(source.inner, dtype=dtype)
    if torch.device(device).type == NAME:
        target = SimTensor(target, Block(current_stream(device)))
    elif non_blocking:
        _pin(target)
    target.copy_(source, non_blocking=non_blocking)
    return target


def _lstm_cell(input_gates, hidden_gates, c, input_bias=None, hidden_bias=None):
    """What a GPU computes of one step of an LSTM in one kernel. The CPU has none for it."""
    gates = input_gates + hidden_gates
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(grad_h, grad_c, c, next_c, gates, has_bias):
    i, f, g, o = gates.chunk(4, 1)
    tanh = next_c.tanh()
    grad_h = torch.zeros_like(c) if grad_h is None else grad_h
    by_c = grad_h * o * (1 - tanh * tanh) + (0 if grad_c is None else grad_c)
    by_i, by_f = by_c * g * i * (1 - i), by_c * c * f * (1 - f)
    by_g, by_o = by_c * i * (1 - g * g), grad_h * tanh * o * (1 - o)
    by_gates = torch.cat([by_i, by_f, by_g, by_o], 1)
    return by_gates, by_c * f, by_gates.sum(0) if has_bias else None


_REPLACED = {
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
}


# ================================================================================== installation
def _new(size, dtype=None, device=None, memory_format=None, stride=None, **_) -> SimTensor:
    dtype = dtype or torch.get_default_dtype()
    if stride is not None:
        inner = torch.empty_strided(size, stride, dtype=dtype)
    else:
        inner = _empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format)
    return SimTensor(inner, Block(current_stream(device)))


_empty = torch.empty


def _empty_or_pinned(*args, pin_memory: bool = False, **kwargs) -> torch.Tensor:
    """Stands for torch.empty, which can page-lock memory for devices in C++ only."""
    tensor = _empty(*args, **kwargs)
    return _pin(tensor) if pin_memory else tensor


def _register() -> list[torch.library.Library]:
    """Makes the device known to torch, for as long as the process lives."""
    from torch.utils import backend_registration

    class Hook(torch._C._acc.PrivateUse1Hooks):
        def is_available(self):
            return _is_installed

        is_built = is_available

        def has_primary_context(self, index):
            return True

    backend_registration._setup_privateuseone_for_python_backend(NAME, _module(), Hook())
    library = torch.library.Library("aten", "IMPL")
    strided = lambda size, stride, **options: _new(size, stride=stride, **options)
    library.impl("empty.memory_format", _new, "PrivateUse1")
    library.impl("empty_strided", strided, "PrivateUse1")
    return [library]


def _module() -> types.ModuleType:
    """Stands for a module such as torch.cuda."""
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: _is_installed
    module.device_count = lambda: NUM_DEVICES if _is_installed else 0
    module.current_device = lambda: _device().index
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    module._is_in_bad_fork = lambda: False
    random_states = [torch.full((8,), index, dtype=torch.uint8) for index in range(NUM_DEVICES)]
    module.manual_seed_all = lambda seed: None
    module.get_rng_state_all = lambda: [state.clone() for state in random_states]
    module.set_rng_state = lambda state, index: random_states[index].copy_(state)
    return module


@contextlib.contextmanager
def installed():
    """The context in which torch has the simulated devices. It ends with `finish`."""
    from tests.support.simulated_graph import Graph

    gc.collect()  # what an earlier test has left is freed before the books are emptied
    counts.clear(), errors.clear(), broken.clear(), _pending.clear()
    with pytest.MonkeyPatch.context() as patch, _gradients_in_this_thread():
        patch.setattr(torch, "Stream", Stream)
        patch.setattr(torch, "Event", Event)
        patch.setattr(torch, "empty", _empty_or_pinned)
        patch.setattr(threading.Thread, "join", _join)
        patch.setattr(torch.accelerator, "current_stream", current_stream)
        patch.setattr(torch.accelerator, "Graph", Graph)
        patch.setitem(globals(), "_is_installed", True)
        yield
        finish()


_libraries = _register() if is_possible else []
DEVICE, OTHER = [torch.device(NAME, i) if is_possible else torch.device("cpu") for i in (0, 1)]
