# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast's transport alone: everything but environments, networks and learning.

Two server processes (Python) with a mock environment, the actor pool, an inference thread that
answers with constant actions, a drained learner queue.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

import torch

import libtorchbeast
import polybeast_env
from libtorchbeast.local_servers import LocalServers
from libtorchbeast.stats import CpuCores

SERVERS = 2
T = 20
PATIENCE = 60.0  # seconds until all streams stand; a guard against a hang


class Sink:
    """Answers the pool's batches with constant actions, and drains and counts its rollouts."""

    def __init__(self, num_envs: int, columns: int):
        self.batcher = libtorchbeast.DynamicBatcher(1, columns, timeout_ms=10)
        self.queue = libtorchbeast.BatchingQueue(num_envs, columns)
        self.steps = 0
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self.answer, self.drain)]
        for thread in self._threads:
            thread.start()

    def answer(self) -> None:
        for batch in self.batcher:
            batch.get_inputs()
            batch.set_outputs(({"action": torch.zeros(1, len(batch), dtype=torch.int64)}, ()))

    def drain(self) -> None:
        for batch in self.queue:
            self.steps += T * batch["reward"].shape[1]

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def playing(env: str, num_envs: int, streams_per_server: int) -> Iterator[tuple]:
    """Yields a pool whose streams all play, and its sink."""
    words = ["--env", env, "--envs_per_server", str(num_envs), "--num_servers", str(SERVERS)]
    flags = polybeast_env.make_parser().parse_args(words)
    polybeast_env.check_flags(flags)
    with LocalServers(polybeast_env.make_parser(), flags) as servers:
        description = servers.describe(timeout=PATIENCE)
        sink = Sink(num_envs, SERVERS * streams_per_server * num_envs)
        addresses = servers.addresses * streams_per_server
        pool = libtorchbeast.ActorPool(T, sink.queue, sink.batcher, addresses, (), description)
        try:
            wait_until_connected(pool)
            yield pool, sink
        finally:
            pool.close()  # and with it the sink's queue and batcher
            sink.join()


def wait_until_connected(pool: libtorchbeast.ActorPool) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(stream.connected for stream in pool.status()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all streams stand after {PATIENCE:.0f} s: {pool.status()}")
        time.sleep(0.05)


def measure(env: str, num_envs: int, streams_per_server: int, seconds: float) -> dict[str, float]:
    """Steps per second of all streams together, and processor seconds per thousand steps of this
    process and its servers. RuntimeError if a stream fails."""
    with playing(env, num_envs, streams_per_server) as (pool, sink):
        time.sleep(min(1.0, seconds))  # warm
        cores, steps, start = CpuCores(), sink.steps, time.perf_counter()
        time.sleep(seconds)
        steps, elapsed = sink.steps - steps, time.perf_counter() - start
        used = cores.take()["cpu_cores"] * elapsed
        if events := pool.take_events():
            raise RuntimeError(f"streams failed: {events}")
        if steps == 0:
            raise RuntimeError(f"no rollout came in {elapsed:.1f} s")
    return {"steps_per_second": steps / elapsed, "cpu_seconds_per_1000_steps": 1000 * used / steps}
