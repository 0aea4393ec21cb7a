# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Everything that differs between the CPU and an accelerator: CUDA, ROCm, XPU or MPS, whichever
torch has. It chooses and opens devices, and moves tensors to them and back while they work on other
things. On the CPU the functions that move tensors or order streams do nothing.

The host waits before it reads what a device writes. A stream waits for an `Event` before it writes
memory that another stream reads. Memory that another stream may still use when it is freed has been
passed to `use_in_this_stream`. The tests check this on tests/support/simulated_device.py.
"""

import argparse
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from libtorchbeast.distributed import ranks
from libtorchbeast.flags import Flags, UserError, require
from libtorchbeast.shared_memory import Shapes, required_bytes, views

CPU = torch.device("cpu")
FIRST = -1  # the priority of a stream whose kernels start before those of other streams

logger = logging.getLogger(__name__)


# ==================================================================================== which device
def choose(draft: argparse.Namespace, inference: str | None = None) -> None:
    """Chooses --learner_device, --inference_device (`inference`, or the learner's device) and
    --num_learner_threads if they were not given. A deterministic run (MonoBeast with --num_actors
    0) learns on the CPU, so that its numbers are the same on every machine. So does one on a Mac,
    whose accelerator nobody has measured. Raises UserError if torch cannot use one of the devices.
    """
    if draft.learner_device is None:
        found = torch.accelerator.current_accelerator(check_available=True)
        is_usual = found is not None and found.type != "mps"
        draft.learner_device = str(found) if is_usual and draft.num_actors != 0 else "cpu"
    if draft.inference_device is None:
        draft.inference_device = inference or draft.learner_device
    for name in ("learner_device", "inference_device"):
        own, device = ranks.local_rank(), getattr(draft, name)
        if own is not None and ":" not in device and device != "cpu":
            device = f"{device}:{own}"
            setattr(draft, name, device)
        require(draft, name, exists(device), f"cpu or an accelerator, and {accelerators()}")
    if draft.num_learner_threads is None:
        is_one = is_cpu(draft.learner_device) or draft.num_actors == 0
        draft.num_learner_threads = 1 if is_one else 2


def exists(name: str) -> bool:
    """Whether torch has the device, for example "cuda:1". This does not open the device."""
    try:
        device = torch.device(name)
    except RuntimeError:
        return False
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is not None and device.type == found.type:
        return (device.index or 0) < torch.accelerator.device_count()
    return device.type == "cpu"


def accelerators() -> str:
    """Which accelerators torch finds, in words."""
    found = torch.accelerator.current_accelerator(check_available=True)
    names = [f"{found}:{number}" for number in range(torch.accelerator.device_count())]
    return f"torch {torch.__version__} finds {', '.join(names) or 'no accelerator'}"


def is_cpu(name: str) -> bool:
    return torch.device(name).type == "cpu"


def open_each(flags: Flags) -> None:
    """Opens the devices of the learner and of inference, sets their precision and torch's threads,
    and logs their names. Raises UserError if one of them cannot be opened, or --compile cannot
    compile for it."""
    set_precision(flags.precision)
    torch.set_num_threads(flags.torch_threads)
    for name in ("learner_device", "inference_device"):
        try:  # an empty tensor would not open the device, and without `item` an error would be late
            torch.ones(1, device=getattr(flags, name)).item()
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            require(flags, name, False, f"a device that can be opened ({why})")
    learner, inference, found = flags.learner_device, flags.inference_device, accelerators()
    logger.info("Devices: learner %s, inference %s; %s", learner, inference, found)
    if flags.compile:
        for device in {learner, inference}:
            try:
                torch.compile(lambda x: x.sin() + 1)(torch.ones(1, device=device))
            except Exception as error:  # there may be no C++ compiler
                why = str(error).splitlines()[0]
                raise UserError(f"--compile: torch cannot compile for {device} ({why})") from error


def set_precision(precision: str) -> None:
    """Lets this process's GPUs compute float32 products in TF32 only if --precision is tf32. By
    default torch does so in convolutions and recurrent cores, but not elsewhere."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware has instructions for bfloat16."""
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported()
    has_it = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return has_it is not None and has_it(including_emulation=False)


# ====================================================================================== in order
def has_streams(device: torch.device) -> bool:
    """Whether threads can work side by side on the device. All work on MPS is in one stream."""
    return device.type not in ("cpu", "mps")


def device_stream(
    device: torch.device, priority: int = 0
) -> contextlib.AbstractContextManager[Any]:
    """A context in which a thread's work on `device` runs in a stream of its own, beside the work
    of other threads. The stream starts after the work that is in the default stream now, where the
    main thread makes and loads networks. Of the kernels that wait, those of a stream with the
    priority FIRST come first."""
    if not has_streams(device):
        return contextlib.nullcontext()
    stream = torch.Stream(device=device, priority=priority)
    stream.wait_stream(torch.accelerator.current_stream(device))
    return stream


def use_in_this_stream(tensors: Iterable[Tensor]) -> None:
    """Says that the calling thread's stream uses these tensors of other streams. Otherwise their
    memory could be given to others before the stream has used it."""
    for tensor in tensors:
        if has_streams(tensor.device):
            tensor.record_stream(torch.accelerator.current_stream(tensor.device))


class Event:
    """A point in the work of one stream, for which another stream's work can wait. As a context it
    waits at the beginning and is recorded at the end, also after an error."""

    def __init__(self, device: torch.device):
        self._device = device
        self._event = torch.Event(device=device) if has_streams(device) else None

    def record(self) -> None:
        """Sets the event to this point of the calling thread's stream."""
        if self._event is not None:
            self._event.record(torch.accelerator.current_stream(self._device))

    def wait(self) -> None:
        """Makes later work in the calling thread's stream start after the event. Does not block."""
        if self._event is not None:
            self._event.wait(torch.accelerator.current_stream(self._device))

    def __enter__(self) -> None:
        self.wait()

    def __exit__(self, *error) -> None:
        self.record()


# ========================================================================================= copies
class Slab(dict[Any, Tensor]):
    """Tensors on the CPU, by name, that lie one after the other in one piece of memory, so that one
    copy brings all of them to a device.

    Args:
        shapes: {name: (shape, dtype)}.
        device: where they will be copied to. For an accelerator the memory is page-locked, if
            that is possible, and the tensors must not change before the stream that copies them is
            waited for.
    """

    def __init__(self, shapes: Shapes, device: torch.device):
        self._shapes, size = shapes, required_bytes(shapes)
        self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=pins_memory(device.type))
        super().__init__(views(self._memory, shapes))

    def to(self, device: torch.device) -> dict[Any, Tensor]:
        """Copies the tensors without waiting, unless the memory could not be page-locked."""
        memory = self._memory.to(device, non_blocking=pins_memory(device.type))
        return views(memory, self._shapes)


