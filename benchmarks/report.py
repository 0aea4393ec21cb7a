# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Prints the tables, and writes bench.json, parts.csv and runs.csv."""

import csv
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from libtorchbeast import linux, workers
from libtorchbeast.accelerator import devices

Row = dict[str, Any]

# The columns of the files: (column, title, format). Those with a title are printed too.
SPEED, RATIO = "{:,.0f}", "{:.3f}"
PARTS = [
    ("name", "part alone", "{}"),
    ("steps_per_second", "steps/s", SPEED),
    ("busy_steps_per_second", "each, all cores busy", SPEED),
    ("ceiling", "compared with", "{}"),
    ("ceiling_steps_per_second", "its steps/s", SPEED),
    ("ratio", "ratio", RATIO),
    ("sequences_per_second", "sequences/s", SPEED),
    ("gigabytes_per_second", "GB/s", RATIO),
    ("cpu_seconds_per_1000_steps", "CPU s / 1000 steps", RATIO),
    ("error", "", "{}"),
]
RUNS = [
    ("name", "whole run", "{}"),
    ("steps_per_second", "steps/s", SPEED),
    ("updates_per_second", "updates/s", "{:.1f}"),
    ("ceiling", "compared with", "{}"),
    ("ceiling_steps_per_second", "its steps/s", SPEED),
    ("ratio", "ratio", RATIO),
    ("monobeast_steps_per_second", "MonoBeast", SPEED),
    ("ratio_to_monobeast", "ratio", RATIO),
    ("roofline_steps_per_second", "roofline", SPEED),
    ("roofline_share", "share", "{:.1%}"),
    ("cpu_seconds_per_1000_steps", "CPU s / 1000 steps", RATIO),
    ("latency_p50_ms", "latency p50 ms", "{:.1f}"),
    ("latency_p99_ms", "p99 ms", "{:.1f}"),
    ("seconds", None, "{}"),
    ("steps", None, "{}"),
    ("command", None, "{}"),
    ("error", "", "{}"),
]
TARGETS = [
    ("name", "target", "{}"),
    ("steps_per_second", "steps/s", SPEED),
    ("ratio_to", "to", "{}"),
    ("ceiling_steps_per_second", "its steps/s", SPEED),
    ("ratio", "ratio", "{:.4f}"),
    ("sign", "", "{}"),
    ("target", "target", "{:g}"),
    ("reached", "reached", "{}"),
    ("stretch", "stretch", "{:g}"),
    ("stretch_reached", "reached", "{}"),
]


def show(console: Console, columns: list[tuple], rows: Iterable[Row]) -> None:
    """Prints a table, without the columns that are empty in all rows."""
    rows = list(rows)
    shown = [c for c in columns if c[1] is not None and any(c[0] in row for row in rows)]
    if not shown:
        return
    table = Table(*(title for _, title, _ in shown))
    for (name, _, form), column in zip(shown, table.columns, strict=True):
        column.justify = "left" if form == "{}" else "right"
        column.overflow = "fold"
        column.no_wrap = name == "name"
    for row in rows:
        table.add_row(*(cell(row.get(name), form) for name, _, form in shown))
    console.print(table)


def cell(value: Any, form: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "[red]no[/red]"
    text = form.format(value)
    return text.splitlines()[-1][-60:].replace("[", r"\[") if isinstance(value, str) else text


def write(folder: Path, result: dict[str, Any]) -> None:
    """Writes everything to bench.json, and the rows of the tables to parts.csv and runs.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rounded(result), indent=1, default=str)
    (folder / "bench.json").write_text(text + "\n")
    for name, columns in (("parts", PARTS), ("runs", RUNS)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [c[0] for c in columns], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rounded(result[name]))


def rounded(value: Any) -> Any:
    """Rounds to seven digits, which is more than the precision of the measurements."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


# ========================================================================== what it was measured on
def machine() -> Row:
    row = {
        "cpu": linux.cpu_model(),
        "cores": workers.available_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "bf16": devices.has_bf16(devices.CPU),
        "system": platform.platform(),
    }
    if torch.cuda.is_available():
        row["gpu"] = torch.cuda.get_device_name()
    return row


def versions() -> dict[str, str]:
    names = ("torch", "numpy", "grpcio", "ale-py")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": sys.version.split()[0]} | found


def commit() -> str:
    words = ["git", "describe", "--always", "--dirty"]
    run = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent)
    return run.stdout.strip()
