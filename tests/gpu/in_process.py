# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast in one process: its batcher, queue, inference and learner threads, with threads of
Python in place of the actor pool. It needs no gRPC, so it runs where PolyBeast itself cannot."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import torch

import atari_wrappers
import polybeast
from benchmarks.tasks import GAMES
from libtorchbeast import BatchingQueue, ClosedBatchingQueue, DynamicBatcher, learner, models
from libtorchbeast.environment import Environment
from libtorchbeast.learner import Learner
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.loggers.timing import INFERENCE_ACTIVITIES, LEARNER_ACTIVITIES, Clock
from libtorchbeast.weights import NewestWeights
from tests.gpu import work
from tests.support.actors import run_of


def play(env: Environment, seed: int, T: int, state, batcher, queue) -> None:
    """Runs in a thread: steps the environments with the batcher's answers, and gives rollouts of
    T transitions to the queue.

    Raises:
        ClosedBatchingQueue: one of the two was closed.
    """
    row, rows = env.initial(seed), []
    while True:
        before = state
        there = {name: torch.from_numpy(value)[None] for name, value in row.items()}
        outputs, state = batcher.compute(there, state)
        rows.append({k: v.clone() for k, v in (there | outputs).items()})
        if len(rows) == 1:
            first_state = before
        if len(rows) == T + 1:
            rollout = {name: torch.cat([r[name] for r in rows]) for name in rows[0]}
            queue.enqueue(rollout | {f"core_state/{i}": s for i, s in enumerate(first_state)})
            rows, first_state = rows[-1:], before
        row = env.step(outputs["action"][0].numpy())


def speed(net: str, device: str, players: int, envs: int, T: int, B: int, seconds: float) -> float:
    """Trains on Pong and returns the steps per second that were learned from.

    Args:
        net: the name of the network, shallow or deep.
        players: how many threads step `envs` environments each.
        T, B: transitions and columns of a batch.
    """
    there = torch.device(device)
    flags = work.flags_of(net, device, "--batch_size", str(B), "--unroll_length", str(T))
    model = work.make_net(net, flags)
    state = models.initial_state(model, envs)
    queue, batcher = BatchingQueue(B, 2 * B), DynamicBatcher(envs * max(1, players // 2), 10**6, 10)
    trainer, _ = work.trainer(model, flags, there)
    newest = NewestWeights(trainer.net.state_dict(), 0, there)
    run = SimpleNamespace(flags=flags, stats=Stats(B))
    make = lambda: atari_wrappers.make_atari_vector(GAMES["Pong"], envs)
    works: list[tuple] = []
    for number in range(players):
        env = Environment(make, envs, "Pong")
        works.append((play, env, 1000 * number, T, state, batcher, queue))
    for _ in range(2):
        infer = (run, batcher, newest, work.on(model, there), Clock(INFERENCE_ACTIVITIES))
        works.append((polybeast.infer, *infer, models.act_on))
        learn = (run_of(trainer, run.stats), queue, newest.publish, Clock(LEARNER_ACTIVITIES))
        works.append((learner.learn, *learn))
    with running(works, (queue, batcher)) as threads:
        found = measured(trainer, threads, seconds)
    trainer.state_dict()  # waits for the last update, whose memory others may get now
    return found


@contextlib.contextmanager
def running(works: list[tuple], closed: tuple) -> Iterator[list[Future]]:
    """Runs each of `works`, a function and its arguments, in a thread of its own. At the end all of
    `closed` are closed, which ends the threads. Raises what one of them has raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        threads = [pool.submit(*work) for work in works]
        try:
            yield threads
        finally:
            for each in closed:
                each.close()
    for thread in threads:
        with contextlib.suppress(ClosedBatchingQueue):
            thread.result()


def measured(trainer: Learner, threads: list[Future], seconds: float) -> float:
    """Steps per second from the third update on, unless a thread ends before."""
    has_failed = lambda: any(thread.done() for thread in threads)
    while trainer.updates < 3 and not has_failed():
        time.sleep(0.01)
    step, start = trainer.step, time.perf_counter()
    while not has_failed() and (time.perf_counter() - start < seconds or trainer.step == step):
        time.sleep(0.01)
    return (trainer.step - step) / (time.perf_counter() - start)
