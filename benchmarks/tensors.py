# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Measures environments of tensors on the CPU, by the number of environments, and draws them.

    python -m benchmarks.tensors                                      # about 5 minutes
    python -m benchmarks.tensors --seconds 0.3 --training_seconds 0   # a short look

Speeds are environment steps per second of processor time. So other programs on the machine change
them little. Each part runs in one thread. MinAtar in tensors is compared with `gymnasium.make`, Tag
with its NumPy reference, and WarpBeast's whole run with MonoBeast's. This prints a table, and
writes tensors.csv and tensors.png into --out.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks import programs
from benchmarks.catalogue import Run
from benchmarks.parts import Step, minatar_step
from benchmarks.tasks import GAMES
from examples import tensors
from examples.tensors.consistency import Draws
from examples.tensors.plain_tag import PlainTag
from libtorchbeast.tensors import TensorVector

PLAIN = 0  # stands for the reference, which has one environment
NUMBERS = {
    "breakout": (PLAIN, 64, 256, 1024, 4096, 8192),
    **{name: (PLAIN, 1024) for name in ("asterix", "freeway", "seaquest", "space_invaders")},
    "tag/4v1": (PLAIN, 64, 256, 1024, 4096, 8192),
    "tag/80v20/partial": (PLAIN, 1, 8, 64, 256),  # what 100 agents see takes much memory
}
ONE_THREAD = ("--torch_threads", "1")  # threads that wait for each other use processor time
RUNS = {  # the whole runs
    "MonoBeast, MinAtar/Breakout-v1": Run(
        "", "monobeast", ("--env", GAMES["MinAtar"], *ONE_THREAD)
    ),
    "WarpBeast, breakout": Run("", "warpbeast", ("--env", "breakout", *ONE_THREAD)),
}


class Row(NamedTuple):
    name: str
    num_envs: int
    steps_per_cpu_second: float


def speed(step: Step, seconds: float) -> float:
    """Agent steps per second of processor time."""
    step()  # warm
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        count += step()
    return count / spent


def tensor_step(name: str, num_envs: int) -> Step:
    """A step of all environments, with random actions."""
    vector = TensorVector(tensors.make(name), num_envs)
    vector.reset(seed=0)
    size, high = (num_envs, *vector.env.actions.shape), min(vector.env.actions.sizes)

    def step() -> int:
        vector.step(torch.randint(high, size))
        return num_envs

    return step


def tag_step(name: str) -> Step:
    """A step of one game in NumPy."""
    env, random = tensors.make(name), np.random.default_rng(0)
    draws = lambda: Draws(env, random.random(sum(env.draws.values()), np.float32))
    plain = PlainTag(env)
    plain.reset(draws())

    def step() -> int:
        *_, terminated, truncated = plain.step(random.integers(5, size=env.agents), None)
        if terminated or truncated:
            plain.reset(draws())
        return 1

    return step


def step_of(name: str, num_envs: int) -> Step:
    if num_envs != PLAIN:
        return tensor_step(name, num_envs)
    if name.startswith("tag"):
        return tag_step(name)
    return minatar_step(f"MinAtar/{name.title().replace('_', '')}-v1")


def measure(seconds: float, training_seconds: float) -> Iterator[Row]:
    torch.set_num_threads(1)
    for name, numbers in NUMBERS.items():
        for num_envs in numbers:
            yield Row(name, num_envs, speed(step_of(name, num_envs), seconds))
    for name, run in RUNS.items() if training_seconds else ():
        span = programs.measure_run(run.beast, programs.arguments(run), training_seconds)
        yield Row(name, PLAIN, span.steps / span.cpu_seconds)


def draw(rows: list[Row], path: Path) -> None:
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, numbers) in enumerate(NUMBERS.items()):
        own = [row for row in rows if row.name == name]
        points = [(n, speed) for _, n, speed in own if n != PLAIN]
        axes.plot(*zip(*points, strict=True), "o-", color=f"C{number}", label=name, markersize=4)
        if numbers[0] == PLAIN:  # a dashed line
            axes.axhline(own[0].steps_per_cpu_second, color=f"C{number}", ls="--", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="environments")
    axes.set_ylabel("steps per CPU second (dashed: the reference)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("benchmarks.tensors", allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time for each part.")
    parser.add_argument("--training_seconds", type=float, default=45.0, help="For each whole run.")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    flags = parser.parse_args(sys.argv[1:] if argv is None else argv)
    rows = []
    for row in measure(flags.seconds, flags.training_seconds):
        rows.append(row)
        number = row.num_envs or "reference"
        print(f"{row.name:32} {number:>10} {row.steps_per_cpu_second:14,.0f}", flush=True)
    flags.out.mkdir(parents=True, exist_ok=True)
    with (flags.out / "tensors.csv").open("w", newline="") as file:
        csv.writer(file).writerows([Row._fields, *rows])
    draw(rows, flags.out / "tensors.png")


if __name__ == "__main__":
    main()
