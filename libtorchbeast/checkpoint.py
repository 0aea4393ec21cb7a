# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Checkpoints that survive a kill, a full disk and a flipped bit.

A checkpoint is an ordinary `torch.save` file, so `torch.load(path)` reads it. Such a file is a ZIP
archive, and a ZIP archive may end in a comment: ours holds the SHA-256 of every byte before it.
File and digest are thus one file, put in place by one rename, and `load` notices any byte that was
changed, added or lost.

    PATH            the newest checkpoint
    PATH.previous   the one before it
    PATH.tmp        what a kill during `save` may leave; never read, overwritten by the next `save`
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import random
import struct
from collections import OrderedDict
from typing import Any, NoReturn

import numpy as np
import torch

from libtorchbeast.flags import UserError

_PREFIX = b"sha256:"
_COMMENT_SIZE = len(_PREFIX) + 2 * hashlib.sha256().digest_size
_LEAVES = (type(None), bool, int, float, str)

logger = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint file exists but must not be used; the message says which and why."""


def save(path: str, state: dict) -> None:
    """Writes `state` to `path`; the checkpoint that was there becomes `path + ".previous"`.

    The archive is built in memory first (one more copy of the state): where torch itself writes to
    a full disk, it raises an unspecific RuntimeError.

    Raises:
        ValueError: `state` holds something that `torch.load(weights_only=True)` would refuse.
        OSError: the file cannot be written, for instance on a full disk. The caller may log it,
            count it and go on.
        After any error the older files are as they were and no `.tmp` is left.
    """
    _check_types(state, "state")
    tmp = path + ".tmp"
    try:
        _write_synced(tmp, state)
        if _is_whole(path):  # A damaged file must not push out a good previous one.
            os.replace(path, path + ".previous")
        os.replace(tmp, path)
        _sync_directory(path)
    except BaseException:
        if os.path.exists(tmp):
            os.remove(tmp)
        raise


def load(path: str) -> dict:
    """Returns the state in the one file `path`, its tensors on the CPU.

    Raises:
        CheckpointError: the file is cut short, changed, or was not written by `save`.
        OSError: the file is missing or cannot be read.
    """
    data = _read_verified(path)
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises several kinds, none of which names the file.
        raise CheckpointError(f"{path}: whole, but torch.load refuses it: {error}") from error


def load_newest(path: str) -> dict | None:
    """Returns the state in `path`, or in `path + ".previous"` where the newer one is of no use.

    The second case is logged as an error. Where neither file exists, the run is new: None.

    Raises:
        CheckpointError: files exist, but none loads. The caller must not start from scratch.
    """
    previous = path + ".previous"
    if not (os.path.lexists(path) or os.path.lexists(previous)):
        return None
    reasons = []
    for candidate in (path, previous):
        try:
            state = load(candidate)
        except (CheckpointError, OSError) as error:
            reasons.append(str(error))
            continue
        if reasons:
            used = f"{candidate}, at step {state.get('step', 'unknown')}"
            logger.error("Checkpoint not usable: %s. Used instead: %s.", reasons[0], used)
        return state
    raise CheckpointError(
        f"neither {path} nor {previous} can be used: {'; '.join(reasons)}. "
        "Restore one of them, or move both away to start from scratch."
    )


class RunCheckpoints:
    """The checkpoints of one run: refuses those of another network, counts what cannot be saved.

    Args:
        path: of the newest checkpoint.
        identity: what a checkpoint must share with the run that goes on from it, as plain data.
        enabled: False (--disable_checkpoint) saves nothing.
    """

    def __init__(self, path: str, identity: dict[str, Any], enabled: bool):
        self.path = path
        self.errors = 0
        self.saved_updates = 0  # of the newest checkpoint
        self._identity, self._enabled = identity, enabled

    def load(self) -> dict | None:
        """The newest state, or None where there is none.

        Raises:
            UserError: it is of another environment or network.
            CheckpointError: files exist, but none loads.
        """
        state = load_newest(self.path)
        if state is None:
            return None
        for name, now in self._identity.items():
            if state[name] != now:
                self._refuse(name, state[name], now)
        self.saved_updates = state["updates"]
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Saves, or logs and counts why it could not: a full disk is no reason to stop."""
        if not self._enabled:
            return
        try:
            save(self.path, state | self._identity)
        except OSError as error:
            self.errors += 1
            logger.error("Checkpoint not saved, the one before it stays: %s", error)
        else:
            self.saved_updates = state["updates"]
            logger.info("Checkpoint saved at step %d: %s", state["step"], self.path)

    def is_behind(self, updates: int) -> bool:
        """Whether the newest checkpoint lacks some of so many updates, and should not."""
        return self._enabled and updates > self.saved_updates

    def _refuse(self, name: str, seen: Any, now: Any) -> NoReturn:
        if isinstance(now, dict):  # name only the entries that differ
            differing = {k for k in now.keys() | seen.keys() if now.get(k) != seen.get(k)}
            now = {k: now.get(k) for k in sorted(differing)}
            seen = {k: seen.get(k) for k in sorted(differing)}
        raise UserError(
            f"{self.path} is of another {name}: it has {seen}, the flags now give {now}. Choose "
            f"another --xpid, or the flags of that run."
        )


