# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a run shows: a live table on a terminal, plain lines elsewhere."""

import contextlib
import csv
import dataclasses
import logging
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import rich.columns
import rich.console
import rich.live
import rich.logging
import rich.panel
import rich.progress_bar
import rich.table
import rich.text

console = rich.console.Console(stderr=True)


def say(text: str) -> None:
    """Prints a line to stderr."""
    with contextlib.suppress(OSError):  # the terminal may have been closed
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def set_up_logging() -> None:
    """Logs to stderr at INFO and above, but if stderr is a terminal, which has the live table, only
    warnings and records with the attribute `on_terminal`. Those with the attribute `file_only` go
    to the run's out.log only."""
    if console.is_terminal:
        handler: logging.Handler = rich.logging.RichHandler(console=console, show_path=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
        is_shown = lambda r: r.levelno >= logging.WARNING or getattr(r, "on_terminal", False)
        handler.addFilter(is_shown)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s"))
    handler.addFilter(lambda record: not getattr(record, "file_only", False))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


@dataclasses.dataclass(frozen=True)
class View:
    """What the display shows of a run at one moment."""

    step: int
    total_steps: int
    hours: float  # of training so far
    games: int  # that have ended so far
    is_stopping: bool
    row: dict[str, float]  # the last row of the log; empty before the first one
    where_time_goes: list[str]  # lines about that row


class Display:
    """A live table of a run between `start` and `stop`. It shows nothing if stderr is no terminal.

    Args:
        name: of the environment.
        path: the run's folder. `start` reads its logs.csv, which has to exist.
        look: returns the newest view of the run; called from the display's own thread.
    """

    def __init__(self, name: str, path: str, look: Callable[[], View]):
        self._name, self._path, self._look = name, path, look
        self._returns = Curve()
        self._evaluated = ""
        self._live = rich.live.Live(
            console=console, get_renderable=self._render, refresh_per_second=2, transient=False
        )

    def start(self) -> None:
        if console.is_terminal:
            self._read_log()
            self._live.start(refresh=False)

    def stop(self, where_time_went: list[str], summary: str) -> None:
        """Leaves the table on the terminal as it is, and prints these lines below it."""
        if console.is_terminal:
            self._live.stop()
            lines = ["Where the time went:", *where_time_went]
            console.print("\n  ".join(lines), soft_wrap=True)
            console.print(summary, soft_wrap=True)

    def _read_log(self) -> None:
        """Adds the returns that the run logged before it was resumed."""
        with open(os.path.join(self._path, "logs.csv"), newline="") as file:
            for row in csv.DictReader(file):
                if row["mean_game_return"]:
                    self._returns.add(float(row["step"]), float(row["mean_game_return"]))

    def _render(self) -> rich.console.RenderableType:
        view = self._look()
        if (score := view.row.get("mean_eval_return")) is not None:  # once per evaluation
            self._evaluated = f"{score:.2f} at step {view.row['eval_step']:,}"
        parts = [_progress(view), _table(view, self._evaluated)]
        parts.append(rich.text.Text("\n".join(view.where_time_goes), style="dim"))
        if curve := self._curve(view.row):
            parts.append(rich.text.Text("\n".join(curve), no_wrap=True))
        content = rich.console.Group(*parts)
        return rich.panel.Panel.fit(content, title=self._name, subtitle=self._path)

    def _curve(self, row: dict[str, float]) -> list[str]:
        """Returns no lines before the second return, and none on a terminal without braille."""
        if row.get("mean_game_return") is not None:
            self._returns.add(row["step"], row["mean_game_return"])
        return [] if console.options.ascii_only else self._returns.lines("game return over steps")


def _progress(view: View) -> rich.console.RenderableType:
    """A bar, the share of the steps that are done, and the time that the rest will take."""
    step, total = view.step, view.total_steps
    speed = view.row.get("sps", 0.0)
    left = _duration(max(0, total - step) / speed) if speed > 0 else "?"
    bar = rich.progress_bar.ProgressBar(total=total, completed=min(step, total), width=40)
    status = f"{step / total:.1%}, {'stopping' if view.is_stopping else left + ' left'}"
    return rich.columns.Columns([bar, status], padding=(0, 2))


def _table(view: View, evaluated: str) -> rich.table.Table:
    """Two pairs of name and value in each line."""
    cells = [*_numbers(view), *_failures(view.row)]
    if evaluated:
        cells.append(("evaluation", evaluated))
    table = rich.table.Table.grid(padding=(0, 2))
    for first, second in zip(cells[::2], [*cells[1::2], ("", "")], strict=False):
        table.add_row(f"[dim]{first[0]}", first[1], f"[dim]{second[0]}", second[1])
    return table


def _numbers(view: View) -> list[tuple[str, str]]:
    def show(name: str, form: str = ".4f") -> str:
        return number(view.row.get(name), form)

    latency = f"{show('latency_p50_ms', '.1f')} ms, 99 %: {show('latency_p99_ms', '.1f')} ms"
    cells = [
        ("step", f"{view.step:,}"),
        ("time", _duration(view.hours * 3600)),
        ("steps/s", show("sps", ",.0f")),
        ("frames/s", show("fps", ",.0f")),
        ("game return", "[bold]" + show("mean_game_return", ".2f")),
        ("games", f"{view.games:,} of {show('mean_game_length', ',.0f')} steps"),
        ("loss", f"{show('total_loss')}, gradient {show('grad_norm', '.3f')}"),
        ("policy lag", f"{show('lag_mean', '.1f')} updates, at most {show('lag_max', '.0f')}"),
        ("latency", latency),
    ]
    some = [  # numbers that not all programs have
        ("entropy", "entropy", ".3f"),
        ("policy loss", "pg_loss", ".4f"),
        ("baseline loss", "baseline_loss", ".4f"),
        ("rho clipped", "clipped_rho_share", ".1%"),
        ("TD error", "td_error", ".4f"),
        ("replay ratio", "replay_ratio", ".2f"),
        ("replay steps", "replay_steps", ",.0f"),
        ("streams", "streams", ".0f"),
    ]
    return cells + [
        (label, show(name, form)) for label, name, form in some if view.row.get(name) is not None
    ]


def _failures(row: dict[str, float]) -> list[tuple[str, str]]:
    """In red, the counts of failures that are not 0."""
    names = ("actor_restarts", "stream_failures", "skipped_updates", "checkpoint_errors")
    return [
        (f"[red]{name.replace('_', ' ')}", f"[red]{row[name]:.0f}")
        for name in names
        if row.get(name)
    ]


def one_line(row: dict[str, float]) -> str:
    """The numbers of the log's row that a person looks at first, in one line."""
    quality = f"entropy {number(row.get('entropy'), '.3f')}"
    if row.get("td_error") is not None:
        quality = f"TD error {row['td_error']:.4f}"
    return (
        f"step {row['step']:,}  {number(row.get('sps'), ',.0f')} steps/s  game return "
        f"{number(row.get('mean_game_return'), '.2f')} ({row.get('games', 0):,} games)  loss "
        f"{number(row.get('total_loss'), '.4f')}  {quality}  lag "
        f"{number(row.get('lag_mean'), '.1f')}"
    )


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _duration(seconds: float) -> str:
    if seconds < 86400:
        return time.strftime("%H:%M:%S", time.gmtime(seconds))
    return f"{seconds / 86400:.1f} days"


# ======================================================================================== the curve
WIDTH, HEIGHT = 48, 4  # in characters, each of which has 2 x 4 dots
POINTS = 4 * WIDTH  # how many points stay when a curve is thinned out: two for each column of dots
# What each of a braille character's dots adds to its number in Unicode.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_NO_DOTS = 0x2800


class Curve:
    """Values over steps. At most 2 x `POINTS` of them are kept: when there are more, `POINTS` stay,
    which lie evenly between the first and the last step."""

    def __init__(self):
        self._points: list[tuple[float, float]] = []

    def add(self, step: float, value: float) -> None:
        """Adds a point. Does nothing if `step` is not beyond the last point's."""
        if self._points and step <= self._points[-1][0]:
            return
        self._points.append((step, value))
        if len(self._points) > 2 * POINTS:
            steps = [step for step, _ in self._points]
            even = np.linspace(steps[0], steps[-1], POINTS)
            self._points = [self._points[i] for i in np.unique(np.searchsorted(steps, even))]

    def lines(self, caption: str) -> list[str]:
        """Returns `HEIGHT` lines of the curve, with its highest and lowest value at the left, and a
        line with the first step, the caption and the last step. [] for fewer than two points."""
        if len(self._points) < 2:
            return []
        steps, values = zip(*self._points, strict=True)
        labels = [f"{max(values):,.2f}", *[""] * (HEIGHT - 2), f"{min(values):,.2f}"]
        first, last = f"{steps[0]:,.0f}", f"{steps[-1]:,.0f}"
        axis = first + caption.center(WIDTH - len(first) - len(last)) + last
        margin = max(map(len, labels))
        rows = zip([*labels, ""], [*draw(steps, values), axis], strict=True)
        return [f"{label:>{margin}} {row}" for label, row in rows]


def draw(steps: tuple[float, ...], values: tuple[float, ...]) -> list[str]:
    """Returns `HEIGHT` lines of `WIDTH` braille characters, which span the values' range."""
    columns = np.interp(np.linspace(steps[0], steps[-1], 2 * WIDTH), steps, values)
    low, high = min(values), max(values)
    # Rows of dots are counted from the top: each column's level, and that of the column before it.
    levels = np.rint((high - columns) / ((high - low) or 1) * (4 * HEIGHT - 1)).astype(int)
    before = np.concatenate([levels[:1], levels[:-1]])
    row = np.arange(4 * HEIGHT)[:, None]
    # A column has dots from its own level to the level before, so that the curve has no gaps.
    dots = (np.minimum(before, levels) <= row) & (row <= np.maximum(before, levels))
    cells = dots.reshape(HEIGHT, 4, WIDTH, 2) * _DOTS[:, None]
    return ["".join(map(chr, line)) for line in _NO_DOTS + cells.sum(axis=(1, 3))]
