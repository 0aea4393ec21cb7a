# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Checkpoints that survive a kill, a full disk and a flipped bit.

A checkpoint is an ordinary `torch.save` file, so `torch.load(path)` reads it. Such a file is a ZIP
archive, and a ZIP archive may end with a comment. Here the comment is the SHA-256 digest of all
bytes before it. So checkpoint and digest are one file, which one rename puts in place, and `load`
notices every byte that was changed, added or lost.

    PATH            the newest checkpoint
    PATH.previous   the one before it
    model.best.tar  the weights that evaluated best, beside a run's model.tar, without .previous
    kept/STEP.tar   the weights at that step (--keep_checkpoints_every)
    PATH.tmp        left by a process that was killed during `save`; the next `save` overwrites it
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import logging
import math
import os
import random
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from libtorchbeast.accelerator import devices
from libtorchbeast.distributed import ranks
from libtorchbeast.flags import (
    Flags,
    UserError,
    as_plain,
    choose_xpid,
    from_settings,
    given,
    parse_args,
    run_path,
    take_over,
)
from libtorchbeast.loggers.files import hold, write_whole

_DIGEST_SIZE = len("sha256:") + 2 * hashlib.sha256().digest_size
_LEAVES = (type(None), bool, int, float, str)

logger = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used or saved. The message names the file and the reason."""


def save(path: str, state: dict, keep_previous: bool = True) -> None:
    """Writes `state` to `path`. The checkpoint that was there becomes `path + ".previous"`, unless
    `keep_previous` is False.

    The archive is built in memory first, which takes one more copy of the state, because
    `torch.save` raises an unspecific RuntimeError if it writes to a full disk itself. After an
    error the older files are unchanged and no `.tmp` file is left.

    Raises:
        ValueError: `state` holds something that `torch.load(weights_only=True)` would refuse.
        OSError: the file cannot be written, for example because the disk is full. The caller may
            catch this and continue.
    """

    def keep() -> None:
        if keep_previous and _is_whole(path):  # a damaged file must not replace a good previous one
            os.replace(path, f"{path}.previous")

    _check_types(state, "state")
    write_whole(Path(path), _with_digest(state), first=keep)


def load(path: str) -> dict:
    """Returns the state in the file `path`, with all tensors on the CPU.

    Raises:
        CheckpointError: the file is truncated or changed, or was not written by `save`.
        OSError: the file is missing or cannot be read.
    """
    data = _verified(path)
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises exceptions of several types without the file's name
        raise CheckpointError(f"{path}: intact, but torch.load refuses it: {error}") from error


def load_newest(path: str) -> dict | None:
    """Returns the state in `path`, or the one in `path + ".previous"` if the newer file cannot be
    used, which is logged as an error. Returns None if neither file exists, as in a new run. Raises
    CheckpointError if files exist, but none of them loads. The caller must not start from scratch,
    because that would overwrite them."""
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
            logger.error("Checkpoint not usable: %s. The run uses %s.", reasons[0], used)
        return state
    said = f"neither {path} nor {previous} can be used: {'; '.join(reasons)}"
    raise CheckpointError(f"{said}. Restore one of them, or choose another run or file.")


def saved_step(folder: Path) -> int | None:
    """The step of a run's newest checkpoint: 0 if none can be read, None if there is no file. This
    takes milliseconds, because tensors, such as a replay, are not read, nor is the digest checked.
    """
    newest = f"{folder}/model.tar"
    files = [path for path in (newest, f"{newest}.previous") if os.path.exists(path)]
    for path in files:
        with contextlib.suppress(Exception):  # torch raises exceptions of several types
            return int(torch.load(path, mmap=True, weights_only=True, map_location="cpu")["step"])
    return 0 if files else None


def path_of(flags: argparse.Namespace) -> str:
    """The checkpoint of a run that the program resumes from or plays with."""
    is_best = flags.best and flags.mode != "train"
    return os.path.join(run_path(flags), "model.best.tar" if is_best else "model.tar")


def kept_files(folder: str) -> dict[int, str]:
    """The files that --keep_checkpoints_every has kept of the run in `folder`: {step: path}, from
    the oldest to the newest."""
    paths = sorted(Path(folder, "kept").glob("*.tar"))
    return {int(path.stem): str(path) for path in paths if path.stem.isdecimal()}


def misfit(own: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> str:
    """Names the first of the network's `own` weights that differs in name or shape from those of a
    checkpoint. "" if none does."""
    shapes, seen = ({k: list(v.shape) for k, v in weights.items()} for weights in (own, saved))
    for name in shapes | seen:
        if shapes.get(name) != seen.get(name):
            there, here = seen.get(name, "missing"), shapes.get(name, "missing")
            why = " (see --observation_scaling)" if "moments." in name else ""
            return f"{name} is {there} there and {here} here{why}"
    return ""


def initial_weights(
    flags: Flags, own: dict[str, torch.Tensor], flag: str = "init_from"
) -> dict[str, torch.Tensor]:
    """Returns the weights of the run or checkpoint that --init_from names, or another flag.

    Args:
        own: the weights of the network that gets them.

    Raises:
        UserError: there is no such checkpoint, or its weights have other names or shapes.
        CheckpointError: it cannot be read.
    """
    name = getattr(flags, flag)
    path = os.path.join(os.path.expanduser(flags.savedir), name)
    if not os.path.exists(path):
        path = os.path.expanduser(name)
    if os.path.isdir(path):
        path = os.path.join(path, "model.tar")
    state = load_newest(path)
    if state is None:
        said = f"there is no checkpoint {path}, and no run {name} in {flags.savedir}"
        raise UserError(f"--{flag} {name}: {said}")
    if why := misfit(own, state["model"]):
        said = f"does not fit the network for {flags.env}: {why}"
        trained = f"{state['net']} trained on {state['env']}"
        raise UserError(f"--{flag} {name}: {path}, {trained}, {said}")
    logger.info("--%s: the weights of %s, trained for %d steps", flag, path, state["step"])
    return state["model"]


def parse_for_run(
    make_parser: Callable[[], argparse.ArgumentParser], argv: list[str]
) -> argparse.Namespace:
    """Parses a command line. If the run that it names has a checkpoint, the flags that it leaves
    out get the run's values (see `flags.take_over`). Under torchrun this joins the other ranks,
    and all get the flags of rank 0, which alone reads and writes the run's folder. The flags are
    still to be completed and checked.

    Raises:
        UserError: a flag is wrong, or a run that shall resume has only weights.
        RunInUse: another process has the run open.
        CheckpointError: the run's files exist, but none of them loads.
    """
    try:
        draft = parse_args(make_parser(), argv)
        ranks.check_flags(draft)
    except UserError:
        if ranks.local_rank():  # this machine's first rank has the same flags, and prints the error
            sys.exit(1)
        raise
    others = ranks.join(draft)
    if others is not None and others.rank > 0:
        return from_settings(make_parser(), others.settings())
    settings = given(make_parser(), argv)
    choose_xpid(draft)
    path = path_of(draft)
    was_begun = draft.mode == "train" and os.path.exists(os.path.join(run_path(draft), "lock"))
    with hold(run_path(draft)) if was_begun else contextlib.nullcontext():
        state = load_newest(path)  # of a process that still trains, the flags would be too old
    if state is not None:
        if draft.mode == "train" and "optimizer" not in state:
            hint = f"--init_from {path} starts a new run with these weights."
            raise UserError(f"{path} has weights only, so no training can resume from it. {hint}")
        take_over(draft, _flags_of(state), settings, make_parser())
        ranks.check_flags(draft)  # --num_actors 0 may come from the run
        if draft.mode == "train":  # before the other environment is opened
            _require_same(path, state, {"env": draft.env})
        _refuse_own_modules(draft, settings)
    elif draft.mode == "train" and "env" not in settings:
        _refuse_another_env(draft)
    if others is not None:
        others.give_settings(vars(draft))
    return draft


def _refuse_another_env(draft: argparse.Namespace) -> None:
    """Raises UserError if --xpid names a run without a checkpoint that was begun with another --env
    than the default, which the command line does not name."""
    begun = draft.env
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # none begun by us
        begun = json.loads(Path(run_path(draft), "meta.json").read_text())["flags"]["env"]
    if begun != draft.env:
        said = f"of {begun} has no checkpoint from which it could resume: give --env {begun}"
        more = "and its other flags (meta.json) to begin it again, or another --xpid"
        raise UserError(f"run {draft.xpid} {said} {more}")


def _refuse_own_modules(draft: argparse.Namespace, settings: Collection[str]) -> None:
    """Raises UserError if a flag that only the checkpoint gives names a module in the run's folder,
    so that whoever may write there cannot make the program run code of their own."""
    folder = Path(run_path(draft)).resolve()
    for flag in {"env", "net", "eval_env"} - {*settings}:
        for name in f"{getattr(draft, flag, None)}".split(","):
            module = name.strip().rpartition("." if flag == "net" else ":")[0]
            places = [Path(path, *module.split(".")).resolve() for path in sys.path if module]
            if any(place.is_relative_to(folder) for place in places):
                said = "names a module in the run's folder; to import it, give the flag"
                raise UserError(f"--{flag} {name} {said} ({folder})")


def _flags_of(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's flags."""
    saved = {"minibatches": 1} | state["flags"]
    saved["env"] = state["env"]  # the name that the servers gave
    if saved.get("use_lstm"):
        saved["core"] = saved.get("core") or "lstm"
    return saved


