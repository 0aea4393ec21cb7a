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
import threading
import time
from pathlib import Path

import torch

import monobeast
from libtorchbeast import ActorPool, BatchingQueue, DynamicBatcher, models
from libtorchbeast import workers as beast_workers
from libtorchbeast.actors import Actors, slot_shapes
from libtorchbeast.loggers.timing import ActorTimes
from libtorchbeast.rpcenv.client import first_description
from libtorchbeast.seeds import derive_seed
from libtorchbeast.shared_memory import SharedTensors
from libtorchbeast.weights import SharedWeights
from tests.faults._breaking import ServerFleet, listener, local_servers
from tests.faults.harness import Figure, median_and_p99, promise
from tests.support.network import HOSTS, ip, on, two_machines
from tests.support.polybeast import Poly
from tests.support.processes import GUARD_S, Program, wait_for

N, T = 4, 20  # environments of a stream or an actor, transitions in a rollout
SMALL = f"--net monobeast.Net --batch_size {2 * N} --unroll_length {T} --total_steps 1000000000"
SMALL = [*SMALL.split(), "--log_every", "0.5"]
LIVES = f"--env tests.support.envs:Lives-v0 --envs_per_server {N}".split()
CATCH = "--env tests.support.envs:Catch-v0 --envs_per_server 16".split()


# ====================================================================================== a whole run
@promise("losing servers never stops training", "SIGKILL one of four every 5 s for 2 minutes")
def servers_are_lost(kill_s=120.0, every_s=5.0, clean_s=30.0, cycles=1):
    """Kills for `kill_s` seconds and rests for `clean_s`, `cycles` times; both are measured."""
    shares, kills = [], 0
    with folder() as path, Poly(path, *SMALL, *CATCH, "--num_servers", 4) as program:
        addresses = local_servers(program, 4)
        wait_until_streaming(program, 4)
        _, rest = speed(program, lambda: time.sleep(clean_s))
        kill = lambda: kill_one(program, addresses)
        for _ in range(cycles):
            killed, under_fire = speed(program, lambda: kill_often(kill, kill_s, every_s))
            wait_until_streaming(program, 4)
            before, (_, rest) = rest, speed(program, lambda: time.sleep(clean_s))
            shares.append(under_fire / statistics.mean([before, rest]))
            kills += killed
        program.stop()  # fails unless the exit code is 0
        counted, back = program.rows()[-1]["stream_failures"], back_after(program)
    return [
        Figure("servers killed", kills, at_least=kill_s * cycles / every_s - cycles),
        Figure("failures counted in logs.csv", counted, at_least=kills),
        Figure("learner exits", 0, at_most=0),
        *median_and_p99("listening to streaming again", back, 5.0),
        Figure("throughput under fire / in peace", statistics.mean(shares), at_least=0.7),
    ]


@promise("losing servers never stops training for an hour", "SIGKILL one of four every 5 s")
def servers_are_lost_for_an_hour(cycles=26):  # each has 120 s with kills and 20 s without
    return servers_are_lost(clean_s=20.0, cycles=cycles)


def kill_often(kill, seconds, every_s, enough=lambda: True):
    """Calls `kill` every `every_s` seconds, for `seconds` and until `enough()`. Returns the number
    of kills."""
    start, kills = time.monotonic(), 0
    while time.monotonic() - start < seconds or not enough():
        kill()
        kills += 1
        time.sleep(every_s)
    return kills


def kill_one(program, addresses):
    """Kills the server of a random address. Returns the address and the time of day."""

    def one():
        address = random.choice(addresses)
        pid = listener(program.session(), address)
        return pid and (pid, address)

    pid, address = program.wait_for(one)
    os.kill(pid, signal.SIGKILL)
    return address, time.time()


def speed(program, work):
    """Returns the result of `work()`, and the steps per second while it ran."""
    first = program.rows()[-1]
    result = work()
    last = program.rows()[-1]
    return result, (last["step"] - first["step"]) / (last["_time"] - first["_time"])


def wait_until_streaming(program, streams):
    """Waits until a new row of the log shows that number of streams."""
    before = len(program.rows())
    program.wait_for(
        lambda: len(rows := program.rows()) > before and rows[-1].get("streams") == streams
    )


