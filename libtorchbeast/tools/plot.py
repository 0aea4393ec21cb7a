# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
r"""Plots the returns of one or many runs over steps, frames and hours (below one: minutes).

    python -m libtorchbeast.tools.plot ~/logs/torchbeast/latest
    python -m libtorchbeast.tools.plot RUN_A RUN_B/logs.csv SAVEDIR --out plot.png
    python -m libtorchbeast.tools.plot SAVEDIR --groups           # a line and a band for each group
    python -m libtorchbeast.tools.plot SAVEDIR --groups --panel_by 'MinAtar-\w+-v1_?' --out fig.pdf

A directory is a run if it has a logs.csv. Otherwise all runs below it are plotted. PATH:COLUMN
stands for that column of its runs instead of --y, so that R2D2's mean_eval_return can be drawn
beside MonoBeast's mean_game_return.

Runs whose names differ only in a number at their end, after a hyphen, underscore or slash, form a
group: pong-1 and pong-2, pong-seed1, pong_s1, or pong/seed1, but not pong1. The line of a group is
the mean of its runs. Its band reaches from the lowest to the highest run, or with --interval it is
the 95 % interval of the mean. Runs have rows at different steps, so each is interpolated linearly
between its rows. A group is plotted over the steps that all of its runs have. Over hours, each of
these steps is drawn at the runs' mean hours.

A mean_eval_return is drawn at the step of the weights that played, which is before its row.
"""

import difflib
import logging
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from libtorchbeast.flags import Parser, expanded
from libtorchbeast.loggers.csv_table import read_csv

# Finds in PARENT/NAME of a run what stands before the number of its seed, but not in rate=1e-3.
SEED = r"([^/]+?)(?<![\d.][eE])(?<!=)[-_/](?:seed|s)?[-_]?\d+$"
# What a curve is drawn over, and the text of that axis.
UNITS = {"steps": "agent steps", "frames": "emulator frames", "hours": "hours of training"}

logger = logging.getLogger(__name__)


class Curve(NamedTuple):
    """One run, row by row. Rows that lack y, step or frame are left out."""

    path: Path  # its CSV file
    column: str  # the name of y in it
    y: list[float]
    steps: list[float]
    frames: list[float]
    hours: list[float]  # of training, without the pauses between a stop and a resume


class Line(NamedTuple):
    """What is drawn in one color: a run, or a group of runs."""

    name: str
    mean: Curve  # the run, or the mean of the group's runs
    low: list[float]  # the lowest of the group's runs at each point of the mean, or the interval's
    high: list[float]  # the highest


class Panel(NamedTuple):
    title: str
    x: str  # one of UNITS
    lines: list[Line]


def plot(
    paths: Sequence[str],
    out: str,
    y: str = "mean_game_return",
    group_by: str | None = None,
    interval: bool = False,
    panel_by: str | None = None,
    x: str | None = None,
    labels: Sequence[str] = (),
) -> list[Line]:
    """Draws the column `y` of all runs in `paths`, and returns its lines. Raises FileNotFoundError
    or ValueError, whose text says what cannot be drawn and why.

    Args:
        group_by: a regular expression that names a run's group (see `group_name`). None draws
            every run by itself.
        interval: the band of a group is the 95 % interval of its mean, instead of its range.
        panel_by: a regular expression. What it matches in the name of a line names its panel, and
            what is left of the name is its name there. None makes a panel of all lines.
        x: steps, frames or hours. None makes a panel for each of them, or with `panel_by` steps.
    """
    curves = _read_curves(paths, y)
    lines = _runs(curves) if group_by is None else _groups(curves, group_by, interval)
    lines = [line._replace(name=readable(line.name)) for line in lines]
    label = ", ".join(map(_in_words, drawn_columns(lines)))
    if panel_by is None:
        are_equal = all(line.mean.frames == line.mean.steps for line in lines)
        units = [x] if x else [u for u in UNITS if u != "frames" or not are_equal]
        panels = [Panel("", unit, lines) for unit in units]
    else:
        panels = list(_panels(lines, panel_by, x or "steps"))
    figure = draw(panels, label, labels)
    if group_by is not None:
        band = "95 % interval of the mean" if interval else "from the lowest to the highest"
        figure.supxlabel(f"line: mean of the runs at the same step; band: {band}", fontsize=9)
    figure.savefig(out, dpi=120, format=Path(out).suffix[1:] or "png")
    return lines


