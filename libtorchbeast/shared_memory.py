# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Shared memory without names and locks, for rollouts and weights.

The memory is a `memfd`, or an unlinked temporary file where the system has no memfd. Spawned
processes inherit its descriptor. So nothing is left behind when a process is killed, and the small
/dev/shm that containers often have is no limit.
"""

import math
import mmap
import os
import resource
import tempfile
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import psutil
import torch

from libtorchbeast import linux
from libtorchbeast.flags import Flags, require

if TYPE_CHECKING:
    from libtorchbeast._C import Spec as Description

Shapes = dict[Any, tuple[tuple[int, ...], torch.dtype]]  # name -> (shape, dtype)


class SharedTensors:
    """A dict {name: tensor} whose tensors are contiguous, lie in shared memory and start as zeros.

    All tensors share one descriptor (and the duplicate of it that mmap keeps). An instance can be
    passed as an argument to a process that is started with the "spawn" method. If it has no tensors
    yet, one process calls `reserve` later, and the others then call `map` with the same shapes.

    Attributes:
        tensors, shapes: are empty before `reserve` or `map`.
    """

    def __init__(self, shapes: Shapes | None = None):
        self._fd: int | None = linux.memory_file()
        self.map({})
        if shapes:
            self.reserve(shapes)

    def reserve(self, shapes: Shapes) -> None:
        """Makes the tensors. Raises OSError if the memory cannot be reserved. It is reserved at
        once, because otherwise a later write could end the process with a bus error."""
        assert self._fd is not None, "closed"
        try:
            linux.reserve(self._fd, required_bytes(shapes))
        except OSError:
            self.close()
            raise
        self.map(shapes)

    def map(self, shapes: Shapes) -> None:
        """Makes the tensors in memory that another process has reserved."""
        self.shapes, self.tensors = dict(shapes), {}
        if shapes and self._fd is not None:
            memory = mmap.mmap(self._fd, required_bytes(shapes))
            self.tensors = views(torch.frombuffer(memory, dtype=torch.uint8), shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def close(self) -> None:
        """Closes the descriptor. The memory is freed with the last tensor that uses it."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
        self.tensors = {}

    def __getstate__(self):
        assert self._fd is not None, "closed"
        return {"shapes": self.shapes, "fd": reduction.DupFd(self._fd)}

    def __setstate__(self, state):
        self._fd = state["fd"].detach()
        self.map(state["shapes"])


def required_bytes(shapes: Shapes) -> int:
    """The size of the memory that `SharedTensors(shapes)` reserves, and of that for `views`."""
    return sum(_aligned(math.prod(shape) * dtype.itemsize) for shape, dtype in shapes.values())


def views(memory: torch.Tensor, shapes: Shapes) -> dict[Any, torch.Tensor]:
    """Tensors of these shapes, which lie one after the other in `memory`, uint8
    [required_bytes(shapes)] on any device."""
    tensors, start = {}, 0
    for name, (shape, dtype) in shapes.items():
        size = math.prod(shape) * dtype.itemsize
        tensors[name] = memory[start : start + size].view(dtype).view(shape)
        start += _aligned(size)
    return tensors


def available_bytes() -> int:
    """Bytes that can still be reserved: the least that the machine, the container (if it has a
    limit) and the disk (if there is no memfd) have left."""
    limits = [psutil.virtual_memory().available, *linux.bytes_of_container()]
    if not hasattr(os, "memfd_create"):
        disk = os.statvfs(tempfile.gettempdir())
        limits.append(disk.f_bavail * disk.f_frsize)
    return min(limits)


def require_memory(flags: Flags, needed: dict[str, int]) -> None:
    """Raises UserError, which asks for less of the flag that needs most, unless the bytes that the
    flags need are available together."""
    available, total, MiB = available_bytes(), sum(needed.values()), 2**20
    needs = f"{total / MiB:,.0f} MiB of memory would be needed"
    has = f"{available / MiB:,.0f} MiB are available"
    expected = f"a smaller number, or fewer environments: {needs}, {has}"
    require(flags, max(needed, key=lambda flag: needed[flag]), total < available, expected)


def require_stream_memory(
    flags: Flags, description: "Description", core_state: tuple[torch.Tensor, ...], replay: int = 0
) -> int:
    """Raises UserError unless the rollouts of all streams, a batch of them, and `replay` bytes fit
    into memory.

    Args:
        description: one server's environments; another server may have more in a stream.
        core_state: of one environment, [layers, 1, H].

    Returns:
        The most bytes that one stream's rollout may have.
    """
    column = (flags.unroll_length + 1) * description.row_bytes + sum(t.nbytes for t in core_state)
    rollouts = 2 * flags.num_actors  # each stream fills one while the one before waits
    needed = {"replay_capacity": replay, "batch_size": flags.batch_size * column}
    require_memory(flags, needed | {"unroll_length": rollouts * description.num_envs * column})
    return (available_bytes() - replay) // rollouts


def require_descriptors(flags: Flags) -> None:
    """Raises UserError if this process may not open as many files as --num_actors actors need. Each
    actor needs five at most: pipes and a sentinel, or sockets and events. The logs and other files
    need a few more."""
    left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - psutil.Process().num_fds()
    files = 5 * flags.num_actors + 32
    expected = f"a smaller number: {files} open files would be needed, {left} are left (ulimit -n)"
    require(flags, "num_actors", files < left, expected)


def _aligned(size: int) -> int:
    return -(-size // 64) * 64  # whole cache lines, so that two workers never share one
