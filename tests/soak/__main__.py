# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Trains under random faults for hours, watches the processes from outside, and writes a report.

    make soak                                       # PolyBeast for an hour; results/soak/polybeast
    make soak FLAGS="--beast monobeast --hours 8"

The environment takes 2 ms for a step. So it limits the speed, and other work on the machine hardly
changes the speed. Almost all lost steps are lost to faults.

The soak begins with a stretch without faults. Then, after random pauses, it draws a fault from a
shuffled deck, in which frequent faults lie several times:

    PolyBeast,  A server is killed, or stopped for longer than --step_timeout. Strangers send
    R2D2        garbage, or connect and send nothing. The servers' parent is killed and started
                again, as a cluster would do.
    MonoBeast   An actor is killed, or stopped for longer than --step_timeout.
    all         The learner is killed or gets SIGTERM, and the same command resumes the run, as when
                Slurm requeues a job. The learner's disk is full for longer than the time between
                two checkpoints.

Faults that end the learner or the servers' parent happen only in the first two thirds of --settle.
After that time the server or actor that is then the oldest is spared, too. So growth is measured
within one life of each process.

- The effective training time is the share of the time, from the first fault to the end, in which
  training ran at half of its fault-free speed or more. It is the sum of those intervals between two
  rows of the final logs.csv that have at least half of the first stretch's median steps per second.
  That file has no steps that a kill has undone, so the time for them counts as lost.
- The steps kept are compared with those that the fault-free speed would have given in that time.
  This share also counts smaller losses, whatever their cause.
- A fault is survived once all streams are connected after its end and two rows show new steps.
- Growth is the median of the last tenth of the samples since --settle, minus the median of the
  first tenth. Memory is PSS, in MB of 1,000,000 bytes.
"""

import argparse
import contextlib
import ctypes
import logging
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import psutil

from tests.faults._breaking import ServerFleet
from tests.soak import report as soak_report
from tests.soak.report import Row, speeds
from tests.support.client import Client
from tests.support.processes import GUARD_S, Command, Program

IDLE_CONNECTIONS = 50
ENVS = 8  # in each server or actor; with 2 ms a step, each makes a rollout every 0.3 s
Faults = dict[str, tuple[int, Callable[[], None]]]  # kind -> (its number in the deck, what does it)


class Pace:
    """The soak's times, in seconds. Those of a short soak are shorter."""

    def __init__(self, seconds: float):
        self.calm = min(120.0, seconds / 8)  # without faults, at the start and at the end
        self.sample = min(5.0, seconds / 40)
        self.log = min(2.0, seconds / 60)
        self.checkpoint = min(10.0, seconds / 12)  # often, because a run is killed often
        self.step_timeout = min(5.0, seconds / 10)


