# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The newest weights, from a learner to inference threads of the same process."""

import torch
from torch import nn

from libtorchbeast.devices import Mark


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
        copied = Mark(self._device)
        copied.set()
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
