# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The folder of a study: its plan, and how far its runs are. docs/studies.md names the files."""

import argparse
import dataclasses
import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from libtorchbeast.checkpoint import saved_step
from libtorchbeast.flags import MAX_STEPS, UserError, whole
from libtorchbeast.loggers import meta
from libtorchbeast.loggers.csv_table import last_row
from libtorchbeast.loggers.files import write_whole

# Flags that the words after `--` may not have, besides those that are swept.
OWN = "xpid savedir cores_per_run gpus_per_run runs_per_gpu retries dry_run slurm".split()
Factor = list[dict[str, str]]  # the settings of flags that change together: flag -> value


@dataclasses.dataclass(eq=False)
class Run:
    """A run of the study, which may not have begun."""

    path: Path  # of its folder
    values: dict[str, str]  # of the swept flags
    command: list[str]

    def total_steps(self) -> int | None:
        """The --total_steps of its command, else of its meta.json. None if neither has it."""
        given = re.findall(r" --total_steps[ =](\S+)", f" {' '.join(self.command)}")
        if not given:
            of_run = flags_of(self.path).get("total_steps")
            return of_run if isinstance(of_run, int) else None
        try:
            return whole(1, MAX_STEPS)(given[-1])
        except argparse.ArgumentTypeError as error:
            raise UserError(f"--total_steps {error}") from error

    def is_complete(self) -> bool:
        """Whether its checkpoint, or with --disable_checkpoint its log, has all the run's steps."""
        total, step = self.total_steps(), saved_step(self.path) or 0
        if flags_of(self.path).get("disable_checkpoint"):
            step = int(last_row(self.path).get("step", 0))
        return total is not None and step >= total

    def seconds_left(self) -> float | None:
        """Until it is complete, at its speed so far. None if it has made no steps yet."""
        row, total = last_row(self.path), self.total_steps()
        if not row.get("step") or not total:
            return None
        return 3600 * row.get("hours", 0.0) * max(0.0, total / row["step"] - 1)


# ========================================================================================= the plan
def parse_factors(words: list[str]) -> list[Factor]:
    """Reads `--flag LIST` and, of flags that are tied, `--flag,other LIST LIST`. Raises UserError
    if the words have another form, or name a flag twice."""
    words = sum((word.split("=", 1) if word[:2] == "--" else [word] for word in words), [])
    factors: list[Factor] = []
    named: Counter[str] = Counter()
    while words:
        head, lists = words.pop(0), []
        while words and words[0][:2] != "--":
            lists.append(_values(words.pop(0)))
        names, lengths = head[2:].split(","), [len(values) for values in lists]
        if head[:2] != "--" or len(lists) != len(names) or len({*lengths}) != 1:
            expected = "for each flag one list, all of the same length"
            raise UserError(f"{head} with {lengths} values: expected {expected}")
        named.update(names)
        settings = zip(*lists, strict=True)
        factors.append([dict(zip(names, values, strict=True)) for values in settings])
    for name, count in named.items():
        if count > 1 or name in ("", "xpid"):
            raise UserError(f"--{name}: expected each flag once, and no --xpid")
    return factors


def _values(text: str) -> list[str]:
    """Splits at commas; 1-3 becomes 1, 2, 3. A character after a backslash stands for itself."""
    values: list[str] = []
    for part in map(str.strip, re.split(r"(?<!\\),", text)):
        if not part:
            raise UserError(f"{text!r}: expected no empty value")
        if ends := re.fullmatch(r"(\d+)-(\d+)", part):
            values += (rising := [*map(str, range(int(ends[1]), int(ends[2]) + 1))])
            if not rising:
                raise UserError(f"{part}: expected a range that rises")
        else:
            values.append(re.sub(r"\\(.)", r"\1", part))
    return values


def make_runs(folder: Path, factors: list[Factor], program: list[str]) -> list[Run]:
    """A run for each combination. The value `on` gives a flag without a value, `off` no flag.
    Raises UserError if two combinations have the same name, or the program has a flag that is swept
    or the sweep's own."""
    swept = [f"--{name}" for factor in factors for name in factor[0]]
    if taken := {*swept, *(f"--{name}" for name in OWN)} & {word.split("=")[0] for word in program}:
        raise UserError(f"{min(taken)} after `--`: expected it before, or not at all")
    if program[0] in ("python", "python3"):
        program = [sys.executable, *program[1:]]
    runs = []
    for settings in itertools.product(*factors):
        values = {name: value for setting in settings for name, value in setting.items()}
        command = list(program)
        for name, value in values.items():
            command += {"on": [f"--{name}"], "off": []}.get(value, [f"--{name}", value])
        xpid = name_of(values)
        command += ["--savedir", str(folder), "--xpid", xpid]
        runs.append(Run(folder / xpid, values, command))
    [(xpid, count)] = Counter(run.path.name for run in runs).most_common(1)
    if count > 1:
        raise UserError(f"{count} combinations have the name {xpid}")
    return runs


def name_of(values: dict[str, str]) -> str:
    """The xpid. The seed's number ends it, as tools.plot expects of the runs of a group."""
    before = {"env": "", "seed": "seed"}  # what stands before a value, else NAME=
    order = sorted(values, key=lambda name: (name != "env") + (name == "seed"))
    words = [before.get(name, f"{name}=") + values[name] for name in order]
    return re.sub(r"[^\w.=+-]+", "-", "_".join(words)) or "run"


def read_plan(folder: Path) -> dict[str, Any]:
    """What plan.json holds: the commands of the sweep, the names of the flags that are swept (those
    that are tied, together), and for each run its values of these flags and its command."""
    path = folder / "plan.json"
    empty: dict[str, Any] = {"commands": [], "factors": [], "runs": {}}
    plan = meta.read_json(path, empty)
    if plan is None:
        raise UserError(f"{path} is damaged; restore it, or move it away to begin a new plan")
    return plan or empty


def add_to_plan(folder: Path, command: str, factors: list[Factor], runs: list[Run]) -> list[str]:
    """Writes plan.json; returns the names of runs that had another command before. Raises UserError
    if a run has the name of one with other values, which was added before."""
    plan = read_plan(folder)
    new = {run.path.name: {"values": run.values, "command": run.command} for run in runs}
    before = plan["runs"]
    for run in runs:
        values = before.get(run.path.name, {}).get("values", run.values)
        if values != run.values:
            raise UserError(f"{run.path.name} is the name of the run with {values} already")
    plan["runs"] = before | new
    plan["commands"] += [command] if command not in plan["commands"] else []
    plan["factors"] += [n for factor in factors if (n := list(factor[0])) not in plan["factors"]]
    write_whole(folder / "plan.json", json.dumps(plan, indent=1) + "\n")
    return [name for name in new if before.get(name, new[name]) != new[name]]


# ======================================================================================== meta.json
def flags_of(path: Path) -> dict[str, Any]:
    """The flags with which the run was started last, from meta.json; {} if it has not begun."""
    return meta.flags_of(meta.read(path / "meta.json"))


def commit_of(path: Path) -> str:
    """The commit that the run was started with last, with a + if files differed from it."""
    found = meta.read(path / "meta.json")
    newest = [found, *found.get("resumed", [])][-1]
    return newest.get("commit", "unknown")[:10] + "+" * newest.get("dirty", False)