# ======================================================================================= the beasts
class MonoBeast:
    """MonoBeast's learner and its actors, seen from outside."""

    module, worker = "monobeast", "actor"
    endings = {"learner killed", "learner terminated"}  # end a process whose growth is measured
    parent: Command | None = None

    def __init__(self, soak: "Soak", folder: Path):
        self.env, self.folder, self.pace, self.rest = soak.flags.env, folder, soak.pace, soak.rest
        self.flags = ["--num_actors", soak.flags.workers, "--max_actor_restarts", 1_000_000]
        self.flags += ["--envs_per_actor", ENVS]
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.is_disk_small = mount_small_disk(self.disk)
        self.spared: set[int] = set()
        self.commands: list[Command] = []

    def start(self) -> None:
        pace, flags = self.pace, ["--env", self.env, "--total_steps", 10**12, *self.flags]
        flags += ["--log_every", pace.log, "--checkpoint_every", pace.checkpoint]
        flags += ["--step_timeout", pace.step_timeout]
        self.started = time.time()
        self.learner = Program(self.disk, *flags, module=self.module)
        self.commands.append(self.learner)

    def faults(self) -> Faults:
        faults: Faults = {
            f"{self.worker} killed": (4, lambda: os.kill(self.victim(), signal.SIGKILL)),
            f"{self.worker} stopped": (2, self.stop_a_worker),
            "learner killed": (1, self.kill_learner),
            "learner terminated": (1, self.terminate_learner),
        }
        return faults | ({"disk full": (1, self.fill_disk)} if self.is_disk_small else {})

    def revive(self) -> str:
        """Restarts what has ended by itself. Returns what it was and why it ended, or ""."""
        if self.learner.process.poll() is None:
            return ""
        why = _obituary("the learner", self.learner)
        self.start()
        return why

    def workers(self) -> list[int]:
        """The ids of the servers' or actors' processes, the oldest first."""
        return sorted(self.learner.actors(), key=_born)

    def victim(self) -> int:
        if victims := [pid for pid in self.workers() if pid not in self.spared]:
            return random.choice(victims)
        raise ProcessLookupError(f"no {self.worker} is there")

    def stop_a_worker(self) -> None:
        """Stops a worker. It is found and killed meanwhile, or it goes on afterwards."""
        pid = self.victim()
        os.kill(pid, signal.SIGSTOP)
        self.rest(1.5 * self.pace.step_timeout)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def kill_learner(self) -> None:
        self.learner.process.kill()
        self.learner.wait_for_end()
        self.start()

    def terminate_learner(self) -> None:
        terminate("the learner", self.learner, (0, 130, -signal.SIGTERM))  # before it trains
        self.start()

    def fill_disk(self) -> None:
        rows = self.learner.rows()
        if not rows or rows[-1]["_time"] < self.started:
            raise ProcessLookupError("training has not begun, and cannot begin on a full disk")
        ballast = self.disk / "ballast"
        with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(10**6)):
                pass
        self.rest(1.5 * self.pace.checkpoint)
        ballast.unlink()

    def end(self) -> None:
        terminate("the learner", self.learner)

    def left(self, patience: float = 5.0) -> int:
        """The number of processes that are left `patience` seconds after the end."""
        end = time.time() + patience
        while (count := sum(len(c.session()) for c in self.commands)) and time.time() < end:
            time.sleep(0.1)
        return count

    def close(self) -> None:
        for command in self.commands:
            command.__exit__()
        if self.is_disk_small:
            subprocess.run(["umount", self.disk], check=True)


class PolyBeast(MonoBeast):
    """PolyBeast's learner and, started separately, `python -m polybeast_env` with its servers."""

    module, worker = "polybeast", "server"
    endings = MonoBeast.endings | {"servers' parent killed"}
    own_flags = ["--net", "monobeast.Net"]

    def __init__(self, soak: "Soak", folder: Path):
        super().__init__(soak, folder)
        self.addresses = [f"unix:{folder}/{i}" for i in range(soak.flags.workers)]
        self.flags = [*self.own_flags, "--server_addresses", ",".join(self.addresses)]

    def start(self) -> None:
        if self.parent is None:
            self.start_servers()
        super().start()

    def start_servers(self) -> None:
        flags = ["--env", self.env, "--step_timeout", self.pace.step_timeout]
        flags += ["--envs_per_server", ENVS]
        self.parent = ServerFleet(self.folder, *flags, addresses=self.addresses)
        self.commands.append(self.parent)

    def faults(self) -> Faults:
        return super().faults() | {
            "servers' parent killed": (1, self.kill_parent),
            "garbage sent": (2, self.send_garbage),
            "idle connections": (2, self.connect_and_say_nothing),
        }

    def revive(self) -> str:
        if (why := super().revive()) or self.parent.process.poll() is None:
            return why
        why = _obituary("the servers", self.parent)
        self.start_servers()
        return why

    def workers(self) -> list[int]:
        return sorted(self.parent.actors(), key=_born)

    def kill_parent(self) -> None:
        self.parent.process.kill()
        self.parent.wait_for_end()
        self.start_servers()

    def send_garbage(self) -> None:
        """Sends garbage to each server, to its socket and instead of actions."""
        texts = [random.randbytes(4096), b"GET / HTTP/1.1\r\n\r\n"]
        texts.append(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + random.randbytes(4096))
        for address in self.addresses:
            with contextlib.suppress(OSError, grpc.RpcError):  # the server may be starting again
                for text in texts:
                    with connected(address) as stranger:
                        stranger.sendall(text)
                with Client(address) as client:
                    stream = client.stream()
                    stream.read()
                    stream.send(random.randbytes(40))
                    stream.failure()

    def connect_and_say_nothing(self) -> None:
        with contextlib.ExitStack() as strangers:
            for address in self.addresses * IDLE_CONNECTIONS:
                with contextlib.suppress(OSError):  # the server may be starting again
                    strangers.enter_context(connected(address))
            self.rest(self.pace.step_timeout)

    def end(self) -> None:
        super().end()
        terminate("the servers", self.parent)


