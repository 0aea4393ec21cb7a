# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The files of one run, and SAVEDIR/latest that links to the run started last.

In SAVEDIR/XPID/ lie, beside the checkpoint:

    meta.json           flags, command, commit, versions, machine; one entry more for each resume
    logs.csv            one row per `log`; the curve as a function of step
    logs.discarded.csv  rows of steps that a resume took back: the checkpoint was older than the row
    out.log             everything that went through `logging`
    events.out.*        the same numbers for TensorBoard, and histograms (trackers.py)
    lock                held while the run is alive, so that no second run writes here
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import errno
import fcntl
import importlib.metadata
import io
import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libtorchbeast.flags import as_plain
from libtorchbeast.loggers.trackers import Counts, Tracker, open_trackers

logger = logging.getLogger(__name__)


class RunInUse(RuntimeError):
    """Another living process has the run open."""


@contextlib.contextmanager
def hold(run: str | Path):
    """Owns the run's folder, which is made, for this process; the kernel frees it however the
    process ends. To be entered before anything in it is read.

    Raises:
        RunInUse: another living process holds it.
        OSError: it cannot be made.
    """
    run = Path(run).expanduser()
    run.mkdir(parents=True, exist_ok=True)
    with open(run / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RunInUse(
                f"the run {run} is in use by process {file.read().strip() or 'unknown'}; "
                "stop that one, or choose another --xpid"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


class FileWriter:
    """Writes into the folder SAVEDIR/XPID, which the caller must `hold`; used from one thread.

    Args:
        savedir: the folder of all runs; `~` is expanded.
        xpid: the run's name and folder.
        flags: goes into meta.json; a value that JSON does not know is written as `str(value)`.
        fieldnames: the columns of logs.csv after `_tick` (row number) and `_time` (Unix seconds);
            `step` is one of them.
        resume_step: the step of the checkpoint that this run goes on from; None starts at 0. Rows
            that an earlier process logged beyond it are moved to logs.discarded.csv.

    Raises:
        ValueError: `xpid` is no plain folder name, or `fieldnames` lack `step` or repeat a name.
        OSError: the folder or its files cannot be written.
    """

    def __init__(
        self,
        savedir: str,
        xpid: str,
        flags: dict[str, Any],
        fieldnames: Sequence[str],
        resume_step: int | None = None,
    ) -> None:
        if xpid != Path(xpid).name or xpid in ("", "..", "latest"):
            raise ValueError(f"xpid must be a plain folder name other than 'latest', not {xpid!r}")
        self._columns = ["_tick", "_time", *fieldnames]
        if "step" not in fieldnames or len(set(self._columns)) != len(self._columns):
            raise ValueError(f"fieldnames must hold 'step' and no name twice: {self._columns}")
        self._path = Path(savedir).expanduser() / xpid
        self._path.mkdir(parents=True, exist_ok=True)
        self.errors = 0  # writes that failed since the start
        self._trackers: list[Tracker] = []
        self._told: set[str] = set()  # the kinds of failure that were logged
        with contextlib.ExitStack() as stack:  # Undoes what is open, should a later line raise.
            stack.enter_context(_root_handler(self._path / "out.log"))
            _link_latest(self._path)
            started, again = _write_meta(self._path / "meta.json", xpid, flags, resume_step)
            last_step = -1 if resume_step is None else resume_step
            self._tick = _open_table(self._path / "logs.csv", self._columns, last_step)
            self._csv = stack.enter_context(_LineFile(self._path / "logs.csv"))
            purge_step = last_step + 1 if again else None
            self._trackers = open_trackers(self._path, xpid, flags, started, purge_step)
            self._open = stack.pop_all()

    @property
    def path(self) -> Path:
        """SAVEDIR/XPID."""
        return self._path

    def log(self, row: dict[str, Any], histograms: dict[str, Counts] | None = None) -> None:
        """Appends one row to logs.csv, and to the trackers, where x = `row["step"]`; `histograms`
        go to the trackers only.

        A column that is absent, None, NaN or infinite stays empty. A failing write is counted in
        `errors` and logged when it is the first of its kind; training goes on.

        Raises:
            ValueError: a key is not in `fieldnames`, or a value is not a number.
        """
        unknown = sorted(set(row) - set(self._columns[2:]))
        if unknown:
            raise ValueError(f"unknown columns {unknown}; logs.csv has {self._columns[2:]}")
        cells = {name: _cell(name, value) for name, value in row.items()}
        cells = {name: value for name, value in cells.items() if value is not None}
        stamp = {"_tick": self._tick, "_time": round(time.time(), 3)}
        self._tick += 1
        try:
            self._csv.append(_csv_text(self._columns, [stamp | cells]))
        except OSError as error:
            self._count("logs.csv misses a row", error)
        for tracker in list(self._trackers if "step" in cells else ()):
            try:
                tracker.log(cells, {k: v for k, v in (histograms or {}).items() if v})
            except OSError as error:
                self._trackers.remove(tracker)  # Its writing thread is dead and cannot be revived.
                self._count(f"{_name(tracker)} gets nothing more until the run is resumed", error)

    def close(self) -> None:
        """Closes the files. May be called twice."""
        while self._trackers:
            tracker = self._trackers.pop()
            try:
                tracker.close()
            except OSError as error:
                self._count(f"the last of what {_name(tracker)} got is lost", error)
        self._open.close()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _count(self, consequence: str, error: OSError) -> None:
        self.errors += 1
        if consequence not in self._told:
            self._told.add(consequence)
            logger.error("%s (%s). Later failures are only counted.", consequence, error)


def read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and rows of a table that `FileWriter` wrote.

    A kill may cut the last line in half (a whole one ends in a newline); it is left out and logged.

    Raises:
        OSError: the file cannot be read.
    """
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    header, *rows = list(csv.reader(line for line in lines if line.endswith("\n"))) or [[]]
    good = [row for row in rows if len(row) == len(header)]
    damaged = max(len(lines) - 1, 0) - len(good)
    if damaged:
        logger.warning("%s: left out %d damaged line(s), as a kill leaves them", path, damaged)
    return header, [dict(zip(header, row, strict=True)) for row in good]


class _LineFile:
    """Appends whole lines: the half that a failed write left is cut off before the next line."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # A buffer would write failed lines again.
        self._size = self._file.tell()

    def append(self, line: str) -> None:
        data = line.encode()
        self._file.truncate(self._size)
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, "only part of a line could be written", self._file.name)
        self._size += len(data)

    def __enter__(self) -> _LineFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()


class _OutLog(logging.Handler):
    """Like logging.FileHandler, but a full disk costs the line and not a traceback per line."""

    def __init__(self, file: _LineFile) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._file.append(self.format(record) + "\n")
        except OSError:
            pass  # Nowhere to tell; the terminal's handler has its own copy.
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def _root_handler(path: Path):
    """Copies what is logged at INFO and above, by any module, to the end of `path`."""
    root = logging.getLogger()
    level = root.level
    with _LineFile(path) as file:
        handler = _OutLog(file)
        root.addHandler(handler)
        root.setLevel(min(level, logging.INFO))
        try:
            yield
        finally:
            root.setLevel(level)
            root.removeHandler(handler)


def _link_latest(run: Path) -> None:
    latest = run.parent / "latest"
    if latest.exists() and not latest.is_symlink():
        logger.warning("%s is not a link; left as it is", latest)
        return
    beside = run.parent / f".latest.{os.getpid()}"
    try:
        beside.unlink(missing_ok=True)
        beside.symlink_to(run.name)
        beside.replace(latest)
    except OSError as error:  # A file system without links.
        logger.warning("%s not linked: %s", latest, error)


def _name(tracker: object) -> str:
    return type(tracker).__name__


def _write_meta(path: Path, xpid: str, flags: dict, resume_step: int | None) -> tuple[str, bool]:
    """Writes meta.json, or adds an entry to the one that is there. Returns when the run was first
    started, and whether it was there."""
    flags = as_plain(flags)
    now = {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), **_origin()}
    again = path.exists()
    if again:
        meta = json.loads(path.read_text())
        changed = _changed_flags(meta, flags)
        meta["resumed"].append({"step": resume_step or 0, "changed_flags": changed, **now})
        if changed:
            logger.info("Flags changed since the run was last started (old, new): %s", changed)
    else:
        meta = {"xpid": xpid, "flags": flags, **now, "resumed": []}
    _write_whole(path, json.dumps(meta, indent=2) + "\n")
    return meta["date"], again


