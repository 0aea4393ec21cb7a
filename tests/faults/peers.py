# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about killed learners, and about learning under faults."""

import contextlib
import os
import random
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import grpc

from libtorchbeast.rpcenv.server import SERVICE
from tests.faults._breaking import ServerFleet
from tests.faults.harness import Figure, median_and_p99, promise
from tests.support.polybeast import Poly
from tests.support.processes import Program, wait_for

PACED = ["--env", "tests.support.envs:PacedCatch-v0"]
LEARNER = "--net monobeast.Net --batch_size 4 --log_every 0.5 --total_steps 1_000_000_000".split()


@contextlib.contextmanager
def folders(*names):
    """Yields folders with these names, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as root:
        paths = [Path(root) / name for name in names]
        for path in paths:
            path.mkdir()
        yield paths


class Held(NamedTuple):
    """The resources that the servers hold together."""

    descriptors: int
    threads: int
    megabytes: float


@promise("learners may vanish", "SIGKILL of the learner, 50 times, with two streams a server")
def learners_may_vanish(times=50, first=3):
    """What the servers hold is compared with the most that they held after the `first` learners,
    because allocators grow with the first ones. Pools of threads are full before."""
    with folders("servers", "open", "learner") as (folder, opened, path):
        env = [*PACED, "--envs_per_server", 4, "--max_streams", 2]
        with ServerFleet(folder, *env, count=2, STEP_S=0.002, OPEN=opened) as fleet:
            servers = [fleet.server(0), fleet.server(1)]
            _fill_pools(fleet.addresses)
            flags = [*PACED, *LEARNER, "--num_actors", 4]
            flags += ["--server_addresses", ",".join(fleet.addresses)]
            before = []
            for _ in range(first):
                _vanish(path, flags)
                wait_for(lambda: not os.listdir(opened))
                before.append(_held(servers))
            most = Held(*map(max, zip(*before, strict=True)))
            seconds = []
            for _ in range(times):
                killed = _vanish(path, flags)
                _wait_until_nothing_is_left(servers, opened, most)
                seconds.append(time.monotonic() - killed)
            growth = _held(servers).megabytes - most.megabytes
            assert servers == [fleet.server(0), fleet.server(1)], fleet.printed()
    return [
        *median_and_p99("until the servers hold what they did", seconds, at_most=5.0),
        Figure("growth of the two servers", growth, "MB", at_most=5.0),
    ]


def _fill_pools(addresses):
    """Makes each server start all threads that its pool may have, with many calls at once. Else the
    pool grows later, whenever two calls happen to overlap, and never shrinks."""
    for address in addresses:
        with grpc.insecure_channel(address) as channel:
            describe = channel.unary_unary(f"/{SERVICE}/Describe")
            for call in [describe.future(b"") for _ in range(1000)]:
                call.result()


def _vanish(path, flags):
    """Starts a learner and kills it while it learns. Returns the time of the kill."""
    with Poly(path, *flags) as learner:
        learner.wait_for(lambda: (rows := learner.rows()) and rows[-1]["streams"] == 4)
        learner.wait_for_step(learner.rows()[-1]["step"])
        learner.process.kill()
        return time.monotonic()


def _wait_until_nothing_is_left(servers, opened, most):
    def is_back():
        now = _held(servers)
        few = now.descriptors <= most.descriptors and now.threads <= most.threads
        return few and not os.listdir(opened)

    wait_for(is_back, describe=lambda: f"{_held(servers)}, before: {most}; {os.listdir(opened)}")


def _held(pids):
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    kilobytes = [int(re.search(r"^Pss: +(\d+) kB", text, re.M)[1]) for text in rollups]
    return Held(
        sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
        sum(kilobytes) / 1000,
    )


@promise("faults do not bias learning", "Catch, a kill every 5 s; 5 seeds, and 5 without kills")
def faults_do_not_bias_learning(seeds=5, kill_every=5.0, most_kills=10**9, step_s=0.01, clean=True):
    """Trains until the mean return of 50 games is 0.9. The best return is 1, and random actions get
    less than 0."""
    figures = []
    for module in ("polybeast", "monobeast"):
        for most in (0, most_kills) if clean else (most_kills,):
            runs = [_learn(module, seed, kill_every, most, step_s) for seed in range(seeds)]
            steps, kills = zip(*runs, strict=True)
            name = f"{module}, {sum(kills)} kills in {seeds} runs"
            reached = [number for number in steps if number is not None]
            never = seeds - len(reached)
            figures.append(Figure(f"{name}: most steps to 0.9", max(reached, default=0)))
            figures.append(Figure(f"{name}: runs that never reach it", never, at_most=0))
            if most:
                figures.append(Figure(f"{name}: runs without a kill", kills.count(0), at_most=0))
    return figures


def _learn(module, seed, kill_every, most_kills, step_s):
    """Returns the steps that learning took, or None if it failed, and the number of kills."""
    flags = "--batch_size 8 --unroll_length 10 --learning_rate 5e-3 --total_steps 100000"
    workers = {
        "polybeast": "--num_servers 4 --envs_per_server 8 --net monobeast.Net",
        "monobeast": "--num_actors 4 --envs_per_actor 8 --max_actor_restarts 10000",
    }
    flags = [*PACED, *flags.split(), *workers[module].split(), "--seed", seed]
    kills, chance = 0, random.Random(seed)
    with folders("run") as (path,):
        with Program(path, *flags, "--log_every", 0.5, module=module, STEP_S=step_s) as program:
            program.wait_for_step(0)
            due = time.monotonic() + kill_every
            while program.process.poll() is None and _steps_to_learn(program) is None:
                if kills < most_kills and time.monotonic() > due:
                    due += kill_every
                    if actors := sorted(program.actors()):
                        os.kill(chance.choice(actors), signal.SIGKILL)
                        kills += 1
                time.sleep(0.1)
            return _steps_to_learn(program), kills


def _steps_to_learn(program):
    rows = program.rows()
    return next((row["step"] for row in rows if row.get("mean_game_return", 0) >= 0.9), None)
