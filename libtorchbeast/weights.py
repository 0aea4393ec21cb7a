# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The newest weights, from the learner to whoever acts with them.

`SharedWeights` hands them to other processes (MonoBeast's actors, evaluations), `NewestWeights` to
threads of the learner's process (PolyBeast's inference).
"""

import torch
from torch import nn

from libtorchbeast.devices import Event
from libtorchbeast.shared_memory import Shapes, SharedTensors


class SharedWeights:
    """The newest weights, written by one process and copied by any number, without a lock.

    Version v lies in slot v % 2, so writing version v+1 leaves v untouched; only writing v+2 does
    not. A reader whose version counter stayed the same during the copy has therefore copied one
    version, whole. This leans on x86's order of stores; a processor that reorders them (ARM) needs
    a memory barrier around the counter.
    """

    def __init__(self, state_dict: dict[str, torch.Tensor], version: int):
        shapes: Shapes = {k: ((2, *v.shape), v.dtype) for k, v in state_dict.items()}
        self._memory = SharedTensors({**shapes, ".version": ((1,), torch.int64)})
        # A NumPy view: one 8-byte load or store, and ten times cheaper than a tensor's.
        self._version = self._memory[".version"].numpy()
        self.publish(state_dict, version)

    @property
    def version(self) -> int:
        return int(self._version[0])

    @torch.no_grad()
    def publish(self, state_dict: dict[str, torch.Tensor], version: int) -> None:
        """Makes `state_dict` version `version`; versions must grow. One caller at a time."""
        for name, tensor in state_dict.items():
            self._memory[name][version % 2].copy_(tensor)
        self._version[0] = version

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> int:
        """Copies the newest whole version into `module` and returns its number."""
        own = module.state_dict()
        while True:
            version = self.version
            for name, tensor in own.items():
                tensor.copy_(self._memory[name][version % 2])
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
        self._version = self._memory[".version"].numpy()


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
