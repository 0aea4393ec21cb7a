# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The files of one run.

In the folder SAVEDIR/XPID lie, beside the checkpoint:

    meta.json           flags, command, commit, versions, machine; another entry for each resume
    logs.csv            one row for each call of `log`
    logs.discarded.csv  rows that a resume took back, because they were newer than its checkpoint
    out.log             everything that went through `logging`
    events.out.*        the same numbers for TensorBoard, and histograms (trackers.py)
    lock                locked while the run is alive, so that no second process writes here

SAVEDIR/latest is a link to the run that was started last.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libtorchbeast.loggers.csv_table import CsvTable
from libtorchbeast.loggers.files import copy_of_log, link_latest
from libtorchbeast.loggers.meta import write_meta
from libtorchbeast.loggers.trackers import Counts, Tracker, open_trackers

logger = logging.getLogger(__name__)


class FileWriter:
    """Writes into the folder SAVEDIR/XPID, which the caller must `hold` (files.py). All calls have
    to come from one thread.

    Args:
        savedir: the folder of all runs; `~` is expanded.
        xpid: the name of the run and of its folder.
        flags: they are written into meta.json.
        fieldnames: the columns of logs.csv after _tick and _time; `step` is one of them. A row may
            add others.
        resume_step: the step of the checkpoint that the run goes on from; None starts at 0. Rows
            that an earlier process logged beyond this step are moved to logs.discarded.csv.

    Raises:
        ValueError: `xpid` is no plain folder name, or `fieldnames` lack `step` or have a name
            twice.
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
        self._path = Path(savedir).expanduser() / xpid
        self._path.mkdir(parents=True, exist_ok=True)
        self._logged_failures: set[str] = set()
        last_step = -1 if resume_step is None else resume_step
        with contextlib.ExitStack() as stack:  # closes what is open if a later line raises
            stack.enter_context(copy_of_log(self._path / "out.log"))
            link_latest(self._path)
            existed = (self._path / "meta.json").exists()
            started = write_meta(self._path / "meta.json", xpid, flags, resume_step)
            table = CsvTable(self._path / "logs.csv", fieldnames, last_step)
            self._table = stack.enter_context(contextlib.closing(table))
            purge_step = last_step + 1 if existed else None
            self._trackers: list[Tracker] = open_trackers(
                self._path, xpid, flags, started, purge_step
            )
            self._open = stack.pop_all()

    @property
    def path(self) -> Path:
        """SAVEDIR/XPID."""
        return self._path

    def log(self, row: dict[str, Any], histograms: dict[str, Counts] | None = None) -> None:
        """Appends one row to logs.csv, and hands it to the trackers, whose x axis is `row["step"]`.
        `histograms` go to the trackers only.

        The cell of a column that is absent, None, NaN or infinite stays empty. A write that fails
        is logged when it is the first of its kind; training goes on.

        Raises:
            ValueError: a key is _tick or _time, or a value is not a number.
        """
        cells = self._table.cells(row)
        try:
            self._table.append(cells)
        except OSError as error:
            self._log_failure("logs.csv misses a row", error)
        if "step" in cells:
            self._track(cells, {k: v for k, v in (histograms or {}).items() if v})

    def _track(self, cells: dict[str, float], histograms: dict[str, Counts]) -> None:
        for tracker in list(self._trackers):
            try:
                tracker.log(cells, histograms)
            except OSError as error:
                # The tracker's own writing thread has ended and cannot be started again.
                self._trackers.remove(tracker)
                name = type(tracker).__name__
                self._log_failure(f"{name} gets nothing more until the run is resumed", error)

    def close(self) -> None:
        """Closes the files. May be called twice."""
        while self._trackers:
            tracker = self._trackers.pop()
            try:
                tracker.close()
            except OSError as error:
                name = type(tracker).__name__
                self._log_failure(f"the newest numbers that {name} got are lost", error)
        self._open.close()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _log_failure(self, consequence: str, error: OSError) -> None:
        if consequence not in self._logged_failures:
            self._logged_failures.add(consequence)
            logger.error("%s (%s). This is logged once.", consequence, error)