def drawn_columns(lines: Sequence[Line]) -> list[str]:
    """The columns of logs.csv that the lines show, each once."""
    return list(dict.fromkeys(line.mean.column for line in lines))


def _read_curves(paths: Sequence[str], y: str) -> list[Curve]:
    """The runs in `paths` that have any value. The others are logged."""
    columns: dict[Path, str] = {}
    for path in paths:
        name, colon, column = path.partition(":")
        if not colon or Path(expanded(path)).exists():
            name, column = path, y
        for file in find_logs(name, is_only=len(paths) == 1):
            if columns.setdefault(file, column) != column:
                raise ValueError(f"{file}: expected one column, seen {columns[file]} and {column}")
    if not columns:
        raise FileNotFoundError(f"no run and no CSV file among {' '.join(paths)}")
    curves = [read_curve(file, column) for file, column in columns.items()]
    for curve in curves:
        if not curve.y:
            logger.warning("%s has no %s yet, so it is not drawn.", curve.path, curve.column)
    if not any(curve.y for curve in curves):
        names = " or ".join(dict.fromkeys(columns.values()))
        have = read_csv(curves[0].path)[0]
        near = difflib.get_close_matches(names, have, 1)
        hint = " yet" if names in have else f" (did you mean {near[0]}?)" if near else ""
        said = f"nothing to draw: no run has a {names}{hint}; {curves[0].path} has {have}"
        raise ValueError(said)
    return [curve for curve in curves if curve.y]


def readable(name: str) -> str:
    """The name without the surrogates that Python puts in the place of what is not UTF-8."""
    return name.encode(errors="replace").decode()


def _in_words(column: str) -> str:
    name, slash, env = column.partition("/")
    return name.replace("_", " ") + slash + env


def find_logs(path: str, is_only: bool = True) -> list[Path]:
    """The CSV files of `path`, links resolved. Raises FileNotFoundError if there are none."""
    place = Path(expanded(path)).resolve()
    if place.is_file():
        return [place] if place.suffix == ".csv" else []
    if not place.is_dir():
        raise FileNotFoundError(f"{path} does not exist")
    found = [place / "logs.csv"] if (place / "logs.csv").exists() else place.rglob("logs.csv")
    found = sorted(file.resolve() for file in found)
    if not found:
        names = sorted(item.name for item in place.iterdir())[:10]
        said = f"no logs.csv in or below {path}; there is: {names or 'nothing'}"
        if is_only:
            raise FileNotFoundError(said)
        logger.warning("%s", said)
    return found


def read_curve(path: Path, y: str) -> Curve:
    """Reads those rows of a run that have a value in column `y`. Evaluations end long after the
    step of their weights, `eval_step`, and are read at that step. Raises ValueError if the format
    is unknown, another column is missing, or one has a cell that is not a number."""
    columns, rows = read_csv(path)
    evaluated = y.startswith(("mean_eval_return", "eval_game_")) and "eval_step" in columns
    step = "eval_step" if evaluated else "step"
    if y not in columns:  # perhaps it comes later, as that of a first win, or all of them do
        return Curve(path, y, [], [], [], [])
    missing = [name for name in ("step", "frame", "hours") if name not in columns]
    if missing:
        raise ValueError(f"{path} has no column {missing}; it has {columns}")
    try:
        # Of the row's frames, the share that had been played at the column `step`.
        frames = lambda row: float(row["frame"]) * float(row[step]) / (float(row["step"]) or 1.0)
        points = [
            (float(row[y]), float(row[step]), frames(row), float(row["hours"] or "nan"))
            for row in rows
            if row[y] and row[step] and row["step"] and row["frame"]
        ]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Curve(path, y, *([point[i] for point in points] for i in range(4)))


def _runs(curves: list[Curve]) -> list[Line]:
    """Names each run by its directory or file, or by its whole path if that name is not unique."""
    names = [_folder(curve.path).name for curve in curves]
    count = Counter(names)
    return [
        Line(name if count[name] == 1 else str(curve.path), curve, curve.y, curve.y)
        for name, curve in zip(names, curves, strict=True)
    ]


def _folder(path: Path) -> Path:
    """The directory that names a run; for a CSV file with a name of its own, that name."""
    return path.parent if path.name == "logs.csv" else path.with_suffix("")


