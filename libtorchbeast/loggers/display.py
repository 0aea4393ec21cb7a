# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a run shows: a live table on a terminal, plain lines elsewhere."""

import csv
import logging
import os
import sys
import time

import numpy as np
import rich.columns
import rich.console
import rich.live
import rich.logging
import rich.panel
import rich.progress_bar
import rich.table
import rich.text

from libtorchbeast.loggers import bottleneck

console = rich.console.Console(stderr=True)


def set_up_logging() -> None:
    """Everything goes to the run's out.log; the terminal's display shows warnings only."""
    if console.is_terminal:
        handler: logging.Handler = rich.logging.RichHandler(
            logging.WARNING, console=console, show_path=False
        )
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s"))
    handler.addFilter(lambda record: not getattr(record, "file_only", False))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class Display:
    """A live table of `run` while entered, if stderr is a terminal."""

    def __init__(self, run):
        self._run = run
        self._returns = Curve()
        self._live = rich.live.Live(
            console=console, get_renderable=self._render, refresh_per_second=2, transient=False
        )

    def __enter__(self) -> "Display":
        if console.is_terminal:
            self._read_log()
            self._live.start(refresh=False)
        return self

    def __exit__(self, *exc_info) -> None:
        if console.is_terminal:
            self._live.stop()
            lines = ["Where the time went:", *self._run.where_time_went()]
            console.print("\n  ".join(lines), soft_wrap=True)
            console.print(self._run.summary(), soft_wrap=True)

    def _read_log(self) -> None:
        """What a resumed run logged before; its writer has just put the file in order."""
        with open(os.path.join(self._run.path, "logs.csv"), newline="") as file:
            for row in csv.DictReader(file):
                if row["mean_game_return"]:
                    self._returns.add(float(row["step"]), float(row["mean_game_return"]))

    def _curve(self) -> list[rich.text.Text]:
        """Nothing while hardly a game has ended, and on a terminal without braille."""
        row = self._run.last_row
        if row.get("mean_game_return") is not None:
            self._returns.add(row["step"], row["mean_game_return"])
        lines = [] if console.options.ascii_only else self._returns.lines("game return over steps")
        return [rich.text.Text("\n".join(lines), no_wrap=True)] if lines else []

    def _render(self) -> rich.console.RenderableType:
        run = self._run
        step, total = run.learner.step, run.flags.total_steps

        def show(name: str, form: str = ".4f") -> str:
            return _number(run.last_row, name, form)

        left = _duration(max(0, total - step) / run.sps) if run.sps > 0 else "?"
        cells = [
            ("step", f"{step:,}"),
            ("time", _duration(run.hours * 3600)),
            ("steps/s", show("sps", ",.0f")),
            ("frames/s", show("fps", ",.0f")),
            ("game return", "[bold]" + show("mean_game_return", ".2f")),
            ("games", f"{run.stats.games:,} of {show('mean_game_length', ',.0f')} steps"),
            ("loss", f"{show('total_loss')}, gradient {show('grad_norm', '.3f')}"),
            ("entropy", show("entropy", ".3f")),
            ("policy loss", show("pg_loss")),
            ("baseline loss", show("baseline_loss")),
            ("policy lag", f"{show('lag_mean', '.1f')} updates, at most {show('lag_max', '.0f')}"),
            ("rho clipped", show("clipped_rho_share", ".1%")),
            (
                "latency",
                f"{show('latency_p50_ms', '.1f')} ms, 99 %: {show('latency_p99_ms', '.1f')} ms",
            ),
        ]
        if run.last_row.get("streams") is not None:
            cells.append(("streams", show("streams", ".0f")))
        for name in ("actor_restarts stream_failures skipped_updates checkpoint_errors").split():
            if run.last_row.get(name):
                cells.append(("[red]" + name.replace("_", " "), "[red]" + show(name, ".0f")))

        table = rich.table.Table.grid(padding=(0, 2))
        for first, second in zip(cells[::2], [*cells[1::2], ("", "")], strict=False):
            table.add_row(f"[dim]{first[0]}", first[1], f"[dim]{second[0]}", second[1])
        bar = rich.progress_bar.ProgressBar(total=total, completed=min(step, total), width=40)
        status = f"{step / total:.1%}, {'stopping' if run.wakeup.is_set() else left + ' left'}"
        progress = rich.columns.Columns([bar, status], padding=(0, 2))
        time_goes = rich.text.Text(
            "\n".join(bottleneck.lines(run.last_row, run.flags)), style="dim"
        )
        return rich.panel.Panel.fit(
            rich.console.Group(progress, table, time_goes, *self._curve()),
            title=run.spec.name,
            subtitle=run.path,
        )


