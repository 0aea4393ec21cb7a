# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Draws the returns of one or many runs over steps, frames and hours.

    python -m libtorchbeast.plot ~/logs/torchbeast/latest
    python -m libtorchbeast.plot RUN_A RUN_B/logs.csv SAVEDIR --out plot.png --smooth 10

A directory is a run (it has a logs.csv) or holds runs, at any depth.
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from libtorchbeast.file_writer import read_csv

_PAUSE = 10.0  # a gap of so many median gaps between two rows is a stop and a resume, not training

logger = logging.getLogger(__name__)


class Curve(NamedTuple):
    """One run, row by row; a row without y, step or frame is left out."""

    path: Path  # of the CSV file
    y: list[float]
    steps: list[float]
    frames: list[float]
    hours: list[float]  # of training: pauses between a stop and a resume are not counted


def plot(paths: Sequence[str], out: str, y: str = "mean_game_return", smooth: int = 1) -> list[str]:
    """Writes a PNG of column `y` of all runs in `paths`; returns the names of the runs in it.

    Args:
        paths: CSV files, run directories, or directories of runs.
        out: the PNG file.
        y: the column of logs.csv to draw.
        smooth: each point is the mean of so many rows: itself and those before it.

    Raises:
        FileNotFoundError: a path does not exist, or a directory holds no run.
        ValueError: a column is missing, a value of `smooth` below 1, or no run has any value of y.
    """
    if smooth < 1:
        raise ValueError(f"--smooth must be at least 1, not {smooth}")
    files = list(dict.fromkeys(file for path in paths for file in find_logs(path)))
    curves = [read_curve(file, y) for file in files]
    for curve in curves:
        if not curve.y:
            logger.warning("%s has no %s yet: left out", curve.path, y)
    curves = [curve._replace(y=_smoothed(curve.y, smooth)) for curve in curves if curve.y]
    if not curves:
        raise ValueError(f"nothing to draw: no run has a {y} yet")
    names = _names([curve.path for curve in curves])
    _figure(curves, names, y.replace("_", " ")).savefig(out, dpi=120, format="png")
    return names


def find_logs(path: str) -> list[Path]:
    """The CSV files that `path` stands for, links resolved.

    Raises:
        FileNotFoundError: there is none.
    """
    place = Path(path).expanduser().resolve()
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise FileNotFoundError(f"{path} does not exist")
    found = [place / "logs.csv"] if (place / "logs.csv").exists() else place.rglob("logs.csv")
    found = sorted(file.resolve() for file in found)
    if not found:
        names = sorted(item.name for item in place.iterdir())[:10]
        raise FileNotFoundError(f"no logs.csv in or below {path}; there is: {names or 'nothing'}")
    return found


def read_curve(path: Path, y: str) -> Curve:
    """Reads one run's rows that have a value of column `y`.

    Raises:
        ValueError: a column is missing, or holds something other than numbers.
    """
    columns, rows = read_csv(path)
    if columns[:1] == ["# _tick"]:
        columns, rows = _of_torchbeast(path)
    clock = "hours" if "hours" in columns else "_time"
    missing = [name for name in (y, "step", "frame", clock) if name not in columns]
    if missing:
        raise ValueError(f"{path} has no column {missing}; it has {columns}")
    try:
        if clock == "hours":
            hours = [float(row["hours"] or "nan") for row in rows]
        else:
            hours = _training_hours([float(row["_time"]) for row in rows])
        points = [
            (float(row[y]), float(row["step"]), float(row["frame"]), hour)
            for row, hour in zip(rows, hours, strict=True)
            if row[y] and row["step"] and row["frame"]
        ]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Curve(path, *([point[i] for point in points] for i in range(4)))


def _of_torchbeast(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """TorchBeast's logs.csv as one of ours. Columns that came later stand only in fields.csv beside
    it; a return is of a life, and "nan" where no episode had ended."""
    ours = {"mean_episode_return": "mean_game_return"}
    with open(path, newline="") as file:
        header, *lines = csv.reader(file)
    columns = [header[0].removeprefix("# "), *header[1:]]
    fields = path.with_name("fields.csv")
    if fields.exists():
        with open(fields, newline="") as file:
            columns = max([columns, *csv.reader(file)], key=len)
    columns = [ours.get(name, name) for name in columns]
    rows = [dict(zip(columns, line, strict=False)) for line in lines if line[0][0] != "#"]
    for row in rows:
        row |= {name: "" for name in columns if row.get(name, "nan") in ("nan", "None")}
        row["frame"] = str(4 * float(row["step"])) if row["step"] else ""  # of Atari
    return [*columns, "frame"], rows


def _training_hours(times: list[float]) -> list[float]:
    """Hours since the first row; a pause counts as one ordinary gap."""
    gaps = [later - earlier for earlier, later in pairwise(times)]
    usual = statistics.median(gaps) if gaps else 0.0
    hours = [0.0] if times else []
    for gap in gaps:
        hours.append(hours[-1] + (gap if gap <= _PAUSE * usual else usual) / 3600)
    return hours


def _smoothed(values: list[float], rows: int) -> list[float]:
    windows = (values[max(0, i - rows) : i] for i in range(1, len(values) + 1))
    return [statistics.fmean(window) for window in windows]


def _names(paths: list[Path]) -> list[str]:
    """The run's directory, or the file's own name; the whole path where that is not unique."""
    names = [path.parent.name if path.name == "logs.csv" else path.stem for path in paths]
    count = Counter(names)
    pairs = zip(names, paths, strict=True)
    return [name if count[name] == 1 else str(path) for name, path in pairs]


def _figure(curves: list[Curve], names: list[str], label: str) -> Figure:
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    colors = colormaps["tab10" if len(curves) <= 10 else "turbo"]
    for index, curve in enumerate(curves):
        color = colors(index if len(curves) <= 10 else index / (len(curves) - 1))
        style = dict(color=color, linewidth=1.5, marker="o" if len(curve.y) == 1 else None)
        panels[0].plot(curve.steps, curve.y, **style, label=names[index])
        panels[1].plot(curve.frames, curve.y, **style)
        panels[2].plot(curve.hours, curve.y, **style)
    labels = ("agent steps", "emulator frames", "hours of training")
    for panel, text in zip(panels, labels, strict=True):
        panel.set_xlabel(text)
        panel.set_xlim(left=0)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[:2]:
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[0].set_ylabel(label)
    figure.legend(loc="outside upper center", ncols=min(len(names), 4), frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; a mistake of the user ends it with one line on stderr and status 1."""
    parser = argparse.ArgumentParser(
        prog="python -m libtorchbeast.plot", description=__doc__.split("\n")[0]
    )
    parser.add_argument("paths", nargs="+", metavar="RUN_DIR_OR_CSV")
    parser.add_argument("--out", default="plot.png", help="PNG file to write [%(default)s]")
    parser.add_argument("--y", default="mean_game_return", help="column to draw [%(default)s]")
    parser.add_argument("--smooth", type=int, default=1, metavar="K", help="mean of K rows [1]")
    flags = parser.parse_args(argv)
    try:
        names = plot(flags.paths, flags.out, flags.y, flags.smooth)
    except (OSError, ValueError) as error:
        sys.exit(f"plot: {error}")
    print(f"{flags.out}: {flags.y} of {', '.join(names)}")


if __name__ == "__main__":
    main()
