# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about servers and actors that are killed, stopped, hung or cut off."""

import contextlib
import datetime
import os
import random
import re
import signal
import statistics
import tempfile
import time
from pathlib import Path

from tests.faults._breaking import ServerFleet
from tests.faults.harness import Figure, median_and_p99, promise
from tests.support.network import HOSTS, ip, on, two_machines
from tests.support.processes import Program, wait_for

COUNT, N = 4, 4  # servers or actors, and environments in each
SMALL = f"--batch_size {2 * N} --unroll_length 20 --passes 1 --minibatches 1 --ppo_clip 0".split()
SMALL += "--total_steps 1000000000 --log_every 0.5 --eval_every 0".split()
SMALL += "--env tests.support.envs:Lives-v0 --net tests.faults._nets.OneLife".split()
WORKERS = {
    "polybeast": f"--num_servers {COUNT} --envs_per_server {N}".split(),
    "monobeast": f"--num_actors {COUNT} --envs_per_actor {N}".split(),
}
WORKERS["monobeast"] += ["--max_actor_restarts", "1000000"]
FAILED = {  # how out.log tells a failure
    "polybeast": r"Stream failed: actor \d, unix:\S+: [A-Z_]+: \w",
    "monobeast": r"Actor \d failed; its unfinished rollout is dropped\. \w",
}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}  # other faults are orders to Lives


@contextlib.contextmanager
def training(beast, *flags, **environment):
    """Yields a beast whose workers are servers or actors that all deliver. At the end it must stop
    without an error: its network raises one if a rollout is not of one life."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:  # paths of sockets must be short
        orders = Path(folder) / "orders"
        orders.mkdir()
        environment |= dict(module=beast, TMPDIR=folder, ORDERS=orders)
        with Program(folder, *SMALL, *WORKERS[beast], *flags, **environment) as program:
            program.orders = orders
            wait_until_whole(program)
            yield program
            program.process.terminate()
            assert program.wait_for_end() == 0, program.printed()


def break_one(program, fault):
    """Breaks one worker. Returns the time of day at which that has happened."""
    if fault in SIGNALS:
        begin = time.time()
        os.kill(random.choice([*program.actors()]), SIGNALS[fault])
        return begin
    file = program.orders / fault
    file.touch()
    wait_for(lambda: not file.exists())
    return time.time()


def wait_until_whole(program):
    wait_until_streaming(program, COUNT)
    program.wait_for(lambda: len(program.actors()) == COUNT)
    program.wait_for_step(program.rows()[-1]["step"])


def wait_until_streaming(program, streams):
    """Waits until a new row of the log shows that number of streams, or is MonoBeast's."""
    before = len(program.rows())
    program.wait_for(
        lambda: len(rows := program.rows()) > before and rows[-1].get("streams", streams) == streams
    )


def speed(program, begin, end):
    """The steps per second between two times of day, as far as logs.csv has rows."""
    first, *_, last = [row for row in program.rows() if begin - 1 <= row["_time"] <= end + 1]
    return (last["step"] - first["step"]) / (last["_time"] - first["_time"])


def logged(program, pattern):
    """(seconds since the epoch, match) of each entry in out.log whose first line matches."""
    found = []
    for line in (program.path / "out.log").read_text(errors="replace").splitlines():
        entry = re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) \w+ \S+: (.*)", line)
        if entry and (match := re.match(pattern, entry[2])):
            when = datetime.datetime.strptime(entry[1], "%Y-%m-%d %H:%M:%S,%f")
            found.append((when.timestamp(), match))
    return found


def failures(program):
    row = program.rows()[-1]
    return row.get("stream_failures", 0) + row.get("actor_restarts", 0)


# ========================================================================================== killing
@promise(
    "losing servers or actors never stops training, and no rollout mixes two lives",
    "SIGKILL one of four every 5 s for 2 minutes; a learner that does nothing for 10 s",
)
def workers_are_lost(
    beasts=tuple(WORKERS), kill_s=120.0, every_s=5.0, clean_s=30.0, pause_s=10.0, cycles=1
):
    """Kills for `kill_s` seconds and rests for `clean_s`, `cycles` times; both are measured. While
    the learner pauses, no worker may be taken for one that hangs."""
    sizes = kill_s, every_s, clean_s, pause_s, cycles
    return [figure for beast in beasts for figure in _lost(beast, *sizes)]


def _lost(beast, kill_s, every_s, clean_s, pause_s, cycles):
    shares, kills = [], 0
    with training(beast, "--step_timeout", 0.8 * pause_s, PAUSE_S=pause_s) as program:
        unjust = failures(program)
        begin, _ = time.time(), time.sleep(clean_s)
        rest = speed(program, begin, time.time())
        for _ in range(cycles):
            begin = time.time()
            while time.time() < begin + kill_s:
                break_one(program, "kill")
                kills += 1
                time.sleep(every_s)
            under_fire = speed(program, begin, time.time())
            wait_until_whole(program)
            begin, _ = time.time(), time.sleep(clean_s)
            before, rest = rest, speed(program, begin, time.time())
            shares.append(under_fire / statistics.mean([before, rest]))
        program.wait_for(lambda: failures(program) >= kills)
        back = back_after(program) if beast == "polybeast" else []
    return [
        Figure(f"{beast}: workers killed, and failures counted", kills, at_least=1),
        Figure(f"{beast}: found hanging while the learner paused", unjust, at_most=0),
        Figure(f"{beast}: throughput under fire / in peace", statistics.mean(shares), at_least=0.7),
        *(median_and_p99("listening to streaming again", back, 5.0) if back else []),
    ]


