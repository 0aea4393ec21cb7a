# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The files of one run, which docs/running.md lists: meta.json, logs.csv, out.log and what trackers
write. The newest run is also SAVEDIR/latest.
"""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libtorchbeast.loggers.csv_table import CsvTable
from libtorchbeast.loggers.files import cannot_write, copy_of_log, link_latest
from libtorchbeast.loggers.meta import write_meta
from libtorchbeast.loggers.trackers import open_trackers

logger = logging.getLogger(__name__)


class FileWriter(contextlib.ExitStack):
    """Writes into the folder `path`, SAVEDIR/XPID, which the caller must `hold` (files.py). All
    calls have to come from one thread. `close` may be called twice.

    Args:
        flags: they are written into meta.json.
        fieldnames: the columns of logs.csv after _tick and _time; `step` is one of them. A row may
            add others.
        resume_step: the step of the checkpoint that the run goes on from; None starts at 0. Rows
            that an earlier process logged beyond this step are moved to logs.discarded.csv.

    Raises:
        UserError: the folder or its files cannot be written.
    """

    def __init__(
        self,
        path: Path,
        flags: dict[str, Any],
        fieldnames: Sequence[str],
        resume_step: int | None = None,
    ) -> None:
        super().__init__()
        self.path, xpid = path, path.name
        path.mkdir(parents=True, exist_ok=True)
        self._logged_failures: set[str] = set()
        last_step = -1 if resume_step is None else resume_step
        with contextlib.ExitStack() as stack:  # closes what is open if a later line raises
            try:
                stack.enter_context(copy_of_log(path / "out.log"))
                link_latest(path)
                started = write_meta(path / "meta.json", xpid, flags, resume_step)
                table = CsvTable(path / "logs.csv", fieldnames, last_step)
            except OSError as error:
                raise cannot_write(path, error) from error
            self._table = stack.enter_context(contextlib.closing(table))
            self._trackers = open_trackers(path, xpid, flags, started, last_step + 1)
            stack.callback(self._close_trackers)
            self.enter_context(stack.pop_all())

    def log(self, row: dict[str, Any]) -> None:
        """Appends one row to logs.csv, and hands it to the trackers, whose x axis is `row["step"]`.

        The cell of a column that is absent, None, NaN or infinite stays empty. A write that fails
        is logged when it is the first of its kind; training goes on.

        Raises:
            ValueError: a value is not a number.
        """
        cells = self._table.cells(row)
        try:
            self._table.append(cells)
        except OSError as error:
            self._log_failure("logs.csv misses a row", error)
        for tracker in list(self._trackers):
            try:
                tracker.log(cells)
            except OSError as error:
                # The tracker's own writing thread has ended and cannot be started again.
                self._trackers.remove(tracker)
                name = type(tracker).__name__
                self._log_failure(f"{name} gets nothing more until the run is resumed", error)

    def _close_trackers(self) -> None:
        for tracker in self._trackers:
            try:
                tracker.close()
            except OSError as error:
                name = type(tracker).__name__
                self._log_failure(f"the newest numbers that {name} got are lost", error)

    def _log_failure(self, consequence: str, error: OSError) -> None:
        if consequence not in self._logged_failures:
            self._logged_failures.add(consequence)
            logger.error("%s (%s). This is logged once.", consequence, error)
