# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""logs.csv: a table with one header, to which whole rows are appended, also after a resume. Its
columns are those that are known when it is opened, and others as soon as a row has one."""

import contextlib
import csv
import io
import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libtorchbeast.flags import MAX_STEPS
from libtorchbeast.loggers.files import LineFile, write_whole

logger = logging.getLogger(__name__)


class CsvTable:
    """A table with the columns _tick (number of the row), _time (Unix seconds) and `fieldnames`.

    Args:
        path: of the file. If it exists, its rows are kept. Its columns that are not in `fieldnames`
            are kept after the others, with empty cells from now on.
        fieldnames: all different; `step` is one of them.
        last_step: the run goes on from this step. Rows beyond it are moved to another file beside
            this one, NAME.discarded.csv.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, fieldnames: Sequence[str], last_step: int) -> None:
        self._path = path
        self._columns, self._tick = _open(path, ["_tick", "_time", *fieldnames], last_step)
        self._file = LineFile(path)

    def cells(self, row: dict[str, Any]) -> dict[str, int | float]:
        """Returns the row's finite values as Python's numbers. None, NaN and infinity are left out.
        Raises ValueError if a value is not a number."""
        numbers = {name: _number(name, value) for name, value in row.items()}
        return {k: v for k, v in numbers.items() if v is not None and math.isfinite(v)}

    def append(self, cells: dict[str, int | float]) -> None:
        """Appends a row. The cells of columns that `cells` lacks stay empty. If it has a new
        column, the file is written anew, with this column at the end. Raises OSError if the row
        could not be written whole. The next call removes what was written."""
        if new := [name for name in cells if name not in self._columns]:
            self._columns, self._tick = _open(self._path, [*self._columns, *new], MAX_STEPS)
            self._file.close()
            self._file = LineFile(self._path)
        stamp = {"_tick": self._tick, "_time": round(time.time(), 3)}
        self._tick += 1
        self._file.write(_as_text(self._columns, [cells | stamp]))

    def close(self) -> None:
        self._file.close()


def read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the columns and the rows of a `CsvTable`.

    A process that is killed may leave a last line without its end. This and other damaged lines
    are left out, and a warning is logged. Raises OSError if the file cannot be read."""
    *lines, cut = path.read_text(errors="replace").split("\n")
    header = next(csv.reader(lines[:1]), [])
    rows = [line.split(",") for line in lines[1:]]  # numbers: none is in quotation marks
    whole = [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]
    are_numbers = lambda *cells: all(map(_is_number_or_empty, cells))
    good = [row for row in whole if are_numbers(row.get("_tick", ""), row.get("step", ""))]
    if damaged := len(rows) - len(good) + bool(cut):
        said = "%s: left out %d damaged line(s), which a killed run may leave"
        logger.warning(said, path, damaged)
    return header, good


def last_row(run: str | Path) -> dict[str, float]:
    """The last whole row of a run's logs.csv without its empty cells; {} if there is none."""
    with contextlib.suppress(OSError, csv.Error), open(Path(run, "logs.csv"), "rb") as file:
        (header,) = csv.reader([file.readline().decode(errors="replace")])
        start, size = file.tell(), file.seek(0, os.SEEK_END)
        few_rows = 10_000 + 100 * len(header)  # in bytes, and more than one row in any case
        file.seek(max(start, size - few_rows))
        rows = file.read().decode(errors="replace").split("\n")
        rows.pop()  # which a killed run may have left half done
        for row in reversed(rows):
            with contextlib.suppress(ValueError, csv.Error):  # a damaged row
                cells = zip(header, *csv.reader([row]), strict=True)
                numbers = {name: float(cell) for name, cell in cells if cell}
                if all(map(math.isfinite, numbers.values())):
                    return numbers
    return {}


def _is_number_or_empty(cell: str) -> bool:
    with contextlib.suppress(ValueError):
        return math.isfinite(float(cell or 0))
    return False


def _open(path: Path, columns: list[str], last_step: int) -> tuple[list[str], int]:
    """Makes the file ready for rows beyond `last_step`. Returns its columns and the number of the
    next row."""
    columns, rows = _read(path, columns)
    kept = [row for row in rows if float(row.get("step") or 0) <= last_step]
    if discarded := [row for row in rows if float(row.get("step") or 0) > last_step]:
        there = path.with_suffix(".discarded.csv")
        kind = f"rows beyond step {last_step}" if last_step >= 0 else "rows without a checkpoint"
        logger.warning("%s: %d %s are moved to %s", path, len(discarded), kind, there)
        all_columns, earlier = _read(there, columns)
        write_whole(there, _as_text(all_columns, earlier + discarded, header=True))
    write_whole(path, _as_text(columns, kept, header=True))
    return columns, 1 + max((int(float(row.get("_tick") or 0)) for row in kept), default=-1)


def _read(path: Path, columns: list[str]) -> tuple[list[str], list[dict[str, str]]]:
    """Returns `columns` followed by those that only the file has, and the file's rows. The file
    need not exist."""
    header, rows = read_csv(path) if path.exists() else ([], [])
    return list(dict.fromkeys([*columns, *header])), rows


def _as_text(columns: list[str], rows: list[dict], header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _number(name: str, value: Any) -> int | float | None:
    value = value.item() if hasattr(value, "item") else value  # of NumPy's scalars and tensors
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"column {name!r} takes numbers, not {value!r}")
    return int(value) if isinstance(value, bool) else value