def random_states() -> dict:
    """Returns the states of the global generators of Python, NumPy and torch, in types for `save`.

    torch's are the CPU's and, where CUDA is in use, every device's.
    """
    name, key, *rest = np.random.get_state()
    return dict(
        python=random.getstate(),
        numpy=(name, key.tolist(), *rest),
        torch=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    )


def set_random_states(states: dict) -> None:
    """Sets what `random_states` returned; another number of CUDA devices than then is logged."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    devices = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    saved = len(states["cuda"])
    if saved != devices:
        logger.warning("The random states are of %d CUDA devices; here are %d.", saved, devices)
    for device, state in enumerate(states["cuda"][:devices]):
        torch.cuda.set_rng_state(state, device)


def _check_types(value: object, where: str) -> None:
    """Exact types: a NumPy float or an enum passes `isinstance`, but not `weights_only`."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            _check_types(key, f"a key of {where}")
            _check_types(item, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _check_types(item, f"{where}[{index}]")
    elif type(value) not in (*_LEAVES, torch.Tensor, torch.nn.Parameter):
        raise ValueError(
            f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds "
            "tensors, numbers, strings, bools, None, lists, tuples and dicts"
        )


def _write_synced(path: str, state: dict) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    # A ZIP archive ends in the length of its comment (two bytes, 0 so far) and the comment.
    buffer.seek(-2, os.SEEK_END)
    buffer.write(struct.pack("<H", _COMMENT_SIZE))
    buffer.write(_comment(buffer.getbuffer()))
    with open(path, "wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())


def _comment(data: bytes | memoryview) -> bytes:
    return _PREFIX + hashlib.sha256(data).hexdigest().encode()


def _read_verified(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read()
    seen = data[-_COMMENT_SIZE:]
    if not seen.startswith(_PREFIX):
        raise CheckpointError(
            f"{path}: no digest at the end of its {len(data)} bytes; cut short, or not a checkpoint"
        )
    expected = _comment(memoryview(data)[:-_COMMENT_SIZE])
    if seen != expected:
        raise CheckpointError(
            f"{path}: damaged, its bytes give {expected.decode()} "
            f"but its end says {seen.decode(errors='replace')}"
        )
    return data


def _is_whole(path: str) -> bool:
    try:
        return bool(_read_verified(path))
    except FileNotFoundError:
        return False
    except (CheckpointError, OSError) as error:
        logger.error("Overwriting a checkpoint that is not usable: %s", error)
        return False


def _sync_directory(path: str) -> None:
    """Makes the renames outlive a power failure."""
    descriptor = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
