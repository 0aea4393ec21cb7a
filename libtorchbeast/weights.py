# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The newest weights, from the learner to whoever acts with them.

`SharedWeights` hands them to other processes (MonoBeast's actors, evaluations), `NewestWeights` to
threads of the learner's process (PolyBeast's inference).
"""

import ctypes
import platform
import sys
from collections.abc import Callable

import torch
from torch import nn

from libtorchbeast.devices import Event
from libtorchbeast.flags import UserError
from libtorchbeast.shared_memory import Shapes, SharedTensors


class SharedWeights:
    """The newest weights, written by one process and copied by any number, without a lock.

    Version v lies in slot v % 2. Writing version v + 1 leaves it untouched, and only writing v + 2
    overwrites it. So a reader that sees the same version counter before and after its copy has
    copied one whole version. On processors that reorder loads and stores (ARM, not x86), a memory
    fence keeps the counter's accesses on their side of the copy.
    """

    def __init__(self, state_dict: dict[str, torch.Tensor], version: int):
        shapes: Shapes = {k: ((2, *v.shape), v.dtype) for k, v in state_dict.items()}
        self._memory = SharedTensors({**shapes, ".version": ((1,), torch.int64)})
        self._open()
        self.publish(state_dict, version)

    @property
    def version(self) -> int:
        return int(self._version[0])

    @torch.no_grad()
    def publish(self, state_dict: dict[str, torch.Tensor], version: int) -> None:
        """Makes `state_dict` version `version`; versions must grow. One caller at a time."""
        for name, tensor in state_dict.items():
            self._memory[name][version % 2].copy_(tensor)
        self._fence()
        self._version[0] = version
        self._fence()  # before the next version overwrites the slot of the one before this

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> int:
        """Copies the newest whole version into `module` and returns its number."""
        own = module.state_dict()
        while True:
            version = self.version
            self._fence()
            for name, tensor in own.items():
                tensor.copy_(self._memory[name][version % 2])
            self._fence()
            if self.version == version:
                return version

    def close(self) -> None:
        """Nobody may publish or copy any more."""
        self._version = None
        self._memory.close()

    def __getstate__(self):
        return {"memory": self._memory}

    def __setstate__(self, state):
        self._memory = state["memory"]
        self._open()

    def _open(self) -> None:
        # A NumPy view: its access is one 8-byte load or store, ten times cheaper than a tensor's.
        self._version = self._memory[".version"].numpy()
        self._fence = memory_fence(platform.machine())


def memory_fence(machine: str) -> Callable[[], None]:
    """A function that keeps this thread's loads and stores before it ahead of those after it.

    Args:
        machine: the processor, as `platform.machine()` names it.

    Raises:
        UserError: the processor needs a fence, and the system offers none.
    """
    if machine in ("x86_64", "AMD64", "i686"):
        return lambda: None  # stores become visible in their order, and loads happen in theirs
    try:
        if sys.platform == "darwin":
            return ctypes.CDLL(None).OSMemoryBarrier
        fence = ctypes.CDLL("libatomic.so.1").atomic_thread_fence
    except (OSError, AttributeError) as error:
        raise UserError(
            f"on {machine} weights can be handed to other processes only with the library "
            f"libatomic (apt-get install libatomic1): {error}"
        ) from error
    SEQUENTIALLY_CONSISTENT = 5  # memory_order_seq_cst
    return lambda: fence(SEQUENTIALLY_CONSISTENT)


class NewestWeights:
    """A version of the weights is copied when it is published and never changes afterwards, so
    whoever reads it has one version, whole; a new one replaces it in a single assignment.

    Args:
        device: of the networks that will read.
    """

    def __init__(self, state_dict: dict[str, torch.Tensor], version: int, device: torch.device):
        self._device = device
        self.publish(state_dict, version)

    @property
    def version(self) -> int:
        return self._newest[1]

    @torch.no_grad()
    def publish(self, state_dict: dict[str, torch.Tensor], version: int) -> None:
        weights = {k: v.detach().to(self._device, copy=True) for k, v in state_dict.items()}
        copied = Event(self._device)
        copied.record()
        self._newest = (weights, version, copied)

    @torch.no_grad()
    def copy_to(self, net: nn.Module) -> int:
        """Copies the newest version into `net` and returns its number. Not inside an autocast that
        has seen `net`, unless its cache is cleared then."""
        weights, version, copied = self._newest
        copied.wait()
        for tensor in weights.values():
            if tensor.is_cuda:  # its memory may be given to others only after this stream's copy
                tensor.record_stream(torch.cuda.current_stream())
        net.load_state_dict(weights)
        return version
