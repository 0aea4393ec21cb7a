# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Measures whole runs: starts the real programs and reads their logs."""

import contextlib
import itertools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.catalogue import Run
from libtorchbeast.loggers.csv_table import read_csv

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 300.0  # seconds for a start and for an end; only guards against a hang
LATENCIES = ("latency_p50_ms", "latency_p99_ms")  # columns of logs.csv
Row = dict[str, float]


@dataclass
class Span:
    """What was measured between two rows of logs.csv, or the sum over several runs."""

    seconds: float = 0.0
    steps: float = 0.0
    updates: float = 0.0
    cpu_seconds: float = 0.0  # of the program and all its children
    rows: list[Row] = field(default_factory=list)  # all but the first

    def __add__(self, other: "Span") -> "Span":
        return Span(
            self.seconds + other.seconds,
            self.steps + other.steps,
            self.updates + other.updates,
            self.cpu_seconds + other.cpu_seconds,
            self.rows + other.rows,
        )

    def figures(self) -> dict[str, float]:
        """Returns the table's columns. Latencies that the log does not have are left out."""
        figures = {
            "steps_per_second": self.steps / self.seconds,
            "updates_per_second": self.updates / self.seconds,
            "cpu_seconds_per_1000_steps": 1000 * self.cpu_seconds / self.steps,
            "seconds": self.seconds,
            "steps": self.steps,
        }
        for name in LATENCIES:
            values = [row[name] for row in self.rows if name in row]
            if values:
                figures[name] = sum(values) / len(values)
        return figures


def arguments(run: Run) -> list[str]:
    """The run's command line except its folder. --total_steps is never reached."""
    more = ["--disable_checkpoint", "--log_every", "1", "--total_steps", "1_000_000_000"]
    return [*run.arguments, *more]


def measure_run(beast: str, words: list[str], seconds: float, root: Path = ROOT) -> Span:
    """Measures `python -m BEAST WORDS` in the checkout `root`, from the first row of logs.csv with
    a learned step to a row that is at least `seconds` later and has more steps.

    Raises:
        RuntimeError: the program has ended before or takes too long. The text is what it printed.
    """
    with tempfile.TemporaryDirectory() as savedir:
        logs, printed = Path(savedir, "benchmark", "logs.csv"), Path(savedir, "printed")
        words = [*words, "--savedir", savedir, "--xpid", "benchmark"]
        with running([sys.executable, "-m", beast, *words], printed, root) as process:
            return watch(process, logs, printed, seconds)


def watch(process: subprocess.Popen, logs: Path, printed: Path, seconds: float) -> Span:
    for rows in growing_log(process, logs, printed, time.monotonic() + seconds + PATIENCE):
        first, last = rows[0], rows[-1]
        over = last["_time"] - first["_time"] >= seconds and last["step"] > first["step"]
        if over:
            break
    used = sum(b["cpu_cores"] * (b["_time"] - a["_time"]) for a, b in itertools.pairwise(rows))
    seconds, steps, updates = (last[name] - first[name] for name in ("_time", "step", "updates"))
    return Span(seconds, steps, updates, used, rows[1:])


def growing_log(
    process: subprocess.Popen, logs: Path, printed: Path, deadline: float
) -> Iterator[list[Row]]:
    """Yields all rows with learned steps, again whenever there is a new one."""
    size, count = 0, 0
    while True:
        if logs.exists() and logs.stat().st_size > size:
            size = logs.stat().st_size
            rows = learning_rows(logs)
            if len(rows) > count:
                count = len(rows)
                yield rows
        if process.poll() is not None:
            raise RuntimeError(f"it ended early: {printed.read_text().strip()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"it took too long: {printed.read_text().strip()}")
        time.sleep(0.02)


def learning_rows(logs: Path) -> list[Row]:
    """Returns the rows with learned steps, without their empty cells."""
    table = read_csv(logs)[1]
    rows = [{k: float(v) for k, v in row.items() if v} for row in table]
    return [row for row in rows if row["step"] > 0]


@contextlib.contextmanager
def running(words: list[str], printed: Path, root: Path) -> Iterator[subprocess.Popen]:
    """Runs the program as a child. At the end it is asked to stop. If it does not stop in time, it
    and its children are killed."""
    with printed.open("w") as file:
        process = subprocess.Popen(words, cwd=root, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            tree = psutil.Process(process.pid).children(recursive=True)
            for one in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.kill()
            process.wait()
