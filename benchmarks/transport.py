# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Measures PolyBeast's transport alone: everything except environments, networks and learning.

It consists of two server processes (Python) with mock environments (mock.py), the actor pool, an
inference thread that answers with constant actions, and a thread that drains the learner queue.
They communicate over Unix sockets, loopback TCP, or loopback TCP with mutual TLS.
"""

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

import libtorchbeast
import polybeast_env
from libtorchbeast.loggers.timing import cpu_cores
from libtorchbeast.rpcenv.client import first_description
from libtorchbeast.rpcenv.tls import Tls, load_tls
from libtorchbeast.tools import certificates

SERVERS = 2
T = 20
PATIENCE = 60.0  # seconds until all streams are connected; only guards against a hang


class Sink:
    """Answers the pool's batches with constant actions, and counts the steps of its rollouts."""

    def __init__(self, num_envs: int, columns: int):
        self.batcher = libtorchbeast.DynamicBatcher(1, columns, timeout_ms=10)
        self.queue = libtorchbeast.BatchingQueue(num_envs, columns)
        self.steps = 0
        self.threads = [threading.Thread(target=f, daemon=True) for f in (self.answer, self.drain)]
        for thread in self.threads:
            thread.start()

    def answer(self) -> None:
        for batch in self.batcher:
            batch.get_inputs()
            batch.set_outputs(({"action": torch.zeros(1, len(batch), dtype=torch.int64)}, ()))

    def drain(self) -> None:
        for batch in self.queue:
            self.steps += T * batch["reward"].shape[1]

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


@contextlib.contextmanager
def serving(words: list[str], over: str) -> Iterator[tuple[list[str], Any, Tls | None]]:
    """Starts servers and yields their addresses, their description, and the client's TLS files."""
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"unix:{folder}/server.{i}" for i in range(SERVERS)]
        if over != "unix":
            addresses = [f"127.0.0.1:{port}" for port in free_ports(SERVERS)]
        words = [*words, "--server_addresses", ",".join(addresses)]
        theirs, ours = tls_flags(folder) if over == "tls" else ([], [])
        command = [sys.executable, "-m", "benchmarks.mock", *words, *theirs]
        command += ["--until_stdin_closes", f"{folder}/sockets"]
        # The child ends when its standard input is closed.
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:

            def check() -> None:
                if process.poll() is not None:
                    raise RuntimeError(f"the servers ended with exit code {process.returncode}")

            tls = load_tls(polybeast_env.parse([*words, *ours]))
            descriptions = [first_description([one], PATIENCE, check, tls) for one in addresses]
            yield addresses, descriptions[0], tls


def tls_flags(folder: str) -> list[list[str]]:
    """Makes certificates in `folder`. Returns the flags of the servers and those of the learner."""
    certificates.main([folder, "--hosts", "127.0.0.1", "--days", "1"])
    return [
        ["--tls_cert", f"{folder}/{name}.crt", "--tls_key", f"{folder}/{name}.key"]
        + ["--tls_ca", f"{folder}/ca.crt"]
        for name in ("127.0.0.1", "learner")
    ]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def playing(env: str, num_envs: int, streams: int, over: str) -> Iterator[tuple]:
    """Yields a pool whose streams are all connected, and its sink."""
    words = ["--env", env, "--envs_per_server", str(num_envs), "--num_servers", str(SERVERS)]
    words += ["--max_streams", str(streams)]
    with serving(words, over) as (addresses, description, tls):
        sink = Sink(num_envs, streams * num_envs)
        addresses = [addresses[i % SERVERS] for i in range(streams)]
        pool = libtorchbeast.ActorPool(
            T, sink.queue, sink.batcher, addresses, (), description, tls=tls
        )
        try:
            wait_until_connected(pool)
            yield pool, sink
        finally:
            pool.close()  # closes the sink's queue and batcher too
            sink.join()


def wait_until_connected(pool: libtorchbeast.ActorPool) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(stream.connected for stream in pool.status()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"streams not connected after {PATIENCE:.0f} s: {pool.status()}")
        time.sleep(0.05)
    pool.take_events()  # a stream that had to try again has been connected since


def play(pool: libtorchbeast.ActorPool, sink: Sink, seconds: float) -> tuple[int, float]:
    """Lets the pool play for `seconds`. Returns the steps that were drained meanwhile, and how long
    it was exactly.

    Raises:
        RuntimeError: a stream fails or no rollout arrives.
    """
    steps, start = sink.steps, time.perf_counter()
    time.sleep(seconds)
    steps, elapsed = sink.steps - steps, time.perf_counter() - start
    if events := pool.take_events():
        raise RuntimeError(f"streams failed: {events}")
    if steps == 0:
        raise RuntimeError(f"no rollout arrived within {elapsed:.1f} s")
    return steps, elapsed


def measure(
    env: str, num_envs: int, streams_per_server: int, over: str, seconds: float
) -> dict[str, float]:
    """Measures the agent steps per second of all streams together, and the CPU seconds per thousand
    steps of this process and its servers.

    Args:
        over: "unix", "tcp" or "tls".

    Raises:
        RuntimeError: a stream fails or no rollout arrives.
    """
    with playing(env, num_envs, SERVERS * streams_per_server, over) as (pool, sink):
        time.sleep(min(1.0, seconds))  # warm-up
        cores = cpu_cores()
        steps, elapsed = play(pool, sink, seconds)
        used = cores()["cpu_cores"] * elapsed
    return {"steps_per_second": steps / elapsed, "cpu_seconds_per_1000_steps": 1000 * used / steps}
