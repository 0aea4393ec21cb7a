# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Measures the speed of the programs and of their parts, and compares each with its upper bound.

    python -m benchmarks                                           # everything, about half an hour
    python -m benchmarks --only "^PolyBeast, Pong, deep$"          # some rows
    python -m benchmarks --only transport --seconds 10
    python -m benchmarks --only MinAtar --against HEAD~10           # ratios to another commit

This prints tables and writes bench.json, parts.csv and runs.csv. All speeds are agent steps per
second. Compare ratios, not speeds: machines differ, and the speed of a shared machine varies.

    parts    Each part is measured alone, in a fresh process with one thread. The parts of a
             roofline are measured again with all cores busy.
    runs     The programs are measured from their first update on. PolyBeast and MonoBeast take
             turns.
    roofline The number of cores / the core-seconds per step of environment, inference and learner
             together.
    replay   Each thing that R2D2's replay does, in turns with a memcpy of the same bytes.
    latency  The time from an observation to its action, from the runs' logs.csv.

The exit code is 1 if something could not be measured. Its row says why. The other rows are valid.
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

from benchmarks import against, catalogue, children, figures, programs, report
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
        help="Measure only the rows whose names match, and the rows they are compared with.",
    )
    add("--seconds", type=float, default=5.0, help="Time to measure each part.")
    add("--training_seconds", type=float, default=45.0, help="Time to measure each run.")
    add(
        "--quick",
        action="store_true",
        help="Measure for a moment only, to see whether it works. The figures mean nothing.",
    )
    add(
        "--against",
        metavar="REF",
        help="Measure the rows that match in this checkout and in the commit REF, in turn, and "
        "print the ratios with their 95 %% intervals. A run takes --training_seconds each time.",
    )
    add("--pairs", type=int, default=against.FEWEST_PAIRS, help="Number of pairs of --against.")
    add("--out", type=Path, default=Path("results/bench"), help="Folder for the files.")
    return parser


class Harness:
    """Measures one row after the other. A row that fails gets an `error` instead of figures."""

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
            # Two programs take turns (A B A B), so that a drift of the machine affects both.
            turns = 2 if len(group) > 1 else 1
            spans = {run.name: programs.Span() for run in group}
            for run in group * turns:
                self.attempt(self.runs[run.name], lambda: self.add(run, spans, seconds / turns))  # noqa: B023
                self.progress.advance(self._bar, 1 / turns)

    def add(self, run: Run, spans: dict[str, programs.Span], seconds: float) -> dict[str, Any]:
        words = programs.arguments(run)
        spans[run.name] += programs.measure_run(run.beast, words, seconds)
        return {
            **spans[run.name].figures(),
            "command": shlex.join(["python", "-m", run.beast, *words]),
            "flags": vars(flags_of(run.beast, words)),
        }

    def attempt(self, row: figures.Row, measure: Callable[[], dict[str, Any]]) -> None:
        """Adds to `row` the figures that `measure` returns, or the error that it raises."""
        if "error" in row:  # after a failed first turn the second alone would not be comparable
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
        """Adds to all rows the figures that follow from other rows. Returns the targets' rows."""
        for name, part in self.chosen.parts.items():
            figures.complete_part(self.parts[name], part, self.parts)
        for name, run in self.chosen.runs.items():
            figures.complete_run(self.runs[name], run, self.parts, self.runs, cores)
        rows = {**self.parts, **self.runs}
        judged = (figures.judge(target, rows) for target in figures.targets_of(self.chosen))
        return [row for row in judged if row is not None]


def groups(runs: dict[str, Run]) -> Iterator[list[Run]]:
    """Yields the runs that take turns: MonoBeast's and PolyBeast's of one task, or one alone."""
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
        parser.set_defaults(**QUICK)
        own = parser.parse_args(argv)
    if own.pairs < against.FEWEST_PAIRS:
        parser.error(f"--pairs {own.pairs}: expected at least {against.FEWEST_PAIRS}")
    select = catalogue.selected if own.against is None else catalogue.matching
    try:
        chosen = select(catalogue.everything(), own.only)
    except re.error as error:
        parser.error(f"--only {own.only}: {error}")
    if not any(chosen):
        parser.error(f"--only {own.only}: no row's name matches")
    if own.against is not None:
        return compare(parser, chosen, own, argv)
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


def compare(
    parser: argparse.ArgumentParser, chosen: Catalogue, own: argparse.Namespace, argv: list[str]
) -> int:
    try:
        return against.run(chosen, own, argv)
    except against.Refused as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130


def publish(result: dict[str, Any], folder: Path) -> None:
    """Prints the tables, 200 columns wide if they go into a file, and writes the files."""
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