class R2D2(PolyBeast):
    """The same with R2D2, whose replay is full long before growth is measured. Batches are small,
    because the log's steps grow by those that lie between two batches."""

    module = "r2d2"
    own_flags = "--save_replay --replay_capacity 50_000 --replay_start 500 --burn_in 5".split()
    own_flags += "--train_length 15 --batch_size 8 --torch_threads 1".split()


BEASTS = {beast.module: beast for beast in (PolyBeast, MonoBeast, R2D2)}


def mount_small_disk(folder: Path, size: str = "128m") -> bool:
    """Mounts a small file system at `folder`. Only this process and its children see it, and it
    ends with them. Returns False if this process is not allowed to mount."""
    NEW_NAMESPACE = 0x20000  # CLONE_NEWNS
    if sys.platform != "linux" or ctypes.CDLL(None).unshare(NEW_NAMESPACE):
        return False
    commands = "mount --make-rprivate /", f"mount -t tmpfs -o size={size} soak {folder}"
    return not any(subprocess.run(words.split()).returncode for words in commands)


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(1.0)
        stranger.connect(address.removeprefix("unix:"))
        yield stranger


def terminate(name: str, command: Command, codes: tuple[int, ...] = (0,)) -> None:
    command.process.terminate()
    assert command.wait_for_end() in codes, _obituary(name, command)


def _obituary(name: str, command: Command) -> str:
    last = "\n".join(command.printed().strip().splitlines()[-3:])
    return f"{name}: exit code {command.process.returncode}: {last}"


def _born(pid: int) -> float:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return float("inf")  # it has just ended


