# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a run shows: a live table on a terminal, plain lines elsewhere."""

import contextlib
import logging.handlers
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import rich.columns
import rich.console
import rich.live
import rich.logging
import rich.panel
import rich.progress_bar
import rich.table
from rich.text import Text

from libtorchbeast import workers
from libtorchbeast.flags import SAVEDIR
from libtorchbeast.loggers import bottleneck
from libtorchbeast.loggers.csv_table import read_csv

logger = logging.getLogger(__name__)
console = rich.console.Console(stderr=True, markup=False)  # names may have [brackets]


def say(text: str) -> None:
    """Prints a line to stderr."""
    with contextlib.suppress(OSError):  # the terminal may have been closed
        console.print(text, soft_wrap=True, highlight=False)


def set_up_logging() -> None:
    """Logs to stderr at INFO and above, but if stderr is a terminal, which has the live table, only
    warnings and records with the attribute `on_terminal`. Those with the attribute `file_only` go
    to the run's out.log only."""
    workers.make_stderr_patient()
    if console.is_terminal:
        handler: logging.Handler = rich.logging.RichHandler(console=console, show_path=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
        is_shown = lambda r: r.levelno >= logging.WARNING or getattr(r, "on_terminal", False)
        handler.addFilter(is_shown)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s"))
    handler.addFilter(lambda record: not getattr(record, "file_only", False))
    early = logging.handlers.MemoryHandler(101)  # out.log gets them when it is opened
    early.addFilter(lambda record: len(early.buffer) < 100)  # a test mode opens none
    logging.basicConfig(level=logging.INFO, handlers=[handler, early], force=True)


class Display(contextlib.AbstractContextManager):
    """The context in which a live table shows a run.Run, whose folder has a logs.csv already. It
    shows nothing if stderr is no terminal. The display's own thread reads the run."""

    def __init__(self, run: Any):
        self._run = run
        self._returns = Curve()
        self._evaluated = ""
        self._live = rich.live.Live(
            console=console, get_renderable=self._render, refresh_per_second=2, transient=False
        )

    def __enter__(self) -> "Display":
        if console.is_terminal:
            for row in read_csv(Path(self._run.path, "logs.csv"))[1]:  # from before a resume
                if row["mean_game_return"]:
                    self._returns.add(float(row["step"]), float(row["mean_game_return"]))
            self._live.start(refresh=False)
        return self

    def __exit__(self, *error) -> None:
        """Leaves the table on the terminal as it is, and prints how the run ended below it."""
        if console.is_terminal:
            self._live.stop()
            went = bottleneck.report(self._run.log.means(), self._run.flags)
            console.print("\n  ".join(["Where the time went:", *went]), soft_wrap=True)
            console.print(summary(self._run), soft_wrap=True)

    def _render(self) -> rich.console.RenderableType:
        row = self._run.log.last_row
        if (score := row.get("mean_eval_return")) is not None:  # once per evaluation
            self._evaluated = f"{score:.2f} at step {row['eval_step']:,}"
        if row.get("mean_game_return") is not None:
            self._returns.add(row["step"], row["mean_game_return"])
        parts = [_progress(self._run, row), _table(self._run, row, self._evaluated)]
        parts.append(Text("\n".join(bottleneck.report(row, self._run.flags)), style="dim"))
        curve = self._returns.lines("game return over steps")
        if curve and not console.options.ascii_only:  # braille
            parts.append(Text("\n".join(curve), no_wrap=True))
        content = rich.console.Group(*parts)
        title, subtitle = map(Text, (self._run.spec.name, self._run.path))
        return rich.panel.Panel.fit(content, title=title, subtitle=subtitle)


def _progress(run: Any, row: dict[str, float]) -> rich.console.RenderableType:
    """A bar, the share of the steps that are done, and the time that the rest will take."""
    step, total, speed = run.learner.step, run.flags.total_steps, row.get("sps", 0.0)
    left = duration(max(0, total - step) / speed) if speed > 0 else "?"
    bar = rich.progress_bar.ProgressBar(total=total, completed=min(step, total), width=40)
    status = f"{step / total:.1%}, {'stopping' if run.wakeup.is_set() else left + ' left'}"
    return rich.columns.Columns([bar, status], padding=(0, 2))


def _table(run: Any, row: dict[str, float], evaluated: str) -> rich.table.Table:
    """Two pairs of name and value in each line. Counts of failures that are not 0 are red."""
    show = lambda name, form=".4f": number(row.get(name), form)
    latency = f"{show('latency_p50_ms', '.1f')} ms, 99 %: {show('latency_p99_ms', '.1f')} ms"
    cells: list[tuple[str | Text, str | Text]] = [
        ("step", f"{run.learner.step:,}"),
        ("time", duration(run.state.hours * 3600)),
        ("steps/s", show("sps", ",.0f")),
        ("frames/s", show("fps", ",.0f")),
        ("game return", Text(show("mean_game_return", ".2f"), "bold")),
        ("games", f"{run.stats.games:,}, mean length {show('mean_game_length', ',.0f')}"),
        ("loss", f"{show('total_loss')}, gradient {show('grad_norm', '.3f')}"),
        ("policy lag", f"{show('lag_mean', '.1f')} updates, at most {show('lag_max', '.0f')}"),
        ("latency", latency),
    ]
    some = [  # numbers that not all programs have
        ("entropy", "entropy", ".3f"),
        ("policy loss", "pg_loss", ".4f"),
        ("baseline loss", "baseline_loss", ".4f"),
        ("rho clipped", "clipped_rho_share", ".1%"),
        ("won of the past", "game_past", ".2f"),
        ("rating", "rating", ".0f"),
        ("TD error", "td_error", ".4f"),
        ("replay ratio", "replay_ratio", ".2f"),
        ("replay steps", "replay_steps", ",.0f"),
        ("streams", "streams", ".0f"),
    ]
    cells += [(label, show(name, form)) for label, name, form in some if name in row]
    failures = ("actor_restarts", "stream_failures", "skipped_updates", "checkpoint_errors")
    for name in [name for name in failures if row.get(name)]:
        cells.append((Text(name.replace("_", " "), "red"), Text(f"{row[name]:.0f}", "red")))
    if evaluated:
        cells.append(("evaluation", evaluated))
    table = rich.table.Table.grid("", "", "", "", padding=(0, 2))
    for column in table.columns[::2]:
        column.style = "dim"
    for first, second in zip(cells[::2], [*cells[1::2], ("", "")], strict=False):
        table.add_row(*first, *second)
    return table


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


def log_end(run: Any, why_is_told: bool) -> None:
    """Logs where the time of a run.Run went and, unless an error will say it, how the run ended."""
    where = "; ".join(bottleneck.report(run.log.means(), run.flags))
    logger.info("Where the time went: %s", where)
    if not why_is_told:
        logger.info("%s", summary(run))


def summary(run: Any) -> str:
    """How a run.Run ended, in one sentence."""
    how = " by ".join(["stopped", *run.signals[:1]])
    summary = f"Step {run.learner.step:,}: {'complete' if run.complete() else how}. "
    if run.state.is_unsaved() or run.flags.disable_checkpoint:
        summary += "This step is not saved. "
    elif not run.learner.updates and not Path(run.state.checkpoints.path).exists():
        summary += "Nothing was learned yet, and nothing is saved. "
    elif not run.complete():
        where = [] if run.flags.savedir == SAVEDIR else ["--savedir", run.flags.savedir]
        return f"{summary}{run.path} resumes with {shlex.join(['--xpid', run.flags.xpid, *where])}"
    return summary + run.path


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def duration(seconds: float) -> str:
    if seconds < 86400:
        return time.strftime("%H:%M:%S", time.gmtime(seconds))
    return f"{seconds / 86400:.1f} days"


# ======================================================================================== the curve
WIDTH, HEIGHT = 48, 4  # in characters, each of which has 2 x 4 dots
POINTS = 4 * WIDTH  # two for each column of dots
# What each of a braille character's dots adds to its number in Unicode.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_NO_DOTS = 0x2800


class Curve:
    """Values over steps. Of more than 2 x `POINTS` points `POINTS` stay, evenly over the steps."""

    def __init__(self):
        self._points: list[tuple[float, float]] = []

    def add(self, step: float, value: float) -> None:
        """Adds a point, unless there is one at this step."""
        if not self._points or step > self._points[-1][0]:
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
