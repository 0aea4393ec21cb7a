# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Ratios, rooflines and targets, computed from the measured figures by pure functions."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmarks.catalogue import Catalogue, Part, Run

Row = dict[str, Any]  # column -> value; a value that does not exist is left out
Rows = dict[str, Row]  # name -> row


def roofline(cores: int, speeds: Iterable[float]) -> float:
    """The steps per second that all cores together would make if the parts were the only work.

    A part needs 1 / speed core-seconds for a step, and the machine has `cores` core-seconds in each
    second.

    Args:
        speeds: of each part, the steps per second of one core while all cores are busy.
    """
    return cores / sum(1.0 / speed for speed in speeds)


def complete_part(row: Row, part: Part, parts: Rows) -> None:
    """Adds the speed of the part's ceiling, unless it was measured together with the part, and the
    ratio."""
    if part.ceiling:
        row["ceiling"] = part.ceiling
        key = "ceiling_steps_per_second"
        compare(row, key, row.get(key, speed_of(parts, part.ceiling)), "ratio")


def complete_run(row: Row, run: Run, parts: Rows, runs: Rows, cores: int | None) -> None:
    """Adds the speeds that the run is compared with, and the ratios.

    Args:
        cores: None if the machine has a GPU. Then there is no roofline, because the GPU does part
            of the work.
    """
    row["ceiling"] = run.ceiling
    compare(row, "ceiling_steps_per_second", speed_of(parts, run.ceiling), "ratio")
    compare(row, "monobeast_steps_per_second", speed_of(runs, run.monobeast), "ratio_to_monobeast")
    speeds = [speed_of(parts, name, "busy_steps_per_second") for name in run.parts]
    if cores and speeds and None not in speeds:
        limit = roofline(cores, speeds)
        compare(row, "roofline_steps_per_second", limit, "roofline_share")


def compare(row: Row, key: str, speed: float | None, ratio: str) -> None:
    """Adds `speed` as column `key`, and the row's own speed / `speed` as column `ratio`."""
    if speed is not None:
        row[key] = speed
        if "steps_per_second" in row:
            row[ratio] = row["steps_per_second"] / speed


def speed_of(rows: Rows, name: str, key: str = "steps_per_second") -> float | None:
    return rows.get(name, {}).get(key)


# ========================================================================================== targets
class Target(NamedTuple):
    """The ratio that a row should reach."""

    row: str
    ratio: str  # the column of the ratio
    reach: float  # the ratio that it must reach
    stretch: float | None = None  # a better ratio, which would be nice to reach
    at_most: bool = False  # whether the ratio must stay below the two, not above


# The columns of ratios, and the columns with the speeds that they are ratios to.
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
    """Returns the target's row, or None if its ratio was not measured."""
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
