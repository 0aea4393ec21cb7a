# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What follows from the measured figures: ratios, rooflines, targets. All of it is pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmarks.catalogue import Catalogue, Part, Run

Row = dict[str, Any]  # of a table; what does not exist is left out
Rows = dict[str, Row]  # by name


def roofline(cores: int, speeds: Iterable[float]) -> float:
    """Steps per second that all cores could make if nothing but the parts cost anything.

    A step costs each part 1 / speed core-seconds; `cores` core-seconds pass in a second.

    Args:
        speeds: of the parts, steps per second of one core while all are busy.
    """
    return cores / sum(1.0 / speed for speed in speeds)


def complete_part(row: Row, part: Part, parts: Rows) -> None:
    """Adds what the part is compared with. One function may have measured both."""
    if part.ceiling:
        row["ceiling"] = part.ceiling
        key = "ceiling_steps_per_second"
        compare(row, key, row.get(key, speed_of(parts, part.ceiling)), "ratio")


def complete_run(row: Row, run: Run, parts: Rows, runs: Rows, cores: int | None) -> None:
    """Adds ceilings and the roofline.

    Args:
        cores: None where a GPU does part of the work: there is no such roofline then.
    """
    row["ceiling"] = run.ceiling
    compare(row, "ceiling_steps_per_second", speed_of(parts, run.ceiling), "ratio")
    compare(row, "monobeast_steps_per_second", speed_of(runs, run.monobeast), "ratio_to_monobeast")
    speeds = [speed_of(parts, name, "busy_steps_per_second") for name in run.parts]
    if cores and speeds and None not in speeds:
        limit = roofline(cores, speeds)
        compare(row, "roofline_steps_per_second", limit, "roofline_share")


def compare(row: Row, key: str, speed: float | None, ratio: str) -> None:
    """Adds the speed under `key`, and the row's own speed / that one under `ratio`."""
    if speed is not None:
        row[key] = speed
        if "steps_per_second" in row:
            row[ratio] = row["steps_per_second"] / speed


def speed_of(rows: Rows, name: str, key: str = "steps_per_second") -> float | None:
    return rows.get(name, {}).get(key)


# ========================================================================================== targets
class Target(NamedTuple):
    """A row of issue 4's table: a ratio, or a share, of a row of ours."""

    row: str
    ratio: str  # its column
    reach: float
    stretch: float | None = None
    at_most: bool = False


# Columns of ratios: what each is to, and in which column that speed is.
RATIOS = {
    "ratio": "ceiling_steps_per_second",
    "ratio_to_monobeast": "monobeast_steps_per_second",
    "roofline_share": "roofline_steps_per_second",
}


def targets_of(catalogue: Catalogue) -> list[Target]:
    runs = catalogue.runs
    table = [
        Target("MonoBeast, Pong, shallow", "ratio", 0.38, 0.42),
        Target("MonoBeast, MinAtar, shallow", "ratio", 0.18, 0.26),
        Target("PolyBeast, Pong, deep", "ratio", 2.4, 2.8),
        *(Target(name, "ratio_to_monobeast", 1.0, 1.05) for name in runs if runs[name].monobeast),
        Target("transport_stacked", "ratio", 0.75, 1.0),
        Target("transport_small", "ratio", 0.13, 0.25),
        *(Target(name, "roofline_share", 0.85, 0.90) for name in runs),
    ]
    for name, part in catalogue.parts.items():
        if part.function == "lstm_factor":
            table.append(Target(name, "ratio", 2.0, 1.5, at_most=True))
        if part.function == "vtrace_share":
            table.append(Target(name, "ratio", 0.02, at_most=True))
    return [target for target in table if target.row in {**catalogue.parts, **runs}]


def judge(target: Target, rows: Rows) -> Row | None:
    """The target beside what was reached; None if what it is a ratio to was not measured."""
    row = rows[target.row]
    if target.ratio not in row:
        return None
    ratio, ceiling = row[target.ratio], RATIOS[target.ratio]
    names = {"ratio": row.get("ceiling"), "ratio_to_monobeast": "MonoBeast"}
    sign = "<=" if target.at_most else ">="
    judged = {
        "name": target.row,
        "ratio_to": names.get(target.ratio, "its roofline"),
        "steps_per_second": row["steps_per_second"],
        "ceiling_steps_per_second": row[ceiling],
        "ratio": ratio,
        "sign": sign,
        "target": target.reach,
        "reached": meets(ratio, target.reach, target.at_most),
    }
    if target.stretch is not None:
        judged["stretch"] = target.stretch
        judged["stretch_reached"] = meets(ratio, target.stretch, target.at_most)
    return judged


def meets(ratio: float, bound: float, at_most: bool) -> bool:
    return ratio <= bound if at_most else ratio >= bound
