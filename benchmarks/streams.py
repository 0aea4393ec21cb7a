# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Measures what streams cost the learner's host, by their number, up to the knee.

    python -m benchmarks.streams                             # 1 to 64 streams, about 3 minutes
    python -m benchmarks.streams --over tls --rate 6700

The servers' environments are Mock (mock.py) with Atari's frames. They sleep, so that a stream makes
--rate steps per second, as it would with a core of its own for the emulator, and many streams fit
on this machine. The knee is the last number of streams before one that makes less than 0.9 of this.

The host is a fresh process for each number. It has PolyBeast's actor pool, DynamicBatcher, an
inference thread that answers each batch at once with constant actions, and a thread that drains
the learner queue (`Sink` of transport.py). There is no network, because on a few cores it would
hide what streams cost. So the figures are those of the plumbing, to which a run adds its network.

This prints a table, and writes streams.csv and streams.png into --out.
"""

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from matplotlib.figure import Figure

from benchmarks import report, transport
from benchmarks.catalogue import Part
from benchmarks.children import measure_part
from libtorchbeast.loggers.timing import cpu_cores, latency_percentiles

NUMBERS = (1, 2, 4, 8, 16, 32, 64)
KEPT = 0.9  # the least share of the pace before the knee
WARM_UP = 2.0  # seconds
HEAD = "streams   steps/s  share  CPU us/step  inference  p50 ms  p99 ms  MB/stream  idle"
LINE = "{:7} {:9,.0f} {:6.2f} {:12.2f} {:10.2f} {:7.2f} {:7.1f} {:10.1f} {:5.2f}"


class Row(NamedTuple):
    """Figures of the host's process, without its servers, except for `idle_cores`."""

    streams: int
    steps_per_second: float
    share_of_pace: float
    cpu_us_per_step: float
    inference_us_per_step: float  # the part of it that all streams share, one thread's
    latency_p50_ms: float  # from an observation's arrival until its action is sent
    latency_p99_ms: float
    mb_per_stream: float  # by how much the resident memory grew
    idle_cores: float  # of this machine. If it is near 0, the servers may be too slow


def measure_host(
    streams: int, num_envs: int, rate: int, over: str, seconds: float
) -> dict[str, float]:
    """Measures this process as the host of `streams` streams of `num_envs` environments each.

    Args:
        rate: the steps per second that the environments of a stream make at most.
        over: "unix", "tcp" or "tls".

    Raises:
        RuntimeError: a stream fails or no rollout arrives.
    """
    memory = resident_bytes()
    with transport.playing(f"Mock@{rate}", num_envs, streams, over) as (pool, sink):
        inference = time.pthread_getcpuclockid(sink.threads[0].ident)
        time.sleep(min(WARM_UP, seconds))
        latencies, cores = latency_percentiles(pool.latencies), cpu_cores()
        cpu, shared = time.process_time(), time.clock_gettime(inference)
        steps, elapsed = transport.play(pool, sink, seconds)
        shared, cpu = time.clock_gettime(inference) - shared, time.process_time() - cpu
        return {
            "steps_per_second": steps / elapsed,
            "share_of_pace": steps / elapsed / (streams * rate),
            "cpu_us_per_step": 1e6 * cpu / steps,
            "inference_us_per_step": 1e6 * shared / steps,
            **latencies(),
            "mb_per_stream": (resident_bytes() - memory) / 1e6 / streams,
            "idle_cores": cores()["idle_cores"],
        }


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def knee(rows: list[Row]) -> Row | None:
    """The last row before the first that does not keep the pace. None if row 0 does not."""
    last = None
    for row in rows:
        if row.share_of_pace < KEPT:
            break
        last = row
    return last


def draw(rows: list[Row], rate: int, path: Path) -> None:
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    speed, cpu, latency = figure.subplots(1, 3)
    numbers = [row.streams for row in rows]
    for axes, name, label in (
        (speed, "steps_per_second", "measured"),
        (cpu, "cpu_us_per_step", "host's process"),
        (cpu, "inference_us_per_step", "its inference thread"),
        (latency, "latency_p50_ms", "p50"),
        (latency, "latency_p99_ms", "p99"),
    ):
        axes.plot(numbers, [getattr(row, name) for row in rows], "o-", label=label, markersize=4)
    speed.plot(numbers, [rate * n for n in numbers], "k--", lw=1, label="paced")
    for axes, title in ((speed, "steps/s"), (cpu, "CPU µs per step"), (latency, "latency, ms")):
        axes.set(xscale="log", yscale="log", xlabel="streams", title=title)
        axes.set_xticks(numbers, numbers, minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    cpu.set(yscale="linear", ylim=(0, None))
    figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "benchmarks.streams", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--over", choices=("unix", "tcp", "tls"), default="tcp", help="How streams connect.")
    add("--envs_per_stream", type=int, default=16, help="Environments of a stream.")
    add(
        "--rate",
        type=int,
        default=4700,
        help="Steps per second of a stream. The default is what one core of a Zen 5 makes of Pong.",
    )
    add("--seconds", type=float, default=10.0, help="Time to measure each number of streams.")
    add("--out", type=Path, default=Path("results/bench"), help="Folder for the files.")
    flags = parser.parse_args(sys.argv[1:] if argv is None else argv)
    rows = []
    print(HEAD)
    for number in NUMBERS:
        part = Part("", "host", (number, flags.envs_per_stream, flags.rate, flags.over))
        row = Row(number, **measure_part(part, flags.seconds))
        print(LINE.format(*row), flush=True)
        rows.append(row)
    last = knee(rows)
    print("The knee is before the first number." if last is None else f"The knee: {last.streams}")
    flags.out.mkdir(parents=True, exist_ok=True)
    with (flags.out / "streams.csv").open("w", newline="") as file:
        csv.writer(file).writerows([Row._fields, *report.rounded([list(row) for row in rows])])
    draw(rows, flags.rate, flags.out / "streams.png")


if __name__ == "__main__":
    main()