# ========================================================================================= the soak
class Soak:
    """Runs a beast under faults and records what happens. Times are seconds since the epoch, as in
    logs.csv."""

    def __init__(self, flags: argparse.Namespace, folder: Path):
        self.flags, self.seconds = flags, 3600 * flags.hours
        self.pace = Pace(self.seconds)
        self.samples: list[dict[str, Any]] = []
        self.seen: list[Row] = []  # all rows of logs.csv, even those that a kill undid
        self.faults: list[dict[str, Any]] = []
        self.wrong: list[str] = []  # processes that ended although no fault should end them
        self._next_sample = 0.0
        random.seed(flags.seed)
        self.beast = BEASTS[flags.beast](self, folder)

    def run(self) -> None:
        self.beast.start()
        self.rest_until(lambda: self.wrong or any(map(self.is_whole, self.seen)))
        assert self.seen and not self.wrong, f"training did not begin: {self.wrong}"
        self.began = time.time()
        self.settles = self.began + 60 * self.flags.settle
        self.spares = self.began + 40 * self.flags.settle
        self.rest(self.pace.calm)
        self.rest_until(lambda: speeds(self.seen, self.began))
        self.speed = statistics.median(speeds(self.seen, self.began))
        self.first_fault = time.time()
        self.break_things(until=self.began + self.seconds - self.pace.calm)
        self.rest(self.pace.calm)
        self.rest_until(lambda: all(self.seconds_to_recover(fault) for fault in self.faults))
        self.ended = time.time()
        self.blame("the end", self.beast.end)
        self.kept: list[Row] = self.beast.learner.rows()
        for fault in self.faults:
            fault["recovered_s"] = self.seconds_to_recover(fault)

    def break_things(self, until: float) -> None:
        ways = self.beast.faults()
        for kind in shuffled_for_ever(ways):
            if time.time() > self.spares:
                self.beast.spared = self.beast.spared or set(self.beast.workers()[:1])
                if kind in self.beast.endings:
                    continue
            self.rest(random.uniform(0, 2 * self.flags.every))
            if time.time() > until and len(self.faults) >= self.flags.faults:
                return
            self.break_by(kind, ways[kind][1])

    def break_by(self, kind: str, way: Callable[[], None]) -> None:
        fault: dict[str, Any] = {"kind": kind, "start": time.time()}
        print(f"{(fault['start'] - self.began) / 60:7.2f} min  {kind}", flush=True)
        with contextlib.suppress(ProcessLookupError):  # there was nothing to break
            self.blame(kind, way)
            self.faults.append(fault | {"end": time.time()})

    def blame(self, what: str, way: Callable[[], None]) -> None:
        try:
            way()
        except AssertionError as error:
            self.wrong.append(f"{what}: {error}")

    def is_whole(self, row: Row) -> bool:
        workers = self.flags.workers
        return row["step"] > 0 and row.get("streams", workers) == workers

    def seconds_to_recover(self, fault: dict[str, Any]) -> float | None:
        after = (row for row in self.seen if row["_time"] >= fault["end"])
        for before, row in pairwise(after):
            if self.is_whole(row) and row["step"] > before["step"]:
                return row["_time"] - fault["end"]
        return None

    def rest(self, seconds: float) -> None:
        end = time.time() + seconds
        self.rest_until(lambda: time.time() > end, seconds + 1.0)

    def rest_until(self, fact: Callable[[], Any], at_most: float = GUARD_S) -> None:
        end = time.time() + at_most
        while not fact() and time.time() < end:
            if why := self.beast.revive():
                print(f"ended: {why}", flush=True)
                self.wrong.append(why)
            if time.time() > self._next_sample:
                self._next_sample = time.time() + self.pace.sample
                self.sample()
            time.sleep(0.1)

    def sample(self) -> None:
        last = self.seen[-1]["_time"] if self.seen else 0.0
        self.seen += [row for row in self.beast.learner.rows() if row["_time"] > last]
        workers = self.beast.workers()
        sample: dict[str, Any] = {"time": time.time(), "workers": len(workers)}
        if self.seen:
            sample["step"] = self.seen[-1]["step"]
        pids = {"learner": self.beast.learner.pid} | ({"oldest": workers[0]} if workers else {})
        if self.beast.parent:
            pids["parent"] = self.beast.parent.pid
        for role, pid in pids.items():
            with contextlib.suppress(psutil.Error):  # it has just ended
                sample |= soak_report.measure(role, psutil.Process(pid))
        self.samples.append(sample)


def shuffled_for_ever(ways: Faults) -> Iterator[str]:
    while True:
        cards = [kind for kind, (count, _) in ways.items() for _ in range(count)]
        random.shuffle(cards)
        yield from cards


def main() -> None:
    parser = argparse.ArgumentParser(
        "tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--hours", type=float, default=1.0, help="Length, counted from the first steps.")
    add("--settle", type=float, default=15.0, help="Minutes until growth is measured.")
    add("--every", type=float, default=10.0, help="Mean pause between two faults, in seconds.")
    add("--faults", type=int, default=0, help="Least number of faults. The soak may last longer.")
    add("--beast", choices=BEASTS, default="polybeast", help="Program to run.")
    add("--workers", type=int, default=4, help="Number of servers or actors.")
    add("--env", default="tests.support.envs:PacedCatch-v0", help="Id of the environment.")
    add("--seed", type=int, default=0, help="Seed of the random faults.")
    add("--out", type=Path, help="Folder of the report. Default: results/soak/BEAST.")
    flags = parser.parse_args()
    logging.getLogger("libtorchbeast").setLevel(logging.ERROR)  # no warnings of half rows
    out = flags.out or Path("results/soak") / flags.beast
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, contextlib.ExitStack() as stack:
        soak = Soak(flags, Path(folder))
        stack.callback(soak.beast.close)
        soak.run()
        is_held = soak_report.write(out, soak, __doc__)
    print((out / "report.md").read_text())
    sys.exit(not is_held)


if __name__ == "__main__":
    main()
