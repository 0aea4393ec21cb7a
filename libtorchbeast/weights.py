# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Hands the newest weights from the learner to the processes and threads that act with them.

`SharedWeights` hands them to other processes (MonoBeast's actors and evaluations). `NewestWeights`
hands them to threads of the learner's process (PolyBeast's inference threads).
"""

import ctypes
import functools
import platform
import sys
from collections.abc import Callable

import torch
from torch import nn

from libtorchbeast.accelerator.devices import Event, copy_to_host, to_host, use_in_this_stream
from libtorchbeast.flags import UserError
from libtorchbeast.shared_memory import Shapes, SharedTensors


class SharedWeights(SharedTensors):
    """Weights in shared memory that one process writes and any number of processes copy, without a
    lock. It is empty until `begin` is called.

    Version v lies in slot v % 2. Writing version v + 1 does not touch that slot; only writing
    version v + 2 overwrites it. So a reader that sees the same version counter before and after its
    copy has copied one whole version. Processors such as ARM reorder loads and stores. There a
    memory fence keeps the accesses to the counter before or after the copy, as they are written.
    """

    def begin(self, state_dict: dict[str, torch.Tensor], version: int) -> "SharedWeights":
        """Publishes the first weights, on any device. Returns this instance. Raises OSError if the
        memory cannot be reserved, and UserError as `memory_fence` does."""
        self.reserve(shapes_of_versions(state_dict))
        for each in (version + 1, version):  # fills both slots; later calls skip frozen weights
            self.publish(state_dict, each)
        return self

    @property
    def version(self) -> int:
        return int(self[".version"].numpy()[0])

    @torch.no_grad()
    def publish(self, state_dict: dict[str, torch.Tensor], version: int) -> None:
        """Publishes `state_dict` as version `version`. Weights that never change may be left out.
        The version must be one above the last; it may be any higher number if nobody copies
        meanwhile. One thread at a time may call this."""
        (weights,) = to_host(state_dict)
        for name, tensor in weights.items():
            self[name][version % 2].copy_(tensor)
        self._fence()
        # A store to a NumPy view, as a load from it, is one of 8 bytes.
        self[".version"].numpy()[0] = version
        self._fence()  # before the next version overwrites the slot of the one before this

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> int:
        """Copies the newest whole version into `module` and returns its number."""
        own = module.state_dict()
        while True:
            version = self.version
            self._fence()
            for name, tensor in own.items():
                tensor.copy_(self[name][version % 2])
            self._fence()
            if self.version == version:
                return version

    def _fence(self) -> None:
        memory_fence(platform.machine())()


def shapes_of_versions(state_dict: dict[str, torch.Tensor]) -> Shapes:
    """Those of the `SharedWeights` that have such weights, in whatever order these are."""
    shapes: Shapes = {k: ((2, *v.shape), v.dtype) for k, v in sorted(state_dict.items())}
    return shapes | {".version": ((1,), torch.int64)}


@functools.cache
def memory_fence(machine: str) -> Callable[[], None]:
    """Returns a memory fence for the processor that `platform.machine()` calls `machine`: all loads
    and stores that a thread makes before it calls this function happen before those that it makes
    afterwards. Raises UserError if the processor needs a fence, and the system offers none."""
    if machine in ("x86_64", "AMD64", "i686"):
        return lambda: None  # x86 keeps the order of loads, and the order of stores
    try:
        if sys.platform == "darwin":
            return ctypes.CDLL(None).OSMemoryBarrier
        fence = ctypes.CDLL("libatomic.so.1").atomic_thread_fence
    except (OSError, AttributeError) as error:
        library = "the library libatomic (apt-get install libatomic1)"
        said = f"on {machine} weights can be handed to other processes only with {library}"
        raise UserError(f"{said}: {error}") from error
    return lambda: fence(5)  # memory_order_seq_cst


class NewestWeights:
    """The newest weights, for threads of the learner's process.

    `publish` copies the weights, and the copy never changes afterwards. The next version replaces
    it in a single assignment. So a reader always gets one whole version. `device` is that of the
    networks that copy the weights. The other arguments are those of `SharedWeights.begin`.
    """

    def __init__(self, state_dict: dict[str, torch.Tensor], version: int, device: torch.device):
        self._device = torch.empty(0, device=device).device  # with its index, as in cuda:0
        nothing: dict[str, torch.Tensor] = {}
        self._newest = (nothing, version, Event(self._device))
        self.publish(state_dict, version)

    @property
    def version(self) -> int:
        return self._newest[1]

    @torch.no_grad()
    def publish(self, state_dict: dict[str, torch.Tensor], version: int) -> None:
        """Publishes a copy of `state_dict` as version `version`. Weights that never change may be
        left out."""
        if self._device.type == "cpu":
            weights = copy_to_host(dict(state_dict))
        elif all(v.device == self._device for v in state_dict.values()):
            weights = {k: torch.empty_like(v) for k, v in state_dict.items()}
            _copy_all(state_dict, weights)
        else:
            weights = {k: v.detach().to(self._device, copy=True) for k, v in state_dict.items()}
        copied = Event(self._device)
        copied.record()
        self._newest = (self._newest[0] | weights, version, copied)

    @torch.no_grad()
    def copy_to(self, net: nn.Module) -> int:
        """Copies the newest version into `net` and returns its number. Inside an autocast context
        the caller must clear the autocast cache afterwards, because it holds the old weights."""
        weights, version, copied = self._newest
        copied.wait()
        use_in_this_stream(weights.values())
        _copy_all(weights, net.state_dict())
        return version


def _copy_all(source: dict[str, torch.Tensor], target: dict[str, torch.Tensor]) -> None:
    """Copies tensors of one device, with one call instead of one for each."""
    torch._foreach_copy_(list(target.values()), [source[name] for name in target])
