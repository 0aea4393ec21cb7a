# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The memory of a replay: arrays of its blocks (see replay.py), in the process or in a file."""

import contextlib
import logging
import os

import numpy as np
import torch
from torch import Tensor

from libtorchbeast import shared_memory
from libtorchbeast.flags import Flags, UserError, require
from libtorchbeast.models import CoreState
from libtorchbeast.spec import ROW_FIELDS, Spec

Shapes = dict[str, tuple[tuple[int, ...], str]]  # name -> (shape, numpy dtype name)
Arrays = dict[str, np.ndarray]

NONE = -1  # instead of a block's number

logger = logging.getLogger(__name__)


def block_shapes(spec: Spec, core_state: CoreState, own: Shapes, T: int) -> Shapes:
    """The shapes and dtypes of the arrays of one block of T rows."""
    action = (spec.actions.shape, spec.actions.dtype.name)
    leaves: Shapes = {name: ((), dtype) for name, dtype in ROW_FIELDS.items()} | own
    leaves |= {"last_action": action, "action": action, "policy_version": ((), "int64")}
    for name, (shape, dtype) in spec.leaves.items():
        if not name.startswith("game/"):  # they are counted before
            leaves[name] = (shape[1:] if name in spec.stacks else shape, dtype)
    shapes: Shapes = {name: ((T, *shape), dtype) for name, (shape, dtype) in leaves.items()}
    for i, state in enumerate(core_state):
        layers, _, *sizes = state.shape
        shapes[f"core_state/{i}"] = ((layers, *sizes), str(state.dtype).removeprefix("torch."))
    return shapes | {"serial": ((), "int64")}


def required_bytes(shapes: Shapes, num_blocks: int) -> int:
    return shared_memory.required_bytes(_of_all(shapes, num_blocks))


def _of_all(shapes: Shapes, num_blocks: int) -> shared_memory.Shapes:
    return {
        k: ((num_blocks, *shape), getattr(torch, dtype)) for k, (shape, dtype) in shapes.items()
    }


def allocate(flags: Flags, shapes: Shapes, num_blocks: int, path: str | None) -> Arrays:
    """Arrays [num_blocks, ...] of the shapes, in memory or in a file, whose content is kept if its
    size is right. In new arrays each serial number is NONE. Raises UserError if the file cannot be
    made."""
    needed = required_bytes(shapes, num_blocks)
    steps = num_blocks * flags.unroll_length
    logger.info("The replay buffer of %d steps takes %.3f GB", steps, needed / 1e9)
    size = os.path.getsize(path) if path is not None and os.path.exists(path) else 0
    memory = np.zeros(needed, np.uint8) if path is None else _map_file(path, needed, size)
    tensors = shared_memory.views(torch.from_numpy(memory), _of_all(shapes, num_blocks))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    if size != needed:
        arrays["serial"][:] = NONE
    return arrays


def require_disk(flags: Flags, path: str, needed: int) -> None:
    """Raises UserError unless a file of `needed` bytes fits onto the disk, in place of the one that
    may be there. Its folder need not exist yet."""
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize + (os.path.getsize(path) if os.path.exists(path) else 0)
    expected = f"less: {needed / 1e9:.3f} GB would be needed on the disk, {free / 1e9:.3f} are free"
    require(flags, "replay_capacity", needed < free, expected)


def _map_file(path: str, needed: int, size: int) -> np.ndarray:
    try:
        with open(path, "r+b" if size == needed else "w+b") as file:
            os.posix_fallocate(file.fileno(), 0, needed)  # else a full disk would end the process
    except OSError as error:
        if size != needed:  # what was there has been truncated
            with contextlib.suppress(OSError):
                os.remove(path)
        raise UserError(f"--save_replay: {path}, {needed:,} bytes: {error.strerror}") from error
    return np.asarray(np.memmap(path, np.uint8, "r+"))


def stack_frames(frames: Tensor, ages: Tensor, k: int) -> Tensor:
    """Frames [k-1 + S+1, B, ...] -> stacks [S+1, B, k, ...], oldest first, with zeros before a
    game's first frame. `ages` [S+1, B] is the number of frames of the game before each row."""
    stacks = torch.stack([frames[i : i + len(ages)] for i in range(k)], dim=2)
    for i in range(k - 1):
        is_before = ages < k - 1 - i
        if is_before.any():  # seldom; indexing all at once takes twice as long
            stacks[:, :, i].numpy()[is_before.numpy()] = 0  # torch cannot for uint16
    return stacks