def _groups(curves: list[Curve], pattern: str, interval: bool) -> list[Line]:
    groups: dict[str, list[Curve]] = {}
    named = [(group_name(curve.path, pattern), _folder(curve.path)) for curve in curves]
    runs = Counter((name, folder.name) for name, folder in {*named})
    twice = {name for (name, _), count in runs.items() if count > 1 and pattern == SEED}
    for curve, (name, folder) in zip(curves, named, strict=True):
        groups.setdefault(str(folder.parent / name) if name in twice else name, []).append(curve)
    return [_group(name, runs, interval) for name, runs in groups.items()]


def group_name(path: Path, pattern: str = SEED) -> str:
    """Returns what `pattern` matches in the run's PARENT/NAME (see `_matched`). Where `SEED`
    matches nothing, returns NAME. Raises ValueError as `_matched` does."""
    folder = _folder(path)
    run = "/".join(folder.parts[-2:])
    is_alone = pattern == SEED and not re.search(SEED, run)
    return folder.name if is_alone else _matched("--group_by", pattern, "run", run)[0]


def _matched(flag: str, pattern: str, kind: str, text: str) -> tuple[str, str]:
    """Returns what the first parentheses in the pattern match (without any, all of it), and the
    text without the whole match. Raises ValueError if the pattern is no regular expression, or
    matches nothing."""
    try:
        match = re.search(pattern, text)
    except re.error as error:
        raise ValueError(f"{flag} {pattern!r} is no regular expression: {error}") from None
    if match is None:
        raise ValueError(f"{flag} {pattern!r} matches nothing in the {kind} {text!r}")
    matched = (match.re.groups and match[1]) or match[0]
    return matched, text[: match.start()] + text[match.end() :]


def _group(name: str, runs: list[Curve], interval: bool) -> Line:
    """The mean of the runs' values, frames and hours, and their lowest and highest value (or the
    interval of the mean, from the bootstrap), at every step at which any run has a row and which
    lies within the steps of all runs."""
    start, stop = _common_steps(name, runs)
    steps = np.unique(np.concatenate([run.steps for run in runs]))
    steps = steps[(start <= steps) & (steps <= stop)]

    def on_steps(column: str) -> np.ndarray:  # [runs, steps]
        return np.array([np.interp(steps, run.steps, getattr(run, column)) for run in runs])

    y = on_steps("y")
    frames, hours = (on_steps(column).mean(0).tolist() for column in ("frames", "hours"))
    columns = " and ".join(dict.fromkeys(run.column for run in runs))
    mean = Curve(runs[0].path, columns, y.mean(0).tolist(), steps.tolist(), frames, hours)
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    low, high = y.min(0), y.max(0)
    if interval:
        shares = np.random.default_rng(0).multinomial(n := len(runs), [1 / n] * n, size=2000) / n
        low, high = np.percentile(shares @ y, [2.5, 97.5], axis=0)
    return Line(f"{name} ({count})", mean, low.tolist(), high.tolist())


def _common_steps(name: str, runs: list[Curve]) -> tuple[float, float]:
    """The first and the last of the steps that all runs have."""
    for run in runs:
        if run.steps != sorted(run.steps):
            raise ValueError(f"{run.path}: its steps go back, so it cannot be in a group")
    shortest = min(runs, key=lambda run: run.steps[-1])
    longest = max(run.steps[-1] for run in runs)
    start, stop = max(run.steps[0] for run in runs), shortest.steps[-1]
    if start > stop:
        seen = ", ".join(f"{run.path} {run.steps[0]:,.0f}-{run.steps[-1]:,.0f}" for run in runs)
        raise ValueError(
            f"the runs of group {name!r} have no steps in common: {seen} (with a smaller "
            f"--log_every a short run has more rows)"
        )
    if stop < 0.9 * longest:
        seen = f"where {shortest.path} ends; another of its runs has {longest:,.0f}"
        logger.warning("%s is drawn to step %s, %s", name, f"{stop:,.0f}", seen)
    return start, stop


def _panels(lines: list[Line], pattern: str, x: str) -> Iterator[Panel]:
    panels: dict[str, list[Line]] = {}
    for line in lines:
        title, rest = _matched("--panel_by", pattern, "name", line.name)
        panels.setdefault(title, []).append(line._replace(name=rest.strip("-_/ ")))
    return (Panel(title, x, own) for title, own in panels.items())


