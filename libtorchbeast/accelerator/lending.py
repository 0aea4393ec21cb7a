# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Lends page-locked memory to the C++ core, which joins batches in it. One copy then brings a batch
to an accelerator, and the core needs neither torch nor a device's library for that.

Each batch has memory of its own, so that nobody has to know when a copy from it has ended: torch
gives page-locked memory to others only when all copies from it have ended. For the CPU nothing is
lent.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

import libtorchbeast
from libtorchbeast.accelerator.devices import Slab, to_device
from libtorchbeast.models import CoreState
from libtorchbeast.rollouts import Rollout
from libtorchbeast.shared_memory import Shapes

if TYPE_CHECKING:
    from libtorchbeast import Batch, BatchingQueue


def batches(queue: "BatchingQueue", device: torch.device) -> Iterator[Rollout]:
    """Yields the queue's batches of rollouts until it is closed. For an accelerator they are Slabs,
    except for the first batch, from which the shapes are known."""
    return queue if device.type == "cpu" else _in_slabs(queue, device)


def _in_slabs(queue: "BatchingQueue", device: torch.device) -> Iterator[Rollout]:
    first = next(queue, None)
    if first is None:
        return
    shapes: Shapes = {name: (tuple(x.shape), x.dtype) for name, x in first.items()}
    yield first
    with contextlib.suppress(libtorchbeast.ClosedBatchingQueue):
        while True:
            yield queue.dequeue(Slab(shapes, device))


class Inputs:
    """Brings the inputs of inference batches to `device`. One thread at a time may use it."""

    def __init__(self, device: torch.device):
        self._device = device
        self._shapes: Shapes = {}  # of a batch, by the names of rows and the indices of states

    def of(self, batch: "Batch") -> tuple[Rollout, CoreState]:
        """Returns rows [1, B, ...] and core states [layers, B, H] on the device."""
        if self._device.type == "cpu":
            return batch.get_inputs()
        if not self._shapes:
            rows, state = batch.get_inputs()
            tensors: dict[Any, torch.Tensor] = {**rows, **dict(enumerate(state))}
            self._shapes = {name: (tuple(x.shape), x.dtype) for name, x in tensors.items()}
            return to_device((rows, state), self._device)
        B = len(batch)
        own = self._shapes.items()
        slab = Slab({k: ((T, B, *rest), dtype) for k, ((T, _, *rest), dtype) in own}, self._device)
        batch.get_inputs(_pair(slab))
        return _pair(slab.to(self._device))


def _pair(tensors: dict[Any, torch.Tensor]) -> tuple[Rollout, CoreState]:
    rows = {name: x for name, x in tensors.items() if isinstance(name, str)}
    return rows, tuple(x for name, x in tensors.items() if isinstance(name, int))
