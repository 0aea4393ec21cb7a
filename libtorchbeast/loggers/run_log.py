# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The rows that one run logs: collected from their sources, written, and averaged."""

import logging
import time
from collections.abc import Callable

from libtorchbeast.loggers import display
from libtorchbeast.loggers.file_writer import FileWriter
from libtorchbeast.loggers.stats import Means, Stats
from libtorchbeast.loggers.timing import Source

logger = logging.getLogger(__name__)


class RunLog:
    """Collects, writes and averages the rows of a run. Only the main thread may use it. Without a
    writer it writes nothing: of several ranks only the first one writes.

    Attributes:
        sources: give their columns to each row. Owners of workers append theirs.
        last_row: the newest row, empty before the first.
        merge: makes the row of all ranks from that of this one.
        check: looks at each row that is written.
    """

    def __init__(self, writer: FileWriter | None, stats: Stats, step: int, frames_per_step: int):
        self.sources: list[Source] = [stats.take]
        self.last_row: dict[str, float] = {}
        self.merge: Callable[[dict[str, float]], dict[str, float]] = lambda row: row
        self.check: Callable[[dict[str, float]], None] = lambda row: None
        self._writer, self._stats, self._frames_per_step = writer, stats, frames_per_step
        self._means = Means()
        self._time, self._step = time.monotonic(), step

    def write(self, step: int) -> None:
        """Writes the row of `step`: the sources' columns and the speed since the row before."""
        now = time.monotonic()
        seconds = max(1e-9, now - self._time)
        sps = (step - self._step) / seconds
        self._time, self._step = now, step
        row: dict[str, float] = {
            "step": step,
            "frame": step * self._frames_per_step,
            "sps": sps,
            "fps": sps * self._frames_per_step,
        }
        for source in self.sources:
            row |= source()
        row = self.merge(row)
        if self.last_row.get("updates"):  # rows up to the first update measure the start-up
            self._means.add(row, seconds)
        self.last_row = row
        logger.info("%s", display.one_line(row))
        if self._writer is not None:
            self._writer.log(row)
            self.check(row)
            self._stats.standings.write(str(self._writer.path))

    def means(self) -> dict[str, float]:
        """The columns' means over the whole run; before there are any, the newest row."""
        return self._means.row() or self.last_row
