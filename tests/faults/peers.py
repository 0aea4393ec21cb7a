# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about failing environments, lost servers, killed learners, and learning under faults."""

import contextlib
import os
import random
import re
import shutil
import signal
import statistics
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

FOREVER = ["--total_steps", 1_000_000_000]
PACED = ["--env", "tests.support.envs:PacedCatch-v0"]
LEARNER = ["--net", "monobeast.Net", "--batch_size", 4, "--log_every", 0.5, *FOREVER]

MOODS = {  # a mood of tests.support.envs.MoodyCatch -> what the log then says
    "raise": "RuntimeError: the ball has rolled under the sofa",
    "changed shape": r"expected uint8\[1, 10, 5\], seen uint8\[1, 9, 5\]",
    "changed dtype": r"expected uint8\[1, 10, 5\], seen float64\[1, 10, 5\]",
    "changed structure": r"expected keys \['frame'\], seen \['board'\]",
    "larger observation": r"expected uint8\[1, 10, 5\], seen uint8\[1, 10000, 5\]",
    "NaN reward": "Reward: expected a finite number, seen nan",
}


@contextlib.contextmanager
def folders(*names):
    """Yields folders with these names, in a temporary folder."""
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        for name in names:
            (root / name).mkdir()
        yield [root / name for name in names]
    finally:
        shutil.rmtree(root, ignore_errors=True)


def speed(learner, seconds):
    """The steps per second from now on, measured for `seconds` and for at least 500 steps."""
    number = len(learner.rows())
    first = learner.wait_for(lambda: learner.rows()[number + 1 :])[0]  # begins after now
    end, step = first["_time"] + seconds, first["step"] + 500
    is_late = lambda row: row["_time"] >= end and row["step"] >= step
    last = learner.wait_for(lambda: list(filter(is_late, learner.rows())))
    return (last[0]["step"] - first["step"]) / (last[0]["_time"] - first["_time"])


def streams(learner):
    return learner.rows()[-1]["streams"] if learner.rows() else 0


@promise(
    "one bad environment harms only itself",
    "1 of 4 raises, changes shape, dtype, structure or size, gives NaN",
)
def one_bad_environment(seconds=20.0, step_s=0.005, until_given_up=True):
    """Without a fault four streams share the steps. When one of them fails from its third step on,
    the other three must keep their speed."""
    env = ["--env", "tests.support.envs:MoodyCatch-v0"]
    with folders("good", "bad", "learner") as (good, bad, path):
        mood = bad / "mood"
        mood.write_text("")
        fleet = lambda folder, count, mood: ServerFleet(
            folder, *env, "--envs_per_server", 4, count=count, STEP_S=step_s, MOOD=mood
        )
        with fleet(good, 3, os.devnull) as others, fleet(bad, 1, mood) as moody:
            addresses = ",".join(others.addresses + moody.addresses)
            with Poly(path, *env, *LEARNER, "--server_addresses", addresses) as learner:
                figures = list(_shares_kept(learner, mood, seconds))
                if until_given_up:
                    figures += _given_up(learner, mood, moody.addresses[0])
                learner.stop()
        figures.append(_unsaid(learner))
    return figures


def _shares_kept(learner, mood, seconds):
    def speed_of(count):
        learner.wait_for(lambda: streams(learner) == count)
        return speed(learner, seconds)

    after = speed_of(4)
    for kind in MOODS:
        mood.write_text(kind)
        during = speed_of(3)
        mood.write_text("")
        before, after = after, speed_of(4)
        share = during / (statistics.mean([before, after]) * 3 / 4)
        yield Figure(f"{kind}: of the others' speed", share, at_least=0.95)


def _given_up(learner, mood, address):
    """Waits until the stream is given up, and counts its failures in the next 30 s. If it were not
    given up, it would fail within 2 s."""
    learner.wait_for(lambda: streams(learner) == 4)
    mood.write_text("raise")
    said = f"{address}: .*(?:\n.*)*failures in a row without a rollout: given up"
    learner.wait_for(lambda: re.search(said, learner.log()))
    failures = learner.rows()[-1]["stream_failures"]
    speed(learner, 30.0)
    more = learner.rows()[-1]["stream_failures"] - failures
    return [Figure("failures in the 30 s after a stream was given up", more, at_most=1)]


def _unsaid(learner):
    log = learner.log()
    unsaid = [kind for kind, said in MOODS.items() if not re.search(said, log)]
    return Figure(f"kinds without their reason in the log {unsaid}", len(unsaid), at_most=0)


@promise("total loss ends the job", "SIGKILL of all four servers, which stay away")
def total_loss(server_timeout=60.0):
    with folders("servers", "learner") as (folder, path):
        flags = ["--server_timeout", server_timeout]
        env = [*PACED, "--envs_per_server", 4]
        with ServerFleet(folder, *env, STEP_S=0.005) as fleet:
            flags += ["--server_addresses", ",".join(fleet.addresses)]
            with Poly(path, *PACED, *LEARNER, *flags) as learner:
                learner.wait_for_step(0)
                learner.wait_for(lambda: streams(learner) == 4)
                fleet.process.kill()  # the servers die with it
                lost = time.monotonic()
                exit_code = learner.wait_for_end()
                took = time.monotonic() - lost
                wait_for(lambda: not learner.session())
        lost_steps = learner.rows()[-1]["step"] - learner.step()
    return [
        Figure("until the learner's exit", took, "s", at_most=server_timeout + 5),
        Figure("exit codes that say nothing is wrong", exit_code == 0, at_most=0),
        Figure("steps that the checkpoint lacks", lost_steps, at_most=0),
    ]


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
        learner.wait_for(lambda: streams(learner) == 4)
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
