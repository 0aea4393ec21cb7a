# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Chooses devices, and moves tensors to a GPU and back while the GPU works on other things. On the
CPU the functions that move tensors or order streams do nothing."""

import argparse
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from libtorchbeast.flags import Flags, require

Tensors = TypeVar("Tensors", dict[str, Tensor], tuple[Tensor, ...])


def own_stream(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context in which a thread's work on `device` runs in a CUDA stream of its own, beside the
    work of other threads. The stream starts after the work that is in the default stream now, where
    the main thread makes and loads networks."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))
    return torch.cuda.stream(stream)


def cuda_is_wanted(flags: argparse.Namespace) -> bool:
    """Whether the learner uses a GPU if no flag names its device. A deterministic run (MonoBeast
    with --num_actors 0) does not, so that its numbers are the same on every machine."""
    in_order = flags.num_actors == 0
    return torch.cuda.is_available() and not flags.disable_cuda and not in_order


def choose(draft: argparse.Namespace) -> None:
    """Chooses --learner_device and --inference_device if they were not given.

    Raises:
        UserError: torch cannot use one of them.
    """
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
    """Whether torch has the device, for example "cuda:1". This does not open the device, because a
    GPU may be set to accept one process only, and --autotune's trials need it next."""
    try:
        device = torch.device(name)
    except RuntimeError:
        return False
    if device.type == "cuda":
        return (device.index or 0) < torch.cuda.device_count()
    return device.type == "cpu"


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """Copies the tensors of a dict or tuple to `device` without waiting for the copies to end.
    Tensors in page-locked memory must not change before the stream is synchronized next."""
    if device.type != "cuda":
        return tensors
    return _each(
        lambda x: x if x.is_cuda else x.pin_memory().to(device, non_blocking=True), tensors
    )


def to_host(*groups: Any) -> list[Any]:
    """Copies the tensors of dicts and tuples to the CPU, and waits once for all of them."""
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
    """Copies all tensors in nested dicts and lists to the CPU, and waits for them."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copy_to_host(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_to_host(item) for item in value]
    return value


class Event:
    """A point in the work of one stream, for which another stream's work can wait."""

    def __init__(self, device: torch.device):
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def record(self) -> None:
        """Sets the event to this point of the calling thread's stream."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Makes later work in the calling thread's stream start after the event. Does not block."""
        if self._event is not None:
            self._event.wait(torch.cuda.current_stream(self._device))
