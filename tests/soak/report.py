# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Writes the results of a soak: report.md and soak.json."""

import json
import shlex
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import commit, machine, rounded
from tests.faults.__main__ import markdown
from tests.faults.harness import Figure

Row = dict[str, float]

# Pools of threads grow when more threads are first needed, and a stream may be open or closed. So a
# growth by one or two does not count. A leak would be dozens.
MEASURES = {  # words, unit and the growth that is allowed
    "mb": ("memory", "MB", 10.0),
    "descriptors": ("open files", "", 2),
    "threads": ("threads", "", 2),
}


def measure(role: str, process: psutil.Process) -> dict[str, float]:
    return {
        f"{role}_mb": process.memory_full_info().pss / 1e6,
        f"{role}_descriptors": process.num_fds(),
        f"{role}_threads": process.num_threads(),
    }


def speed(before: Row, row: Row) -> float:
    """Steps per second."""
    return (row["step"] - before["step"]) / max(1e-9, row["_time"] - before["_time"])


def speeds(table: list[Row], start: float, end: float = float("inf")) -> list[float]:
    return [speed(*pair) for pair in pairwise(r for r in table if start <= r["_time"] <= end)]


# ======================================================================================== figures
def figures(soak: Any) -> list[Figure]:
    start, end = soak.first_fault, soak.ended
    table = [row for row in soak.kept if start <= row["_time"] <= end]
    good = [b["_time"] - a["_time"] for a, b in pairwise(table) if speed(a, b) >= soak.speed / 2]
    kept = table[-1]["step"] - table[0]["step"] if table else 0.0
    share = 100 * kept / (soak.speed * (end - start))
    hung = sum(fault["recovered_s"] is None for fault in soak.faults)
    return [
        Figure("effective training time", 100 * sum(good) / (end - start), "%", at_least=90.0),
        Figure("steps kept, of what the fault-free speed would give", share, "%"),
        Figure(f"faults not survived, of {len(soak.faults)}", hung, at_most=0),
        Figure("ends that no fault should have caused", len(soak.wrong), at_most=0),
        Figure("processes left at the end", soak.beast.left(), at_most=0),
        *growths(soak),
    ]


def growths(soak: Any) -> list[Figure]:
    found, titles = [], {"learner": "the learner", "parent": "the servers' parent"}
    titles["oldest"] = f"the oldest {soak.beast.worker}"
    for what, (words, unit, at_most) in MEASURES.items():
        for role, title in titles.items():
            name = f"{role}_{what}"
            values = [s[name] for s in soak.samples if name in s and s["time"] > soak.settles]
            if not values:
                continue
            tenth = max(1, len(values) // 10)
            growth = statistics.median(values[-tenth:]) - statistics.median(values[:tenth])
            found.append(Figure(f"growth of {title}: {words}", growth, unit, at_most))
    return found


# ========================================================================================== files
def write(folder: Path, soak: Any, about: str) -> bool:
    """Writes all files. Returns whether all promised bounds are met."""
    folder.mkdir(parents=True, exist_ok=True)
    since = lambda row, *keys: row | {key: row[key] - soak.began for key in keys}
    result = {
        "command": shlex.join(["python", "-m", "tests.soak", *sys.argv[1:]]),
        "trains": shlex.join(["python", *soak.beast.learner.process.args[1:]]),
        "commit": commit(),
        **machine(),
        "seconds": soak.ended - soak.began,
        "steps": soak.kept[-1]["step"],
        "fault-free steps per second, at the start": soak.speed,
        "fault-free steps per second, at the end": statistics.median(
            speeds(soak.seen, soak.ended - soak.pace.calm) or [0.0]
        ),
        "figures": [f._asdict() | {"held": f.is_held()} for f in figures(soak)],
        "faults": [since(fault, "start", "end") for fault in soak.faults],
        "wrong": soak.wrong,
        "samples": [since(sample, "time") for sample in soak.samples],
    }
    (folder / "soak.json").write_text(json.dumps(rounded(result), indent=1) + "\n")
    (folder / "report.md").write_text(report(soak, rounded(result), about))
    return all(figure["held"] for figure in result["figures"])


def report(soak: Any, result: dict[str, Any], about: str) -> str:
    promise = {
        "promise": "training goes on, and nothing grows",
        "broken_by": f"a random fault every {soak.flags.every:g} s, in the mean",
        "figures": result["figures"],
    }
    lines = [f"# {soak.flags.beast} under random faults", ""]
    lines += [f"- {k}: {v}" for k, v in result.items() if not isinstance(v, list)]
    lines += ["", markdown([promise]), "| fault | times | seconds to recover, median | longest |"]
    lines += ["| --- | --- | --- | --- |"]
    for kind in sorted({fault["kind"] for fault in result["faults"]}):
        seconds = [fault["recovered_s"] for fault in result["faults"] if fault["kind"] == kind]
        times = [float("inf") if x is None else x for x in seconds]
        lines += [f"| {kind} | {len(times)} | {statistics.median(times):.1f} | {max(times):.1f} |"]
    lines += ["", *(f"- not as it should be: {text}" for text in result["wrong"])]
    return "\n".join([*lines, "", about.split("\n\n", 2)[2]])