class RunCheckpoints:
    """Saves and loads the checkpoints of one run.

    Args:
        path: the path of the newest checkpoint.
        identity: the properties that a checkpoint must share with the run that resumes from it, as
            plain data.
        enabled: False if --disable_checkpoint is given. Then nothing is saved.

    Attributes:
        errors: how many times saving has failed.
        saved_updates: the number of updates in the newest checkpoint.
        best_score: the mean return, or in self-play the rating, of the weights in model.best.tar.
    """

    def __init__(self, path: str, identity: dict[str, Any], enabled: bool):
        self.path = path
        self.errors = 0
        self.saved_updates = 0
        self.best_path = os.path.join(os.path.dirname(path), "model.best.tar")
        self.best_score = -math.inf
        self._opponents: str | None = None  # of these weights
        self._identity, self.enabled = identity, enabled

    def load(self) -> dict | None:
        """Returns the newest state, or None if there is no checkpoint.

        Raises:
            UserError: the checkpoint belongs to another environment or network.
            CheckpointError: files exist, but none of them loads.
        """
        state = load_newest(self.path)
        if state is None:
            return None
        _require_same(self.path, state, self._identity)
        self.saved_updates = state["updates"]
        try:
            best = load(self.best_path)
            self.best_score, self._opponents = best["mean_eval_return"], _opponents(best)
        except FileNotFoundError:
            pass
        except (CheckpointError, OSError, KeyError) as error:
            logger.error("The next evaluation replaces a checkpoint that is not usable: %s", error)
        return state

    def save(self, state: dict[str, Any]) -> bool:
        """Saves `state`. If that fails, for example on a full disk, the error is logged and
        counted, and training goes on. Returns whether it was saved."""
        if is_saved := self.enabled and self.try_save(self.path, state):
            self.saved_updates = state["updates"]
            logger.info("Checkpoint saved at step %d: %s", state["step"], self.path)
        return is_saved

    def save_if_best(self, score: float, evaluated: dict[str, Any]) -> None:
        """Saves the weights of `evaluated` to model.best.tar, if no other weights of the run had as
        high a score with the same --eval_env. A failure is handled as in `save`."""
        is_same = _opponents(evaluated) == self._opponents
        if not self.enabled or not score > (self.best_score if is_same else -math.inf):
            return
        state = evaluated | {"mean_eval_return": score}
        if self.try_save(self.best_path, state, keep_previous=False):
            self.best_score, self._opponents = score, _opponents(evaluated)
            of_what, said = self._opponents or "return", "Best so far, %g (%s) at step %d: %s"
            logger.info(said, score, of_what, state["step"], self.best_path)

    def try_save(self, path: str, state: dict[str, Any], keep_previous: bool = True) -> bool:
        """Saves `state` with the identity. Returns False after an error, which this logs."""
        try:
            save(path, state | self._identity, keep_previous)
        except OSError as error:
            self.errors += 1
            logger.error("Checkpoint not saved, and no file replaced: %s", error)
            return False
        return True


