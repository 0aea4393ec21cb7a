# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a run shows: a live table on a terminal, plain lines elsewhere."""

import csv
import logging
import os
import sys
import time

import rich.columns
import rich.console
import rich.live
import rich.logging
import rich.panel
import rich.progress_bar
import rich.table
import rich.text

from libtorchbeast import bottleneck
from libtorchbeast.curve import Curve

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