def one_line(row: dict[str, float]) -> str:
    """The row of the log that a person reads first, in one line."""
    return (
        f"step {row['step']:,}  {_number(row, 'sps', ',.0f')} steps/s  game return "
        f"{_number(row, 'mean_game_return', '.2f')} ({row.get('games', 0):,} games)  loss "
        f"{_number(row, 'total_loss', '.4f')}  entropy {_number(row, 'entropy', '.3f')}  lag "
        f"{_number(row, 'lag_mean', '.1f')}"
    )


def _number(row: dict[str, float], name: str, form: str) -> str:
    return format(row[name], form) if row.get(name) is not None else "-"


def _duration(seconds: float) -> str:
    if seconds < 86400:
        return time.strftime("%H:%M:%S", time.gmtime(seconds))
    return f"{seconds / 86400:.1f} days"


WIDTH, HEIGHT = 48, 4  # in characters
POINTS = 4 * WIDTH  # kept for good, two for each column of dots
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # Unicode's numbers


class Curve:
    """Points in the order of their steps. However many are added, at most 2 x `POINTS` are kept:
    of more, `POINTS` stay that lie evenly between the first and the last."""

    def __init__(self):
        self._points: list[tuple[float, float]] = []

    def add(self, step: float, value: float) -> None:
        """A point that is not beyond the last one is not taken."""
        if self._points and step <= self._points[-1][0]:
            return
        self._points.append((step, value))
        if len(self._points) > 2 * POINTS:
            steps = [step for step, _ in self._points]
            even = np.linspace(steps[0], steps[-1], POINTS)
            self._points = [self._points[i] for i in np.unique(np.searchsorted(steps, even))]

    def lines(self, caption: str) -> list[str]:
        """The curve, `HEIGHT` lines with the highest and the lowest value at their left, and one
        with the caption between the first and the last step. Nothing while it has no length."""
        if len(self._points) < 2:
            return []
        steps, values = zip(*self._points, strict=True)
        names = [f"{max(values):,.2f}", *[""] * (HEIGHT - 2), f"{min(values):,.2f}"]
        first, last = f"{steps[0]:,.0f}", f"{steps[-1]:,.0f}"
        axis = first + caption.center(WIDTH - len(first) - len(last)) + last
        margin = max(map(len, names))
        rows = zip([*names, ""], [*draw(steps, values), axis], strict=True)
        return [f"{name:>{margin}} {row}" for name, row in rows]


def draw(steps: tuple[float, ...], values: tuple[float, ...]) -> list[str]:
    """`HEIGHT` lines of `WIDTH` braille characters, from the lowest to the highest value."""
    columns = np.interp(np.linspace(steps[0], steps[-1], 2 * WIDTH), steps, values)
    low, high = min(values), max(values)
    levels = np.rint((high - columns) / ((high - low) or 1) * (4 * HEIGHT - 1)).astype(int)
    before = np.concatenate([levels[:1], levels[:-1]])
    level = np.arange(4 * HEIGHT)[:, None]  # from the top
    # Each column reaches from its level to that of the column before it.
    dots = (np.minimum(before, levels) <= level) & (level <= np.maximum(before, levels))
    cells = dots.reshape(HEIGHT, 4, WIDTH, 2) * _DOTS[:, None]
    return ["".join(map(chr, row)) for row in 0x2800 + cells.sum(axis=(1, 3))]