def _changed_flags(meta: dict, flags: dict) -> dict[str, dict]:
    """{name: {old, new}} against the latest earlier start; a flag that does not exist is None."""
    before = dict(meta["flags"])
    for entry in meta["resumed"]:
        before.update({name: change["new"] for name, change in entry["changed_flags"].items()})
    return {
        name: {"old": before.get(name), "new": flags.get(name)}
        for name in sorted({*before, *flags})
        if before.get(name) != flags.get(name)
    }


def _origin() -> dict[str, Any]:
    """What made the numbers: command, code, versions, machine. No environment variables."""
    versions = {"python": platform.python_version()}
    for package in ("torch", "numpy", "gymnasium", "ale-py"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    machine = {"platform": platform.platform(), "cpu_count": os.cpu_count(), "cpu": _cpu_model()}
    return {"command": sys.argv, **_git(), "versions": versions, "machine": machine}


def _git() -> dict[str, Any]:
    """The commit that this file is part of and whether tracked files differ from it; else {}."""
    folder = str(Path(__file__).resolve().parent)

    def git(*args: str) -> str:
        command = ["git", "--no-optional-locks", "-C", folder, *args]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # Not a checkout around a venv.
        commit = git("rev-parse", "HEAD").strip()
        return {"commit": commit, "dirty": bool(git("status", "--porcelain", "-uno").strip())}
    except (OSError, subprocess.SubprocessError):
        return {}


def _cpu_model() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _open_table(path: Path, columns: list[str], last_step: int) -> int:
    """Makes the table ready for rows beyond `last_step`; returns the number of the next one."""
    kept, gone = [], []
    for row in _rows_in(path, columns):
        (kept if float(row.get("step") or 0) <= last_step else gone).append(row)
    if gone:
        discarded = path.with_suffix(".discarded.csv")
        logger.warning("%s: %d rows beyond step %d go to %s", path, len(gone), last_step, discarded)
        earlier = _rows_in(discarded, columns)
        _write_whole(discarded, _csv_text(columns, earlier + gone, header=True))
    _write_whole(path, _csv_text(columns, kept, header=True))
    return 1 + max((int(row.get("_tick") or 0) for row in kept), default=-1)


def _rows_in(path: Path, columns: list[str]) -> list[dict[str, str]]:
    """The table's rows, if it exists; one with other columns is also kept as PATH.<n>."""
    if not path.exists():
        return []
    header, rows = read_csv(path)
    if header != columns:
        number = 1
        while (aside := Path(f"{path}.{number}")).exists():
            number += 1
        aside.write_bytes(path.read_bytes())
        logger.warning("%s has other columns than this code: the old file is %s", path, aside)
    return rows


def _csv_text(columns: list[str], rows: list[dict], header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cell(name: str, value: Any) -> int | float | None:
    """A finite Python number, or None for "does not exist"."""
    if value is None:
        return None
    value = value.item() if hasattr(value, "item") else value  # NumPy scalars, tensors
    if not isinstance(value, (int, float)):
        raise ValueError(f"column {name!r} takes numbers, not {value!r}")
    value = int(value) if isinstance(value, bool) else value
    return value if math.isfinite(value) else None


def _write_whole(path: Path, text: str) -> None:
    """The file holds either its old content or all of `text`, whatever happens."""
    beside = Path(f"{path}.tmp")
    with open(beside, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
