# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Moving tensors to a GPU and back, so that copies overlap with whatever else it does. On the CPU
all of it does nothing."""

import argparse
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from libtorchbeast.flags import Flags, require

Tensors = TypeVar("Tensors", dict[str, Tensor], tuple[Tensor, ...])


def own_stream(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """What a thread's work on `device` runs in, beside that of other threads, and after whatever
    the main thread has begun there: networks are made and loaded in the default stream."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))
    return torch.cuda.stream(stream)


def cuda_is_wanted(flags: Any) -> bool:
    """Whether the learner shall use a GPU where no flag names its device. A run in order (MonoBeast
    with --num_actors 0) does not: its numbers are the same everywhere."""
    in_order = flags.num_actors == 0
    return torch.cuda.is_available() and not flags.disable_cuda and not in_order


def choose(draft: argparse.Namespace) -> None:
    """Chooses --learner_device and --inference_device where they were not given, and checks that
    they exist."""
    if draft.learner_device is None:
        draft.learner_device = "cuda" if cuda_is_wanted(draft) else "cpu"
    if draft.inference_device is None:
        draft.inference_device = draft.learner_device
    usable = f"cpu, or one of the {torch.cuda.device_count()} GPUs that torch can use"
    for name in ("learner_device", "inference_device"):
        require(draft, name, exists(getattr(draft, name)), usable)


def open_each(flags: Flags) -> None:
    """Opens the devices of the learner and of inference.

    Raises:
        UserError: one of them cannot be opened.
    """
    for name in ("learner_device", "inference_device"):
        try:
            torch.empty(0, device=getattr(flags, name))
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            require(flags, name, False, f"a device that can be opened ({why})")


def exists(name: str) -> bool:
    """Whether torch can use the device. Only looks: to try would open it, and keep a GPU that lets
    in one process from the processes that come."""
    try:
        device = torch.device(name)
    except RuntimeError:
        return False
    if device.type == "cuda":
        return (device.index or 0) < torch.cuda.device_count()
    return device.type == "cpu"


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """Copies a dict or tuple through page-locked memory, without waiting. What is page-locked
    already may change only after the stream's next wait."""
    if device.type != "cuda":
        return tensors
    return _each(lambda tensor: tensor.pin_memory().to(device, non_blocking=True), tensors)


def to_host(*groups: Tensors) -> list[Tensors]:
    """Copies dicts and tuples, and waits once for all of them."""
    copies = [_each(_begin_copy_to_host, group) for group in groups]
    if any(tensor.is_cuda for group in groups for tensor in _values(group)):
        torch.cuda.current_stream().synchronize()
    return copies


def _begin_copy_to_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _each(function: Callable[[Tensor], Tensor], tensors: Tensors) -> Tensors:
    if isinstance(tensors, dict):
        return {name: function(tensor) for name, tensor in tensors.items()}
    return tuple(map(function, tensors))


def _values(tensors: Tensors) -> Iterable[Tensor]:
    return tensors.values() if isinstance(tensors, dict) else tensors


def copy_to_host(value: Any) -> Any:
    """Copies nested dicts and lists with their tensors to the host, and waits for it."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copy_to_host(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_to_host(item) for item in value]
    return value


class Event:
    """A point in one stream's work that another stream's can wait for."""

    def __init__(self, device: torch.device):
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def record(self) -> None:
        """Here, in the calling thread's stream of the device."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Work of that stream from here on comes after the event; does not block."""
        if self._event is not None:
            self._event.wait(torch.cuda.current_stream(self._device))
