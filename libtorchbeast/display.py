# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a run shows: a live table on a terminal, plain lines elsewhere."""

import logging
import sys
import time

import rich.console
import rich.live
import rich.logging
import rich.progress_bar
import rich.table
import rich.text

console = rich.console.Console(stderr=True)


def set_up_logging() -> None:
    """Everything goes to the run's out.log; the terminal's display shows warnings only."""
    if console.is_terminal:
        handler: logging.Handler = rich.logging.RichHandler(
            logging.WARNING, console=console, show_path=False
        )
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s"))
    handler.addFilter(lambda record: not getattr(record, "file_only", False))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class Display:
    """A live table of `run` while entered, if stderr is a terminal."""

    def __init__(self, run):
        self._run = run
        self._live = rich.live.Live(
            console=console, get_renderable=self._render, refresh_per_second=2, transient=False
        )

    def __enter__(self) -> "Display":
        if console.is_terminal:
            self._live.start(refresh=False)
        return self

    def __exit__(self, *exc_info) -> None:
        if console.is_terminal:
            self._live.stop()

    def _render(self) -> rich.console.RenderableType:
        run, row = self._run, self._run.last_row
        step, total = run.learner.step, run.flags.total_steps
        table = rich.table.Table.grid(padding=(0, 2))
        for _ in range(4):
            table.add_column(no_wrap=True)
        bar = rich.progress_bar.ProgressBar(total=total, completed=min(step, total), width=30)
        left = _duration((total - step) / run.sps) if run.sps > 0 else "?"
        status = "stopping" if run.wakeup.is_set() else f"{100 * step / total:.1f} %, {left} left"
        table.add_row("[bold]" + run.flags.env, bar, status, f"[dim]{run.path}")
        table.add_row(
            *_cell("step", f"{step:,}"),
            *_cell("time", f"{_duration(run.hours * 3600)}"),
        )
        table.add_row(
            *_cell("steps/s", _number(row, "sps", ",.0f")),
            *_cell("frames/s", _number(row, "fps", ",.0f")),
        )
        table.add_row(
            *_cell("game return", f"[bold]{_number(row, 'mean_game_return', '.2f')}"),
            *_cell("games", f"{run.stats.games:,}, length {_number(row, 'mean_game_length', ',.0f')}"),
        )  # fmt: skip
        table.add_row(
            *_cell("loss", f"{_number(row, 'total_loss', '.4f')} = policy "
                           f"{_number(row, 'pg_loss', '.4f')}, baseline "
                           f"{_number(row, 'baseline_loss', '.4f')}"),
            *_cell("entropy", f"{_number(row, 'entropy', '.3f')}, gradient "
                              f"{_number(row, 'grad_norm', '.3f')}"),
        )  # fmt: skip
        table.add_row(
            *_cell("policy lag", f"{_number(row, 'lag_mean', '.1f')} updates, at most "
                                 f"{_number(row, 'lag_max', '.0f')}"),
            *_cell("rho clipped", _number(row, "clipped_rho_share", ".1%")),
        )  # fmt: skip
        table.add_row(
            *_cell("actors' time", f"environment {_number(row, 'share_environment', '.0%')}, "
                                   f"inference {_number(row, 'share_inference', '.0%')}, "
                                   f"waiting {_number(row, 'share_actor_waiting', '.0%')}"),
            *_cell("learner's time", f"learning {_number(row, 'share_learning', '.0%')}, "
                                     f"waiting {_number(row, 'share_learner_waiting', '.0%')}"),
        )  # fmt: skip
        failures = {k: row.get(k) for k in ("actor_restarts", "skipped_updates", "checkpoint_errors")}
        if any(failures.values()):
            shown = ", ".join(f"{k.replace('_', ' ')} {v:.0f}" for k, v in failures.items() if v)
            table.add_row("[red]failures", f"[red]{shown}")
        return table


def one_line(row: dict[str, float]) -> str:
    """The row of the log that a person reads first, in one line."""
    return (
        f"step {row['step']:,}  {_number(row, 'sps', ',.0f')} steps/s  game return "
        f"{_number(row, 'mean_game_return', '.2f')} ({row.get('games', 0):,} games)  loss "
        f"{_number(row, 'total_loss', '.4f')}  entropy {_number(row, 'entropy', '.3f')}  lag "
        f"{_number(row, 'lag_mean', '.1f')}"
    )


def _cell(name: str, value: str) -> tuple[str, str]:
    return f"[dim]{name}", value


def _number(row: dict[str, float], name: str, form: str) -> str:
    return format(row[name], form) if row.get(name) is not None else "-"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) if seconds < 86400 else (
        f"{seconds / 86400:.1f} days")  # fmt: skip
