# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Compares this checkout with another commit: `python -m benchmarks --against REF`.

The other commit is checked out into a git worktree in a temporary folder, where its own extension
is built if a row needs it. Then each row is measured in pairs, A B B A, where A is this checkout
and B the other commit: runs with the same flags, parts with each one's own benchmarks/parts.py.
The folder is removed at the end, also after Ctrl-C.
"""

import contextlib
import json
import math
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress

from benchmarks import children, programs, report
from benchmarks.catalogue import Catalogue, Run
from benchmarks.tasks import NEWER

ROOT = Path(__file__).resolve().parent.parent
FEWEST_PAIRS = 5
ENDS = (signal.SIGTERM, signal.SIGHUP)
COLUMNS = [
    ("name", "row", "{}"),
    ("steps_per_second", "steps/s", report.SPEED),
    ("other_steps_per_second", "of the other commit", report.SPEED),
    ("ratio", "ratio", report.RATIO),
    ("low", "95 % interval from", report.RATIO),
    ("high", "to", report.RATIO),
    ("pairs", "pairs", "{}"),
    ("error", "", "{}"),
]


class Refused(ValueError):
    """The comparison is impossible. The text is one sentence for the user."""


class Other(NamedTuple):
    """A checkout of another commit."""

    commit: str
    root: Path


# ======================================================================================= statistics
def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean of at least two ratios, and the two ends of its 95 % interval: Student's,
    for the mean of the logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    half = student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, within 0.2 % from 4 degrees of freedom on (Abramowitz and
    Stegun 1964, 26.7.5)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**i for i, term in enumerate(terms, 1))


def turns(pairs: int) -> Iterator[tuple[bool, bool]]:
    """For each pair, whether its first and whether its second turn is this checkout's: A B, B A, A
    B, ... So a steady drift of the machine's speed favours neither."""
    for i in range(pairs):
        yield i % 2 == 0, i % 2 == 1


# =============================================================================== the other checkout
def git(*words: str | Path) -> str:
    """Raises Refused with git's last line if it fails."""
    run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise Refused((run.stderr.strip().splitlines() or ["git failed"])[-1])
    return run.stdout.strip()


def commit_of(ref: str) -> str:
    """The commit that `ref` names. Raises Refused if there is none, or if `ref` ends in -dirty."""
    if ref.endswith("-dirty"):
        raise Refused(f"--against {ref}: expected a commit; uncommitted changes were not kept")
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except Refused:
        raise Refused(f"--against {ref}: this repository has no such commit") from None


@contextlib.contextmanager
def checked_out(commit: str, needs_extension: bool) -> Iterator[Other]:
    """A worktree of the commit in a temporary folder. It is removed at the end. Until then SIGTERM
    and SIGHUP act as Ctrl-C does, so that it is removed after them too."""
    before = {number: signal.signal(number, _interrupt) for number in ENDS}
    root = Path(tempfile.mkdtemp(prefix="benchmarks-"), commit[:12])
    try:
        git("worktree", "add", "--detach", "--quiet", root, commit)
        if needs_extension:
            build(root)
        yield Other(commit, root)
    finally:
        old = signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDS, signal.SIGINT})  # git inherits this
        remove(root)
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def remove(root: Path) -> None:
    """Removes the worktree, even an incomplete one, and the temporary folder that it lies in."""
    try:
        git("worktree", "remove", "--force", "--force", root)
    except Refused:
        shutil.rmtree(root, ignore_errors=True)
        git("worktree", "prune")
    shutil.rmtree(root.parent, ignore_errors=True)


def build(root: Path) -> None:
    """Builds the extension of the checkout in place. Raises Refused if that fails."""
    words = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    run = subprocess.run(words, cwd=root, capture_output=True, text=True)
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise Refused(f"the extension of the other commit is not built: {last}")


# ======================================================================================== measuring
def needs_extension(rows: Catalogue) -> bool:
    streams = any(part.function == "transport" for part in rows.parts.values())
    return streams or any(run.beast != "monobeast" for run in rows.runs.values())