def back_after(program):
    """For each server that was restarted and not killed too early, the seconds from the time when
    it listened until its stream was connected again."""
    listening, seconds = {}, []
    for when, text in logged(program):
        if serving := re.search(r"Serving .* on (\S+)$", text):
            listening[serving[1]] = when
        if again := re.search(r"Streaming again: actor \d+, (\S+)$", text):
            seconds.append(when - listening.get(again[1], when))
    return seconds


def logged(program):
    """Yields (seconds since the epoch, text) for each entry of out.log, with its first line."""
    for line in (program.path / "out.log").read_text(errors="replace").splitlines():
        if match := re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) \w+ \S+: (.*)", line):
            yield datetime.datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").timestamp(), match[2]


# ================================================================================= reading rollouts
class Reader:
    """A thread that reads rollouts and checks the lives of the environments in them.

    Args:
        rollouts: yields dicts of [T+1, B, ...], each with a function to call after its last read.
    """

    def __init__(self, rollouts):
        self.arrivals = []  # (time, process id of the environments, number of rollouts)
        self.mixed = self.rollouts = 0
        self.lives = {}  # life -> the step at which its next rollout begins
        self.may_read = threading.Event()
        self.may_read.set()
        self._threads = beast_workers.Threads(threading.Event())
        self._threads.start(self._read, (rollouts,), "reader")

    def end(self):
        """Waits for the thread, whose rollouts have ended, and raises what it raised."""
        self._threads.join(GUARD_S)
        self._threads.raise_failure()

    def _read(self, rollouts):
        for rollout, release in rollouts:
            good = self._is_of_one_life(rollout)
            self.mixed += int((~good).sum())
            self.rollouts += len(good)
            process = int(number(rollout["process"])[0, 0])
            self.arrivals.append((time.monotonic(), process, len(good)))
            release()
            self.may_read.wait()

    def _is_of_one_life(self, rollout):
        """Returns [B] bool: whether all rows of a column belong to one life, without a gap, and
        begin where this life's last rollout ended. Checks recurrent states and actions too."""
        good, life, count = (
            are_of_one_life(rollout),
            number(rollout["life"]),
            number(rollout["count"]),
        )
        if "core_state/0" in rollout:  # `playing`'s policy counts the rows in its state
            good &= rollout["core_state/0"][0, :, 0] == count[0]
        for column, which in enumerate(life[0].tolist()):
            good[column] &= self.lives.get(which, 0) == count[0, column]
            self.lives[which] = int(count[-1, column])
        return good

    def processes(self):
        """The ids of the processes whose rollouts have arrived."""
        return {process for _, process, _ in self.arrivals}

    def speed(self, processes, begin, end):
        """The rollouts per second of these processes between the two times."""
        arrived = [n for when, who, n in self.arrivals if begin <= when < end and who in processes]
        return sum(arrived) / (end - begin)


def are_of_one_life(rows):
    """Which columns of rows [T+1, B, ...] are of one life, without a gap: [B] bool."""
    life, count, process = (number(rows[name]) for name in ("life", "count", "process"))
    good = (life == life[0]).all(0) & (process == process[0]).all(0)
    good &= (count - count[0] == torch.arange(len(count)).unsqueeze(1)).all(0)
    action = torch.where(rows["done"][1:], 0, rows["action"][:-1])
    return good & (rows["last_action"][1:] == action).all(0)


def number(part):
    """The numbers [T, B] of a part of Lives' observation, [T, B, 8] bytes."""
    return part.clone().view(torch.int64).squeeze(-1)


