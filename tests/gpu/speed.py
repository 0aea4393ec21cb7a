# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Speed, in agent steps per second: of updates and inference alone, and of whole runs on Pong."""

import contextlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

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
from tests.support.actors import make_learner

SPS = "steps/s"


# ================================================================================== parts alone
def parts(device: str, quick: bool) -> Answers:
    """Updates and inference by batch size."""
    there, seconds = torch.device(device), 0.0 if quick else 0.6
    for name in work.nets(quick):
        for lstm in ([], ["--use_lstm"]):
            title = f"{name}{', LSTM' * bool(lstm)}"
            for B in (2,) if quick else (4, 32, 128, 512):
                if not lstm or B <= 32:
                    T = 3 if quick else 20
                    try:
                        yield update(f"{title}: update", name, lstm, T, B, there, seconds)
                    except torch.OutOfMemoryError:
                        yield f"{title}: an update of {T}x{B} needs more memory"
            for B in (4,) if quick else (16, 128, 512, 2048):
                if not lstm or B == 128:
                    yield inference(f"{title}: inference", name, lstm, B, there, seconds)


def update(title, name, lstm, T, B, device, seconds) -> Figure:
    """Updates from one batch that comes from pageable memory, all copies included."""
    flags = work.flags_of(name, str(device), "--learning_rate", "1e-6", *lstm)
    net = work.make_net(name, flags)
    batch = work.make_batch(net, T, B)
    trainer = make_learner(work.on(net, device), flags, device)
    publish = lambda state_dict, version: None
    each = timing.seconds_of(lambda: trainer.update(batch, publish), device, seconds)
    return Figure(f"{title}, {T}x{B}, {1000 * each:.2f} ms", T * B / each, SPS)


def inference(title, name, lstm, B, device, seconds) -> Figure:
    flags = work.flags_of(name, str(device), *lstm)
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
    ceiling = environments_alone(cores, seconds / 2)
    yield Figure(f"AtariVectorEnv alone, {cores} threads", ceiling, SPS)
    for net in work.nets(quick):
        T, B = (3, 2) if quick else (20, 64)
        alone = update(f"learner alone, {net}", net, [], T, B, there, seconds / 4)
        yield alone
        for what, words in runs(net, device, cores, quick):
            if there.type == "sim" and what != "in this process":
                yield f"{what}, {net}: the simulated device is in one process only"
                continue
            with gpu_load() as load:
                if what == "in this process":
                    envs = 2 if quick else 32
                    speed = in_process.speed(net, device, cores, envs, T, B, seconds)
                    said = "PolyBeast's queues and threads, without servers"
                else:
                    said = " ".join(words)
                    beast = what.split()[0].lower()
                    all_words = programs.arguments(Run(what, beast, tuple(words)))
                    span = programs.measure_run(beast, all_words, seconds)
                    speed = span.steps / span.seconds
                    said += f": {span.cpu_seconds / span.seconds:.1f} of {cores} cores busy"
            yield f"{what}, {net}: {said}{load_of(load)}"
            yield Figure(f"{what}, {net}", speed, SPS)
            yield Figure(f"{what}, {net}: of the environments alone", speed / ceiling)
            yield Figure(f"{what}, {net}: of the learner alone", speed / alone.measured)


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


def environments_alone(cores: int, seconds: float) -> float:
    """ale-py's vector with the recipe of Atari, one thread for each core, with random actions."""
    N = 16 * cores
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


@contextlib.contextmanager
def gpu_load() -> Iterator[list[float]]:
    """Fills the list with NVIDIA's load in percent, twice a second."""
    words = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    seen: list[float] = []
    with tempfile.TemporaryFile("w+") as file:
        try:
            process = subprocess.Popen([*words, "-lms", "500"], stdout=file, stderr=file)
        except OSError:  # no GPU of NVIDIA's
            yield seen
            return
        try:
            yield seen
        finally:
            process.kill()
            process.wait()
            file.seek(0)
            seen += [float(line) for line in file if line.strip().isdigit()]


def load_of(seen: list[Any]) -> str:
    """The load in the second half, because a run takes its time to start."""
    later = seen[len(seen) // 2 :]
    return f", GPU {statistics.mean(later):.0f}% busy" if later else ""