def check_known(rows: Catalogue, other: Other) -> None:
    """Raises Refused unless the other commit has the rows: the functions that measure the parts,
    and the programs' flags."""
    source = other.root / "benchmarks" / "parts.py"
    text = source.read_text() if source.exists() else ""
    for part in rows.parts.values():
        if f"\ndef {part.function}(" not in text:
            raise Refused(f"{part.name}: commit {other.commit[:12]} does not have this row")
    for run in rows.runs.values():
        known = flags_known(run.beast, other.root)
        unknown = [w for w in words_for(run, known) if w.startswith("--") and w not in known]
        if unknown:
            said = f"{run.beast} has no {unknown[0]} there" if known else f"it has no {run.beast}"
            raise Refused(f"{run.name}: commit {other.commit[:12]} cannot run it, {said}")


def flags_known(beast: str, root: Path) -> set[str]:
    """The flags that the checkout's program names in its --help."""
    words = [sys.executable, "-m", beast, "--help"]
    run = subprocess.run(words, cwd=root, capture_output=True, text=True)
    return set(re.findall(r"--\w+", run.stdout)) if run.returncode == 0 else set()


def words_for(run: Run, known: set[str]) -> list[str]:
    """The run's flags, without those of NEWER that the program does not know: it acts as they say
    without them."""
    words, left = [], list(programs.arguments(run))
    while left:
        word = left.pop(0)
        if word in NEWER and word not in known:
            left.pop(0)
        else:
            words.append(word)
    return words


def measurers(rows: Catalogue, other: Other, seconds: float, training_seconds: float) -> dict:
    """For each row, a function that measures it here (True) or in the other checkout (False)."""
    root = {True: ROOT, False: other.root}
    by_name: dict[str, Callable[[bool], dict[str, float]]] = {}
    for name, part in rows.parts.items():
        by_name[name] = lambda here, part=part: children.measure_alone(part, seconds, root[here])
    for name, run in rows.runs.items():
        there = words_for(run, flags_known(run.beast, other.root))
        words = {True: programs.arguments(run), False: there}

        def measure(here: bool, run: Run = run, words: dict = words) -> dict[str, float]:
            span = programs.measure_run(run.beast, words[here], training_seconds, root[here])
            return span.figures()

        by_name[name] = measure
    return by_name


def compare(name: str, measure: Callable[[bool], dict[str, float]], pairs: int) -> dict[str, Any]:
    """The table's row. `measure` is called with True for this checkout and False for the other."""
    speeds: dict[bool, list[float]] = {True: [], False: []}
    try:
        for pair in turns(pairs):
            for here in pair:
                speeds[here].append(measure(here)["steps_per_second"])
    except Exception as error:
        return {"name": name, "error": f"{type(error).__name__}: {error}"}
    ratios = [here / there for here, there in zip(speeds[True], speeds[False], strict=True)]
    ratio, low, high = interval(ratios)
    return {
        "name": name,
        "steps_per_second": statistics.mean(speeds[True]),
        "other_steps_per_second": statistics.mean(speeds[False]),
        "ratio": ratio, "low": low, "high": high, "pairs": pairs,
        "all_steps_per_second": speeds[True], "all_other_steps_per_second": speeds[False],
    }  # fmt: skip


# ============================================================================================= main
def run(rows: Catalogue, settings: Any, argv: list[str]) -> int:
    """Compares the rows, prints the table and writes against.json. Returns the exit code, 1 if a
    row could not be measured.

    Args:
        settings: those of the command line.

    Raises:
        Refused: there is no such commit, it cannot be built, or it does not have a row.
    """
    commit = commit_of(settings.against)
    results = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("checking out", total=len(rows.parts) + len(rows.runs))
        with checked_out(commit, needs_extension(rows)) as other:
            check_known(rows, other)
            measure = measurers(rows, other, settings.seconds, settings.training_seconds)
            for name, function in measure.items():
                progress.update(bar, description=name)
                results.append(compare(name, function, settings.pairs))
                progress.advance(bar)
    publish(results, commit, settings, argv)
    return 1 if any("error" in row for row in results) else 0


def publish(results: list[dict], commit: str, settings: Any, argv: list[str]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=200)
    said = {
        "command": shlex.join(["python", "-m", "benchmarks", *argv]),
        "commit": report.commit(), "other_commit": commit,
        "machine": report.machine(), "versions": report.versions(),
    }  # fmt: skip
    for name, value in said.items():
        console.print(f"{name}: {value}", markup=False, highlight=False)
    report.show(console, COLUMNS, results)
    settings.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.rounded({**said, "rows": results}), indent=1, default=str)
    (settings.out / "against.json").write_text(text + "\n")
    console.print(f"Written to {settings.out}", markup=False)