@promise("losing servers never stops training for an hour", "SIGKILL one of four every 5 s")
def servers_are_lost_for_an_hour(cycles=26):  # each has 120 s with kills and 20 s without
    return workers_are_lost(("polybeast",), clean_s=20.0, cycles=cycles)


def back_after(program):
    """For each server that was restarted and not killed too early, the seconds from the time when
    it listened until its stream was connected again."""
    listening, seconds = {}, []
    for when, match in logged(program, r"(Serving .* on|Streaming again: actor \d+,) (\S+)$"):
        if match[1].startswith("Serving"):
            listening[match[2]] = when
        else:
            seconds.append(when - listening.get(match[2], when))
    return seconds


# ========================================================================================== telling
@promise("a failure is never silent", "SIGKILL, a raise and a NaN reward in one of four")
def failures_are_told(times=10, beasts=tuple(WORKERS)):
    """How soon does out.log name who failed and why?"""
    faults = ["raise", "nan", "kill"] * times
    return [figure for beast in beasts for figure in _told(beast, faults, 60.0, 1.0)]


@promise("a hung environment is found", "SIGSTOP of one of four; sleep in step")
def hung_environments_are_found(times=5, beasts=tuple(WORKERS), step_timeout=5.0):
    """The others go on meanwhile."""
    faults, at_most = ["stop", "sleep"] * times, step_timeout + 1
    return [figure for beast in beasts for figure in _told(beast, faults, step_timeout, at_most)]


def _told(beast, faults, step_timeout, at_most):
    seconds, shares = [], []
    with training(beast, "--step_timeout", step_timeout) as program:
        told = lambda: [when for when, _ in logged(program, FAILED[beast])]
        for fault in faults:
            before, peace = len(told()), time.time()
            if hangs := fault in ("stop", "sleep"):
                time.sleep(step_timeout)
            begin = break_one(program, fault)
            program.wait_for(lambda: len(told()) > before)  # noqa: B023
            seconds.append(told()[before] - begin)
            if hangs:
                during = speed(program, begin, begin + seconds[-1])
                shares.append(during / speed(program, peace, begin) * COUNT / (COUNT - 1))
            wait_until_whole(program)
        program.wait_for(lambda: failures(program) >= len(faults))
        counted, lines = failures(program), len(logged(program, r"(Stream|Actor \d) failed"))
    # A stream that fails again in the same way is told only after a while, but counted at once.
    most = 1.0 if beast == "monobeast" else None
    what = f"{beast}: failures in logs.csv / in out.log"
    others = f"{beast}: the others' speed, median"
    return [
        *median_and_p99(f"{beast}: fault to log", seconds, at_most),
        Figure(what, counted / lines, at_least=1.0, at_most=most),
        *([Figure(others, statistics.median(shares), at_least=0.95)] if shares else []),
    ]


# ======================================================================================== partition
@promise("a partition is survived", "link down for 30 s between the learner and two servers")
def partition_is_survived(down_s=30.0, step_timeout=60.0, times=3, found_s=31.0):
    """Each server accepts only one stream. So it must give up the stream that was cut off."""
    found, back = [], []
    with tempfile.TemporaryDirectory(prefix="faults-") as path, two_machines() as machines:
        addresses = [f"{HOSTS['envs']}:{port}" for port in (5000, 5001)]
        flags = ["--insecure", "--step_timeout", step_timeout]
        servers = [*SMALL[-4:-2], "--envs_per_server", N, "--max_streams", 1, *flags]
        fleet = ServerFleet(path, *servers, addresses=addresses, before=on(machines["envs"]))
        (own := Path(path) / "learner").mkdir()
        flags = [*SMALL, *flags, "--server_addresses", ",".join(addresses)]
        learner = Program(own, *flags, module="polybeast", before=on(machines["learner"]))
        with fleet, learner:
            for _ in range(times):
                wait_until_streaming(learner, 2)
                ip("-n", machines["envs"], "link", "set", "cable", "down")
                begin = time.time()
                time.sleep(down_s)
                ip("-n", machines["envs"], "link", "set", "cable", "up")
                up = time.time()
                wait_until_streaming(learner, 2)
                for address in addresses:
                    when = lambda said: [t for t, _ in logged(learner, said) if t >= begin]  # noqa: B023
                    found.append(min(when(f"Stream failed: .*{address}")) - begin)
                    back.append(max(when(f"Streaming again: .*{address}")) - up)
            os.killpg(learner.pid, signal.SIGINT)
            assert learner.wait_for_end() == 0, learner.printed()
    return [
        *median_and_p99("found", found, found_s),
        *median_and_p99("link up to streaming again", back, 6.0),
    ]