def to_device(value: Any, device: torch.device) -> Any:
    """Copies the tensors in nested dicts, lists and tuples to `device`, in one asynchronous copy. A
    Slab must not change before the stream is waited for; other tensors may change at once.
    If `device` is the CPU, this returns `value` itself. A tensor that is on a device already is not
    copied."""
    if device.type == "cpu":
        return value
    if isinstance(value, Slab):
        return value.to(device)
    here = dict(enumerate(x for x in tensors_in(value) if x.device.type == "cpu"))
    if not here:
        return value
    slab = Slab({i: (tuple(tensor.shape), tensor.dtype) for i, tensor in here.items()}, device)
    for i, tensor in here.items():
        slab[i].copy_(tensor)
    there = iter(slab.to(device).values())
    return mapped(value, lambda x: next(there) if x.device.type == "cpu" else x)


def to_host(*groups: Any) -> list[Any]:
    """Copies the tensors in nested dicts, lists and tuples to the CPU, all in one copy, for which
    the caller waits. A tensor that is on the CPU already is not copied."""
    there = [tensor for tensor in tensors_in(groups) if tensor.device.type != "cpu"]
    if not there:
        return list(groups)
    there.sort(key=lambda x: -x.element_size())  # so that each is aligned for its dtype
    joined = torch.cat([x.detach().reshape(-1).view(torch.uint8) for x in there])
    pinned = pins_memory(joined.device.type)
    memory = torch.empty(joined.shape, dtype=torch.uint8, pin_memory=pinned)
    memory.copy_(joined, non_blocking=pinned)
    if pinned:
        torch.accelerator.current_stream(joined.device).synchronize()
    pairs = zip(there, memory.split([x.nbytes for x in there]), strict=True)
    here = {id(x): piece.view(x.dtype).view(x.shape) for x, piece in pairs}
    return mapped(list(groups), lambda x: here.get(id(x), x))


def copy_to_host(value: Any) -> Any:
    """Copies all tensors in nested dicts, lists and tuples to the CPU, also those that are on the
    CPU already. Waits for the copies."""
    return mapped(to_host(value)[0], lambda x: x.detach().clone())  # each with its own storage


@functools.cache
def pins_memory(device_type: str) -> bool:
    """Whether memory can be page-locked for the device. Copies to and from such memory run while
    the host does other things."""
    if device_type == "cpu":
        return False
    try:
        torch.empty(1, pin_memory=True)
        return True
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        logger.warning("Copies to and from %s are synchronous: %s", device_type, why)
        return False


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, dict | list | tuple):
        return []
    items = value.values() if isinstance(value, dict) else value
    return [tensor for item in items for tensor in tensors_in(item)]


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: mapped(item, function) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(item, function) for item in value)
    return value


# ================================================================================= random numbers
# Held while random numbers are drawn on an accelerator, and while a graph is recorded. With torch
# 2.11, drawing random numbers raises an error while another thread records a graph.
_drawing = threading.Lock()


def drawing(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context in which a thread of several may draw random numbers on `device`."""
    return _drawing if has_streams(device) else contextlib.nullcontext()


def random_states() -> list[Tensor]:
    """The states of the accelerators' generators. Empty if no accelerator was used."""
    module = _opened()
    return module.get_rng_state_all() if hasattr(module, "get_rng_state_all") else []


def set_random_states(states: list[Tensor]) -> None:
    """Restores what `random_states` returned. If the number of devices has changed, a warning says
    so."""
    count = len(random_states())
    if len(states) != count:
        said = "The checkpoint has random states of %d accelerators; %d are used."
        logger.warning(said, len(states), count)
    for index, state in enumerate(states[:count]):
        _opened().set_rng_state(state, index)


def _opened() -> Any:
    """The module of the accelerator, such as torch.cuda, if it was used. Else None."""
    found = torch.accelerator.current_accelerator(check_available=True)
    module = None if found is None else torch.get_device_module(found)
    return module if getattr(module, "is_initialized", lambda: False)() else None