@contextlib.contextmanager
def playing(fleet, step_timeout=60.0):
    """Yields an actor pool with a stream to each server of the fleet, and its Reader."""
    addresses = fleet.addresses
    description = first_description(addresses, GUARD_S, check=lambda: fleet.process.poll())
    queue = BatchingQueue(N, 4 * N)
    batcher = DynamicBatcher(max(1, len(addresses) // 2) * N, len(addresses) * N, 10.0)
    state = [torch.zeros(1, 1, 1)]
    pool = ActorPool(
        T, queue, batcher, addresses, state, description, step_timeout=step_timeout
    )  # fmt: skip

    def answer():
        for batch in batcher:
            row, (rows_before,) = batch.get_inputs()
            batch.set_outputs(({"action": number(row["count"]) % 3}, (rows_before + 1,)))

    inference = beast_workers.Threads(threading.Event())
    inference.start(answer, (), "inference")
    reader = Reader((rollout, lambda: None) for rollout in queue)
    try:
        wait_for(lambda: all(stream.connected for stream in pool.status()))
        yield pool, reader
    finally:
        pool.close()
        reader.may_read.set()
        inference.join(GUARD_S)
        reader.end()


@contextlib.contextmanager
def acting(num_actors, step_timeout=60.0, orders=""):
    """Yields MonoBeast's actors, a dict from actor to process id, and their rollouts' Reader."""
    flags = monobeast.parse(
        f"--env tests.support.envs:Lives-v0 --envs_per_actor {N} --unroll_length {T} --num_actors "
        f"{num_actors} --step_timeout {step_timeout} --max_actor_restarts 1000000".split()
    )
    flags, spec, shapes = monobeast.describe(flags)
    net = models.make_net(monobeast.Net, spec, flags)
    buffers = SharedTensors(slot_shapes(flags, shapes))
    weights = SharedWeights(net.state_dict(), 0)
    times = ActorTimes(num_actors)
    processes = {}

    def start(actor, life):
        seed = derive_seed(0, actor, life)
        args = (actor, seed, flags, buffers, weights, times)
        process = beast_workers.Process(monobeast.act, args, f"actor-{actor}")
        processes[actor] = process.pid
        return process

    def watch():
        while not wakeup.is_set():
            actors.wait(wakeup, 1.0)

    os.environ["ORDERS"] = str(orders)
    wakeup = beast_workers.PipeEvent()
    try:
        actors = Actors(start, flags, buffers, times)
        watching = beast_workers.Threads(threading.Event())
        watching.start(watch, (), "watching")
        reader = Reader(actors.rollouts())
        try:
            wait_for(lambda: reader.processes() == set(processes.values()))
            yield actors, processes, reader
        finally:
            wakeup.set()
            watching.join(GUARD_S)
            actors.close()
            reader.may_read.set()
            reader.end()
    finally:
        del os.environ["ORDERS"]
        wakeup.close()
        for memory in (buffers, weights, times):
            memory.close()


# ============================================================================================ lives
@promise("no rollout mixes two lives of an environment", "SIGKILL one of four servers every 5 s")
def lives_do_not_mix(rollouts=10_000, seconds=120.0, every_s=5.0):
    with folder() as path, ServerFleet(path, *LIVES) as fleet, playing(fleet) as (pool, reader):
        kill = lambda: fleet.kill(random.randrange(4))
        kills = kill_often(kill, seconds, every_s, lambda: reader.rollouts >= rollouts)
        wait_for(lambda: all(stream.connected for stream in pool.status()))
    return figures_of_lives(reader, kills, rollouts, first=4 * N)


@promise(
    "no rollout of MonoBeast mixes two lives of an environment", "SIGKILL one of four every 5 s"
)
def lives_do_not_mix_in_monobeast(rollouts=10_000, seconds=120.0, every_s=5.0, num_actors=4):
    with acting(num_actors) as (actors, processes, reader):
        killed = set()

        def kill():  # waits until all actors deliver again
            wait_for(lambda: set(processes.values()) <= reader.processes() - killed)
            killed.add(pid := random.choice(list(processes.values())))
            os.kill(pid, signal.SIGKILL)

        kills = kill_often(kill, seconds, every_s, lambda: reader.rollouts >= rollouts)
        wait_for(lambda: actors.restarts == kills)
    return figures_of_lives(reader, kills, rollouts, first=num_actors * N)


def figures_of_lives(reader, kills, rollouts, first):
    return [
        Figure("killed", kills, at_least=1),
        Figure("lives seen", len(reader.lives), at_least=first + 1),
        Figure("rollouts", reader.rollouts, at_least=rollouts),
        Figure("rollouts of two lives, or with a gap", reader.mixed, at_most=0),
    ]


# ========================================================================================== silence
ORDERS = {"raise": "INTERNAL: Traceback", "nan": "INTERNAL: Traceback"}


@promise("a failure is never silent", "SIGKILL, a raise and a NaN reward in one of four")
def failures_are_told(times=10):
    """Measures how soon out.log names actor, address, gRPC code and text, and checks the counts."""
    seconds = []
    with folder() as path, Poly(
        path, *SMALL, *LIVES, "--num_servers", 4, ORDERS=orders_in(path), FORCE_COLOR=1, COLUMNS=150
    ) as program:  # fmt: skip
        addresses = local_servers(program, 4)
        wait_until_streaming(program, 4)
        for order in [*ORDERS, "kill"] * times:
            before, address = len(told(program)), r"unix:\S+"
            if order == "kill":
                address, begin = kill_one(program, addresses)
            else:
                begin = give_order(path, order)
            text = ORDERS.get(order, r"UNAVAILABLE: \w+")
            line = rf"actor \d, {address}: {text}"
            seconds.append(program.wait_for(lambda: time_of(line, told(program)[before:])) - begin)  # noqa: B023
            wait_until_streaming(program, 4)
        program.wait_for(lambda: "stream failures" in program.printed())
        program.stop()
        counted, lines = program.rows()[-1]["stream_failures"], len(told(program))
    return [
        *median_and_p99("fault to log", seconds, 1.0),
        Figure("failures in logs.csv / in out.log", counted / lines, at_least=1.0, at_most=1.0),
    ]


def told(program):
    """(time, text) of each failed stream in out.log."""
    begin = "Stream failed: "
    return [(t, text[len(begin) :]) for t, text in logged(program) if text.startswith(begin)]


def time_of(pattern, entries):
    return next((when for when, text in entries if re.match(pattern, text)), None)


def orders_in(path):
    (Path(path) / "orders").mkdir()
    return Path(path) / "orders"


def give_order(path, order):
    """Gives an order to the first environment that takes it. Returns the time of day at which one
    has taken it."""
    file = Path(path) / "orders" / order
    file.touch()
    wait_for(lambda: not file.exists())
    return time.time()


@promise("a failure of an actor is never silent", "SIGKILL and a raise in one of two of MonoBeast")
def actors_failures_are_told(times=10):
    seconds = []
    flags = [*"--env tests.support.envs:Lives-v0 --num_actors 2 --envs_per_actor".split(), N]
    flags += ["--max_actor_restarts", 1_000_000]
    with folder() as path, Program(
        path, *SMALL, *flags, ORDERS=orders_in(path), FORCE_COLOR=1, COLUMNS=150
    ) as program:  # fmt: skip
        program.wait_for_step(0)
        lines = lambda: [entry for entry in logged(program) if " failed; its " in entry[1]]
        for order in ["raise", "kill"] * times:
            before = len(lines())
            if order == "kill":
                begin = time.time()
                os.kill(min(program.actors()), signal.SIGKILL)
            else:
                begin = give_order(path, order)
            program.wait_for(lambda: len(lines()) > before)  # noqa: B023
            seconds.append(lines()[before][0] - begin)
            program.wait_for_step(program.rows()[-1]["step"])
        program.wait_for(lambda: "actor restarts" in program.printed())
        os.kill(program.pid, signal.SIGTERM)
        assert program.wait_for_end() == 0, program.printed()
        counted = program.rows()[-1]["actor_restarts"]
    return [
        *median_and_p99("fault to log", seconds, 1.0),
        Figure("failures in logs.csv / faults", counted / 2 / times, at_least=1.0, at_most=1.0),
    ]


# ========================================================================================== hanging
@promise("a hung environment is found", "SIGSTOP of one of four servers; sleep in step")
def hung_servers_are_found(step_timeout=5.0, times=5):
    found, back, shares = [], [], []
    flags = [*LIVES, "--step_timeout", step_timeout]
    with folder() as path, ServerFleet(path, *flags, ORDERS=orders_in(path)) as fleet:
        with playing(fleet, step_timeout) as (pool, reader):
            for order in ["stop", "sleep"] * times:
                time.sleep(step_timeout)  # all servers deliver rollouts in this time
                servers = {i: fleet.server(i) for i in range(4)}
                pool.take_events()  # discards the events of servers that came late or came back
                begin = time.monotonic()
                if order == "stop":
                    hung = random.randrange(4)
                    os.kill(servers[hung], signal.SIGSTOP)
                else:
                    give_order(path, order)
                (event, *_) = wait_for(pool.take_events)
                found.append(time.monotonic() - begin)
                hung = next(i for i in servers if f", {fleet.addresses[i]}: " in event)
                others = set(servers.values()) - {servers[hung]}
                shares.append(share_of_speed(reader, others, begin, found[-1]))
                wait_for(lambda: fleet.server(hung) != servers[hung])  # noqa: B023
                wait_for(lambda: all(stream.connected for stream in pool.status()))
                back.append(time.monotonic() - begin)
            pool.take_events()
            unjust = failures_while_the_reader_waits(pool, reader, 2 * step_timeout)
    return figures_of_hanging(step_timeout, found, back, shares, unjust, reader)


@promise("a hung environment of MonoBeast is found", "SIGSTOP of one of three; sleep in step")
def hung_actors_are_found(step_timeout=5.0, times=5):
    found, back, shares = [], [], []
    with folder() as path, acting(3, step_timeout, orders_in(path)) as (actors, processes, reader):
        for order in ["stop", "sleep"] * times:
            time.sleep(step_timeout)
            before, restarts = dict(processes), actors.restarts
            begin = time.monotonic()
            if order == "stop":
                os.kill(random.choice(list(before.values())), signal.SIGSTOP)
            else:
                give_order(path, order)
            wait_for(lambda: actors.restarts > restarts)  # noqa: B023
            found.append(time.monotonic() - begin)
            wait_for(lambda: processes != before)  # noqa: B023
            others = set(before.values()) & set(processes.values())
            shares.append(share_of_speed(reader, others, begin, found[-1]))
            wait_for(lambda: set(processes.values()) <= reader.processes())
            back.append(time.monotonic() - begin)
        restarts = actors.restarts
        reader.may_read.clear()
        time.sleep(2 * step_timeout)
        unjust = actors.restarts - restarts
    return figures_of_hanging(step_timeout, found, back, shares, unjust, reader)


def share_of_speed(reader, others, begin, seconds):
    """The speed of the others while one hangs, divided by their speed just before."""
    return reader.speed(others, begin, begin + seconds) / reader.speed(
        others, begin - seconds, begin
    )


def failures_while_the_reader_waits(pool, reader, seconds):
    reader.may_read.clear()
    time.sleep(seconds)
    events = pool.take_events()
    reader.may_read.set()
    return len(events)


def figures_of_hanging(step_timeout, found, back, shares, unjust, reader):
    return [
        *median_and_p99("found", found, step_timeout + 1),
        Figure("restarted and delivering again, median", statistics.median(back), "s"),
        Figure("the others' speed, median", statistics.median(shares), at_least=0.95),
        Figure("found hanging while the learner waited", unjust, at_most=0),
        Figure("rollouts of two lives, or with a gap", reader.mixed, at_most=0),
    ]


# ======================================================================================== partition
@promise("a partition is survived", "link down for 30 s between the learner and two servers")
def partition_is_survived(down_s=30.0, step_timeout=60.0, times=3, found_s=31.0):
    """Each server accepts only one stream. So it must give up the stream that was cut off."""
    found, back = [], []
    with folder() as path, two_machines() as machines:
        addresses = [f"{HOSTS['envs']}:{port}" for port in (5000, 5001)]
        flags = [*LIVES, "--insecure", "--max_streams", 1, "--step_timeout", step_timeout]
        fleet = ServerFleet(path, *flags, addresses=addresses, before=on(machines["envs"]))
        (Path(path) / "learner").mkdir()
        learner = Program(
            Path(path) / "learner", *SMALL, *flags, "--server_addresses", ",".join(addresses),
            module="polybeast", before=on(machines["learner"]),
        )  # fmt: skip
        with fleet, learner:
            for _ in range(times):
                wait_until_streaming(learner, 2)
                ip("-n", machines["envs"], "link", "set", "cable", "down")
                begin = time.time()
                time.sleep(down_s)
                ip("-n", machines["envs"], "link", "set", "cable", "up")
                up = time.time()
                wait_until_streaming(learner, 2)
                entries = [(t, text) for t, text in logged(learner) if t >= begin]
                for address in addresses:
                    lost = [t for t, e in entries if "Stream failed" in e and address in e]
                    again = [t for t, e in entries if "Streaming again" in e and address in e]
                    found.append(min(lost) - begin)
                    back.append(max(again) - up)
            os.killpg(learner.pid, signal.SIGINT)
            assert learner.wait_for_end() == 0, learner.printed()
    return [
        *median_and_p99("found", found, found_s),
        *median_and_p99("link up to streaming again", back, 6.0),
    ]


@contextlib.contextmanager
def folder():
    """A temporary folder with a short name, because paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="faults-") as path:
        yield Path(path)