@matplotlib.rc_context({"text.parse_math": False})  # names may have a $
def draw(panels: list[Panel], label: str, labels: Sequence[str] = ()) -> Figure:
    """Draws the panels. Panels with titles have y axes of their own. A name has one color."""
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    if labels and len(labels) != len(names):
        raise ValueError(f"--labels: expected {len(names)}, one for each of {names}, seen {labels}")
    colors = [colormaps["tab10"](i) for i in range(len(names))]
    if len(names) > 10:
        colors = [colormaps["turbo"](i / (len(names) - 1)) for i in range(len(names))]
    style_of = dict(zip(names, zip(colors, labels or names, strict=True), strict=True))
    rows = -(-len(panels) // 5)  # of at most 5 panels, all as full as possible
    columns = -(-len(panels) // rows)
    width, height = (3.2, 3.2) if panels[0].title else (4.4, 4.2)
    figure = Figure(figsize=(max(5, width * columns), height * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False, sharey=not panels[0].title).flat
    handles = {}
    for axes, (title, x, lines) in zip(places, panels, strict=False):
        is_short = x == "hours" and max(line.mean.hours[-1] for line in lines) < 1
        for line in lines:
            at, (color, shown) = getattr(line.mean, x), style_of[line.name]
            at = [60 * hours for hours in at] if is_short else at
            marker = "o" if len(at) == 1 else None
            [drawn] = axes.plot(at, line.mean.y, color=color, linewidth=1.5, marker=marker)
            handles[shown] = drawn
            axes.fill_between(at, line.low, line.high, color=color, alpha=0.2, linewidth=0)
        axes.set(xlabel="minutes of training" if is_short else UNITS[x], xlim=(0, None))
        axes.set_title("\n".join(textwrap.wrap(title, 34)), fontsize=10)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.spines[["top", "right"]].set_visible(False)
        if x != "hours":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    figure.supylabel(label, fontsize=10)
    if any(handles):  # a panel for each line leaves nothing of their names
        inches = 0.6 + 0.085 * max(map(len, handles))  # of the longest name
        figure.legend(
            handles.values(), handles.keys(), loc="outside upper center", frameon=False,
            ncols=min(len(handles), 4, max(1, int(figure.get_figwidth() / inches))),
        )  # fmt: skip
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """The command. A mistake of the user ends it with one line on stderr and exit code 1."""
    try:
        flags = make_parser().parse_args(argv)
        group_by = flags.group_by or (SEED if flags.groups else None)
        labels = flags.labels.split(",") if flags.labels else []
        shown = dict(interval=flags.interval, panel_by=flags.panel_by, x=flags.x, labels=labels)
        lines = plot(flags.paths, flags.out, flags.y, group_by, **shown)
    except (OSError, ValueError) as error:
        sys.exit(f"plot: {error}")
    names = ", ".join(line.name for line in lines)
    print(readable(f"{flags.out}: {', '.join(drawn_columns(lines))} of {names}"))


# fmt: off
def make_parser() -> Parser:
    parser = Parser("python -m libtorchbeast.tools.plot", __doc__)
    add = parser.add_argument
    paths = "A run, a directory of runs, or a CSV file, each with :COLUMN or without."
    add("paths", nargs="+", metavar="PATH", help=paths)
    add("--out", default="plot.png", help="The picture to write: .png, .pdf or .svg.")
    add("--y", default="mean_game_return", help="The column to draw.")
    add("--groups", action="store_true", help="Draw groups of runs, as explained above.")
    add("--group_by", metavar="REGEX",
        help="Draw groups of runs. REGEX is searched in PARENT/NAME of each run, and the text that "
             "it matches (or that its first parentheses match) names the group: 'lstm|mlp' makes "
             "two groups.")
    interval = "The band of a group is the 95 % interval of its mean, from the bootstrap."
    add("--interval", action="store_true", help=interval)
    add("--panel_by", metavar="REGEX",
        help="Draw a panel for each text that REGEX (or its first parentheses) matches in the "
             "names of the lines, for instance one for each game, or with .+ one for each line. "
             "What is left of a name is its name in the legend.")
    x = "What to draw over. Default: each of them, and steps where panels have titles."
    add("--x", choices=UNITS, help=x)
    add("--labels", metavar="A,B,...", help="Names of the lines in the legend, in its order.")
    return parser
# fmt: on


if __name__ == "__main__":
    main()
