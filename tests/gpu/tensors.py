# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments as tensors on the device: what they give, and how fast they are."""

from collections.abc import Callable

import torch

from benchmarks import programs
from benchmarks.catalogue import Run
from examples import tensors as games
from libtorchbeast.tensors import TensorEnv, TensorVector
from tests.faults.harness import Figure
from tests.gpu import timing
from tests.gpu.stages import Answers

# The published speed of Tag on a V100, in steps of an environment (Lan et al. 2021, WarpDrive,
# section 4), is 9.8M with 5 agents and 2.9M with 1,000.
SPEEDS = {"breakout": 65_536, "tag/4v1": 65_536, "tag/800v200/partial": 64}  # environments
RUNS = {"breakout": ["--num_envs", "16384", "--batch_size", "2048", "--eval_every", "0"]}
STEPS = 50  # that are compared
ROUNDING = 1e-6  # how much a float may differ: a GPU may divide in another way


def tensors(device: str, quick: bool) -> Answers:
    """The games give the CPU's numbers; then the speed of random steps, and of training."""
    there = torch.device(device)
    # Each takes the compiler half a minute, and the simulated device has none.
    compiled = (lambda step: step) if quick else compile_step
    for name in ("breakout", "tag/4v1") if quick else (*games.GAMES, "tag/4v1"):
        env = games.make(name)
        step = compiled(env.step) if name in SPEEDS else env.step
        unlike, most = differing(env, step, there)
        yield Figure(f"{name}: numbers unlike the CPU's", unlike, "", 0)
        yield Figure(f"{name}: largest difference", most, "", ROUNDING)
    if there.type == "sim":
        yield "The simulated device has no random numbers, so there are no speeds."
        return
    for name, num_envs in SPEEDS.items():
        if quick:
            name, num_envs = name.replace("800v200", "8v2"), 4
        try:
            each = seconds_of_step(name, num_envs, there, compiled, 0.0 if quick else 2.0)
        except torch.OutOfMemoryError:
            yield f"{name}: {num_envs} environments need more memory"
            continue
        yield Figure(f"{name}: random, {num_envs} environments", num_envs / each, "steps/s")
    for name, words in RUNS.items():
        if quick:
            yield f"{name}: a whole run is too slow for --quick"
            continue
        run = Run("", "warpbeast", ("--env", name, *words, "--learner_device", device))
        span = programs.measure_run(run.beast, programs.arguments(run), 15.0)
        yield Figure(f"{name}: WarpBeast, whole run", span.steps / span.seconds, "steps/s")


def compile_step(step: Callable) -> Callable:
    """As warpbeast.py does on a GPU."""
    return torch.compile(step, fullgraph=True, dynamic=False)


def differing(env: TensorEnv, step: Callable, device: torch.device) -> tuple[int, float]:
    """How many numbers of the observations, rewards and ends of 64 environments differ from the
    CPU's by more than ROUNDING, with equal draws and actions; and the largest difference."""
    N, draws = 64, sum(env.draws.values())
    some = torch.Generator().manual_seed(0)
    states, count, most = (env.zeros(N), env.zeros(N, device)), 0, 0.0
    for _ in range(STEPS):
        random = torch.rand(N, draws, generator=some)
        actions = torch.randint(min(env.actions.sizes), (N, *env.actions.shape), generator=some)
        here, *expected = env.step({**states[0], "draws": random}, actions)
        there, *seen = step({**states[1], "draws": random.to(device)}, actions.to(device))
        states = here, there
        for a, b in zip(parts_of(expected), parts_of(seen), strict=True):
            apart = (a.double() - b.cpu().double()).abs()
            count, most = count + int((apart > ROUNDING).sum()), max(most, float(apart.max()))
    return count, most


def parts_of(result: list) -> list[torch.Tensor]:
    observation, *others = result
    return [*observation.values(), *others]


def seconds_of_step(
    name: str, num_envs: int, device: torch.device, compiled: Callable, seconds: float
) -> float:
    """The mean time of a step of all environments, with random actions."""
    vector = TensorVector(games.make(name), num_envs, 0, device, compiled)
    vector.reset(seed=0)
    size, high = (num_envs, *vector.env.actions.shape), min(vector.env.actions.sizes)
    act = lambda: vector.step(torch.randint(high, size, device=device))
    return timing.seconds_of(act, device, seconds)
