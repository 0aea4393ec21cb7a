# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The files of one run, which docs/running.md lists: meta.json, logs.csv, out.log and what trackers
write. The newest run is also SAVEDIR/latest.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
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
        fieldnames: as for `CsvTable`. A row may add others.
        resume_step: the step of the checkpoint that the run goes on from; None starts at 0.

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

        A write that fails is logged when it is the first of its kind; training goes on. Raises
        ValueError if a value is not a number."""
        cells = self._table.cells(row)
        self._try("logs.csv misses a row", self._table.append, cells)
        for tracker in list(self._trackers):
            consequence = f"{type(tracker).__name__} gets nothing more until the run is resumed"
            if not self._try(consequence, tracker.log, cells):
                # The tracker's own writing thread has ended and cannot be started again.
                self._trackers.remove(tracker)

    def _close_trackers(self) -> None:
        for tracker in self._trackers:
            name = type(tracker).__name__
            self._try(f"the newest numbers that {name} got are lost", tracker.close)

    def _try(self, consequence: str, write: Callable[..., None], *arguments: Any) -> bool:
        try:
            write(*arguments)
        except OSError as error:
            if consequence not in self._logged_failures:
                self._logged_failures.add(consequence)
                logger.error("%s (%s). This is logged once.", consequence, error)
            return False
        return True
