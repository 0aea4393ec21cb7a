# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Speed, in agent steps per second: of updates and inference alone, and of whole runs on Pong."""

import contextlib
import time
from collections.abc import Iterator

import numpy as np
import torch

import atari_wrappers
from benchmarks import programs
from benchmarks.catalogue import Run
from benchmarks.tasks import GAMES
from libtorchbeast import models, workers
from libtorchbeast.accelerator.devices import to_device
from tests.faults.harness import Figure
from tests.gpu import in_process, timing, work
from tests.gpu.drills import MONO
from tests.gpu.machine import has_transport
from tests.gpu.stages import Answers

SPS = "steps/s"


# ================================================================================== parts alone
def parts(device: str, quick: bool) -> Answers:
    """Updates and inference by batch size."""
    there, seconds, T = torch.device(device), 0.0 if quick else 0.6, 3 if quick else 20
    for title, name, words in work.cases(quick):
        for B in (2,) if quick else (4, 32) if words else (4, 32, 128, 512):
            try:
                yield update(f"{title}: update", name, words, T, B, there, seconds)
            except torch.OutOfMemoryError:
                yield f"{title}: an update of {T}x{B} needs more memory"
        for B in (4,) if quick else (128,) if words else (16, 128, 512, 2048):
            yield inference(f"{title}: inference", name, words, B, there, seconds)


def update(title, name, words, T, B, device, seconds) -> Figure:
    """Updates from one batch that comes from pageable memory, all copies included."""
    flags = work.flags_of(name, str(device), "--learning_rate", "1e-6", *words)
    net = work.make_net(name, flags)
    batch = work.make_batch(net, T, B)
    _, one_update = work.trainer(net, flags, device)
    each = timing.seconds_of(lambda: one_update(batch), device, seconds)
    return Figure(f"{title}, {T}x{B}, {1000 * each:.2f} ms", T * B / each, SPS)


def inference(title, name, words, B, device, seconds) -> Figure:
    flags = work.flags_of(name, str(device), *words)
    net = work.make_net(name, flags)
    row = work.row_of(work.make_batch(net, 1, B))
    net = work.on(net, device)
    with models.autocast(net, flags.precision, device):
        act = lambda: models.act_on(net, *to_device(row, device))
        each = timing.seconds_of(act, device, seconds)
    return Figure(f"{title}, {B} a batch, {1000 * each:.2f} ms", B / each, SPS)


# ==================================================================================== whole runs
def beasts(device: str, quick: bool) -> Answers:
    """Whole runs beside AtariVectorEnv alone on all cores, and beside the learner alone."""
    cores, there = workers.available_cores(), torch.device(device)
    seconds = 0.2 if quick else 8.0
    ceiling = environments_alone(cores, 1 if quick else 16, seconds / 2)
    yield Figure(f"AtariVectorEnv alone, {cores} threads", ceiling, SPS)
    for net in work.nets(quick):
        T, B = (3, 2) if quick else (20, 64)
        alone = update(f"learner alone, {net}", net, [], T, B, there, seconds / 4)
        yield alone
        for beast, words in runs(net, device, cores, quick):
            what = f"{beast}, {net}"
            if beast == "in this process":
                yield f"{what}: PolyBeast's queues and threads, without servers"
                envs = 2 if quick else 32
                speed = in_process.speed(net, device, cores, envs, T, B, seconds)
            elif there.type == "sim":
                yield f"{what}: the simulated device is in one process only"
                continue
            else:
                run = Run(beast, beast.lower(), tuple(words))
                span = programs.measure_run(run.beast, programs.arguments(run), seconds)
                speed, busy = span.steps / span.seconds, span.cpu_seconds / span.seconds
                yield f"{what}: {' '.join(words)}: {busy:.1f} of {cores} cores busy"
            yield Figure(what, speed, SPS)
            yield Figure(f"{what}: of the environments alone", speed / ceiling)
            yield Figure(f"{what}: of the learner alone", speed / alone.measured)


def runs(net: str, device: str, cores: int, quick: bool) -> Iterator[tuple[str, list[str]]]:
    """The whole runs with this network: the beast, and its words."""
    if quick:
        yield "MonoBeast", [*MONO, "--learner_device", device]
        yield "in this process", []
        return
    both = ["--learner_device", device, "--env", GAMES["Pong"], "--eval_every", "0"]
    both += ["--net", f"{work.BEASTS[net].__name__}.Net", "--unroll_length", "20"]
    both += ["--batch_size", "64"]
    there = ["--inference_device", device]  # the shallow network is fast enough on the CPU
    actors = ["--num_actors", str(cores - 1), "--envs_per_actor", "32"]
    yield "MonoBeast", [*both, *actors, *(there if net == "deep" else [])]
    if has_transport():
        servers = ["--num_servers", str(cores), "--envs_per_server", "32"]
        yield "PolyBeast", [*both, *there, *servers, "--num_inference_threads", "2"]
    else:
        yield "in this process", []


def environments_alone(cores: int, for_each: int, seconds: float) -> float:
    """ale-py's vector with the recipe of Atari, one thread for each core, with random actions."""
    N = for_each * cores
    env = atari_wrappers.make_atari_vector(GAMES["Pong"], N, num_threads=cores)
    some = np.random.default_rng(0).integers(env.single_action_space.n, size=(100, N))
    with contextlib.closing(env):
        env.reset(seed=0)
        env.step(some[0])
        count, start = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - start < seconds:
            env.step(some[count % len(some)])
            count += 1
        return count * N / (time.perf_counter() - start)