def _require_same(path: str, state: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raises UserError unless the checkpoint's `state` has these properties."""
    other = ((name, state[name], now) for name, now in identity.items() if state[name] != now)
    for name, seen, now in other:
        count = ""
        if isinstance(now, dict):  # name only entries that differ, the first three of them
            differing = sorted(k for k in now.keys() | seen.keys() if now.get(k) != seen.get(k))
            now, seen = ({k: one.get(k, "missing") for k in differing[:3]} for one in (now, seen))
            count = f" ({len(differing)} entries differ)" if len(differing) > 3 else ""
        others = {"spec": "other observations or actions", "shapes": "weights of other shapes"}
        what = others.get(name, f"another {name}")
        both = f"it has {seen}, the run now has {now}"
        hint = "Choose another --xpid, or use the flags, the environment and the Net of that run."
        raise UserError(f"{path} has {what}{count}: {both}. {hint}")


def _opponents(evaluated: dict[str, Any]) -> str | None:
    """The --eval_env with which these weights were evaluated, or that their score is the rating."""
    flags = evaluated.get("flags", {})
    return flags.get("eval_env") or ("rating" if flags.get("past_share") else None)


class KeptWeights:
    """Keeps weights of a learner.Learner in files (--keep_checkpoints_every). At a resume, files
    that are newer than the checkpoint are renamed to discarded-*, since the run will make them
    again. A new run keeps its first weights at once, so that there is always an opponent."""

    def __init__(self, checkpoints: RunCheckpoints, flags: Flags, learner: Any):
        self._checkpoints, self._flags, self._learner = checkpoints, flags, learner
        self._folder = os.path.dirname(checkpoints.path)
        self._every = flags.keep_checkpoints_every if checkpoints.enabled else 0
        files = kept_files(self._folder) if checkpoints.enabled else {}
        self._discard([files.pop(step) for step in [*files] if step > (learner.step or -1)])
        self._newest, self._due = max(files, default=-1), 0.0  # its step; when to try again
        if self._every:
            most, weights = flags.keep_checkpoints, learner.net.state_dict().values()
            size = sum(x.numel() * x.element_size() for x in weights) / 2**20
            logger.info("Weights are kept in at most %d files of %.2g MiB", most, size)
        self.keep()

    def keep(self, is_last: bool = False) -> None:
        """Keeps the weights if the last multiple of --keep_checkpoints_every is not kept yet, and
        deletes the oldest file if there are more than --keep_checkpoints. What could not be saved
        is tried again after --checkpoint_every seconds, or if this call `is_last`."""
        every = self._every
        is_kept = not every or self._learner.step // every * every <= self._newest
        if is_kept or (time.monotonic() < self._due and not is_last):
            return
        state = self._learner.state_dict()
        weights = {name: state[name] for name in ("model", "step", "updates")}
        weights["flags"] = as_plain(vars(self._flags))
        newest = state["step"] // every * every
        path = os.path.join(self._folder, "kept", f"{newest:012}.tar")
        with contextlib.suppress(OSError):  # `try_save` will say why
            os.mkdir(os.path.dirname(path))  # not the run's own folder, if that was renamed
        if not self._checkpoints.try_save(path, weights, keep_previous=False):
            self._due = time.monotonic() + self._flags.checkpoint_every
            return
        self._newest = newest
        for path in [*kept_files(self._folder).values()][: -self._flags.keep_checkpoints]:
            try:
                os.remove(path)
            except OSError as error:  # the run goes on
                logger.warning("A file of kept weights could not be deleted: %s", error)

    def _discard(self, paths: list[str]) -> None:
        for path in map(Path, paths):
            try:
                new = path.replace(path.with_name(f"discarded-{path.name}"))
                logger.warning("%s is newer than this run, and is now %s", path, new.name)
            except OSError as error:
                logger.warning("Kept weights that are newer than this run stay: %s", error)


def random_states() -> dict:
    """Returns the states of the global random generators of Python, NumPy and torch, in types that
    `save` accepts. torch has one generator for the CPU and one for each accelerator."""
    name, key, *rest = cast(tuple, np.random.get_state(legacy=True))
    return dict(
        python=random.getstate(),
        numpy=(name, key.tolist(), *rest),
        torch=torch.get_rng_state(),
        cuda=devices.random_states(),  # of any accelerator
    )


def set_random_states(states: dict) -> None:
    """Restores what `random_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    devices.set_random_states(states["cuda"])


def _check_types(value: Any, where: str) -> None:
    """Raises ValueError unless `torch.load(weights_only=True)` will accept the value. It refuses
    subclasses, too: a NumPy float or an enum would pass `isinstance`, but not the load."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            _check_types(key, f"a key of {where}")
            _check_types(item, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _check_types(item, f"{where}[{index}]")
    elif type(value) not in (*_LEAVES, torch.Tensor, torch.nn.Parameter):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        holds = "tensors, numbers, strings, bools, None, lists, tuples and dicts"
        raise ValueError(f"{where} is a {kind}; a checkpoint holds {holds}")


def _with_digest(state: dict) -> memoryview:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    # A ZIP archive ends with the length of its comment, in two bytes that are 0 so far, and with
    # the comment itself.
    buffer.seek(-2, os.SEEK_END)
    buffer.write(struct.pack("<H", _DIGEST_SIZE))
    buffer.write(_digest(buffer.getbuffer()))
    return buffer.getbuffer()


def _digest(data: memoryview) -> bytes:
    return b"sha256:" + hashlib.sha256(data).hexdigest().encode()


def _verified(path: str) -> memoryview:
    """The bytes of a file. Raises CheckpointError unless they end with their digest."""
    data = memoryview(Path(path).read_bytes())
    if data[-_DIGEST_SIZE:] != _digest(data[:-_DIGEST_SIZE]):
        raise CheckpointError(f"{path}: damaged, or not a checkpoint: its digest does not fit")
    return data


def _is_whole(path: str) -> bool:
    try:
        return bool(_verified(path))
    except FileNotFoundError:
        return False
    except (CheckpointError, OSError) as error:
        logger.error("Overwriting a checkpoint that is not usable: %s", error)
        return False
