# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""How fast the parts and both beasts are, each beside its ceiling, in one run on one machine.

    python -m benchmarks                                           # all of it: about 25 minutes
    python -m benchmarks --only "^PolyBeast, Pong, deep$"          # some rows
    python -m benchmarks --only transport --seconds 10

Prints tables and writes bench.json, parts.csv and runs.csv. All speeds are agent steps per second.
Compare ratios, not speeds: machines differ, and a shared one differs from itself.

    parts    alone, one thread each, each in a fresh process. Those that a roofline is made of are
             measured a second time with all cores busy
    runs     the programs themselves, from their first update on. PolyBeast and MonoBeast take turns
    roofline cores / sum of the parts' core-seconds per step, for environment, inference, learner
    latency  from an observation to its action, as the runs' logs.csv has it

Exit code 1: something could not be measured. Its row says why, the others stand.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import catalogue, children, figures, programs, report
from benchmarks.catalogue import Catalogue, Run
from benchmarks.tasks import flags_of

QUICK = {"seconds": 0.2, "training_seconds": 2.0}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "benchmarks", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add(
        "--only",
        default="",
        metavar="REGEX",
        help="Measure the rows in whose names this is found, and what they are compared with.",
    )
    add("--seconds", type=float, default=5.0, help="For each part.")
    add("--training_seconds", type=float, default=45.0, help="For each whole run.")
    add(
        "--quick",
        action="store_true",
        help="Next to no time for each, to see whether it works: the figures mean nothing.",
    )
    add("--out", type=Path, default=Path("results/bench"), help="Folder of the files.")
    return parser


class Harness:
    """Measures row by row. A row that fails has an `error` instead of figures."""

    def __init__(self, chosen: Catalogue, progress: Progress):
        self.chosen, self.progress = chosen, progress
        self.parts: figures.Rows = {name: {"name": name} for name in chosen.parts}
        self.runs: figures.Rows = {name: {"name": name} for name in chosen.runs}
        self._bar = progress.add_task("", total=len(chosen.parts) + len(chosen.runs))

    def measure_parts(self, seconds: float) -> None:
        for name, part in self.chosen.parts.items():
            self.attempt(self.parts[name], lambda: children.measure_part(part, seconds))  # noqa: B023
            self.progress.advance(self._bar)

    def measure_runs(self, seconds: float) -> None:
        for group in groups(self.chosen.runs):
            # A B A B: a machine's drift meets both. One alone needs no turns.
            turns = 2 if len(group) > 1 else 1
            spans = {run.name: programs.Span() for run in group}
            for run in group * turns:
                self.attempt(self.runs[run.name], lambda: self.add(run, spans, seconds / turns))  # noqa: B023
                self.progress.advance(self._bar, 1 / turns)

    def add(self, run: Run, spans: dict[str, programs.Span], seconds: float) -> dict[str, Any]:
        spans[run.name] += programs.measure_run(run, seconds)
        words = programs.arguments(run)
        return {
            **spans[run.name].figures(),
            "command": shlex.join(["python", "-m", run.beast, *words]),
            "flags": vars(flags_of(run.beast, words)),
        }

    def attempt(self, row: figures.Row, measure: Callable[[], dict[str, Any]]) -> None:
        """Adds to `row` what `measure` returns, or why it returned nothing."""
        if "error" in row:  # its first turn failed: its half would be no fair figure
            return
        self.progress.update(self._bar, description=row["name"])
        try:
            row |= measure()
            self.progress.console.print(f"{row['name']}: {row['steps_per_second']:,.0f} steps/s")
        except Exception as error:
            name = row["name"]
            row.clear()
            row |= {"name": name, "error": f"{type(error).__name__}: {error}"}
            self.progress.console.print(f"{name}: {row['error']}", style="red", markup=False)

    def complete(self, cores: int | None) -> list[figures.Row]:
        """Adds to all rows what follows from the others; returns the targets."""
        for name, part in self.chosen.parts.items():
            figures.complete_part(self.parts[name], part, self.parts)
        for name, run in self.chosen.runs.items():
            figures.complete_run(self.runs[name], run, self.parts, self.runs, cores)
        rows = {**self.parts, **self.runs}
        judged = (figures.judge(target, rows) for target in figures.targets_of(self.chosen))
        return [row for row in judged if row is not None]


def groups(runs: dict[str, Run]) -> Iterator[list[Run]]:
    """MonoBeast's run of a task together with PolyBeast's, others alone."""
    paired = {run.monobeast: run for run in runs.values()}
    for name, run in runs.items():
        if name in paired:
            yield [run, paired[name]]
        elif run.monobeast not in runs:
            yield [run]


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = make_parser()
    own = parser.parse_args(argv)
    if own.quick:
        vars(own).update(QUICK)
    try:
        chosen = catalogue.selected(catalogue.everything(), own.only)
    except re.error as error:
        parser.error(f"--only {own.only}: {error}")
    if not any(chosen):
        parser.error(f"--only {own.only}: no row has such a name")
    machine = report.machine()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        harness = Harness(chosen, progress)
        harness.measure_parts(own.seconds)
        harness.measure_runs(own.training_seconds)
    targets = harness.complete(None if "gpu" in machine else machine["cores"])
    result = {
        "command": shlex.join(["python", "-m", "benchmarks", *argv]),
        "commit": report.commit(),
        "machine": machine,
        "versions": report.versions(),
        "settings": vars(own),
        "parts": list(harness.parts.values()),
        "runs": list(harness.runs.values()),
        "targets": targets,
    }
    publish(result, own.out)
    return 1 if any("error" in row for row in result["parts"] + result["runs"]) else 0


def publish(result: dict[str, Any], folder: Path) -> None:
    """Prints the tables, wide enough also where they go into a file, and writes the files."""
    console = Console() if sys.stdout.isatty() else Console(width=200)
    for name in ("machine", "versions", "commit"):
        console.print(f"{name}: {result[name]}", markup=False, highlight=False)
    report.show(console, report.PARTS, result["parts"])
    report.show(console, report.RUNS, result["runs"])
    report.show(console, report.TARGETS, result["targets"])
    report.write(folder, result)
    console.print(f"Written to {folder}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
