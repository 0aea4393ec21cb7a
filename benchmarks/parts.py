# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Measures one part, in a process of its own.

    python -m benchmarks.parts raw_pong []

Each function in PARTS sets a part up, with one thread unless its docstring says otherwise, and
returns a function that measures it: seconds -> figures. `main` prints "ready". Then it reads
numbers of seconds, one on each line of standard input, and answers each with a line of JSON. All
speeds are agent steps per second.
"""

import functools
import importlib
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks.tasks import ENVIRONMENTS, GAMES, Task, arguments, flags_of
from libtorchbeast import linux
from libtorchbeast.update import Updater

Figures = dict[str, float]
Measure = Callable[[float], Figures]
Step = Callable[[], int]  # does some work and returns the number of its agent steps

SLICE = 0.5  # seconds of each turn, for steps that take turns


# ======================================================================================== measuring
def by_turns(step: Step, other: Step | None = None) -> Measure:
    """Returns a function that measures `step`, and `other` if there is one, for about `seconds`
    each. They take turns, so that a drift of the machine's speed affects both."""
    steps = [step] if other is None else [step, other]

    def measure(seconds: float) -> Figures:
        for step in steps:
            step()  # warm
        counts, spent = [0] * len(steps), [0.0] * len(steps)
        while min(spent) < seconds:
            for i, step in enumerate(steps):
                count, elapsed = repeat(step, min(seconds, SLICE))
                counts[i] += count
                spent[i] += elapsed
        speeds = [count / elapsed for count, elapsed in zip(counts, spent, strict=True)]
        return dict(zip(("steps_per_second", "ceiling_steps_per_second"), speeds, strict=False))

    return measure


def repeat(step: Step, seconds: float) -> tuple[int, float]:
    """Repeats `step` for `seconds`. Returns the agent steps made and the seconds that they took."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        count += step()
    return count, elapsed


# ========================================================================================= ceilings
def raw_pong() -> Measure:
    """The emulator alone, with random actions and 4 frames per step. No image is read from it."""
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("pong"))
    actions = ale.getMinimalActionSet()

    def step() -> int:
        action = random.choice(actions)
        for _ in range(4):
            ale.act(action)
        if ale.game_over():
            ale.reset_game()
        return 1

    return by_turns(step)


def raw_minatar() -> Measure:
    """The environment MinAtar/Breakout-v1 as `gymnasium.make` returns it, with random actions."""
    return by_turns(minatar_step())


def minatar_step(game: str = GAMES["MinAtar"]) -> Step:
    import gymnasium
    import minatar.gym

    if game not in gymnasium.registry:
        minatar.gym.register_envs()
    env = gymnasium.make(game)
    env.reset(seed=0)
    actions = int(env.action_space.n)

    def step() -> int:
        _, _, terminated, truncated, _ = env.step(random.randrange(actions))
        if terminated or truncated:
            env.reset()
        return 1

    return step


def plain_learner() -> Measure:
    """The deep network's learner on 81 x 8 frames: fp32, channels first, two threads."""
    import torch

    import polybeast
    from libtorchbeast import models
    from libtorchbeast.spec import Actions, Spec

    fp32 = ["--precision", "fp32", "--learner_device", "cpu"]
    flags = flags_of("polybeast", [*arguments(Task("Pong", "deep"), "polybeast"), *fp32])
    torch.set_num_threads(2)
    T, B, A = 80, 8, 6
    spec = Spec("Pong", B, {"frame": ((4, 84, 84), "uint8")}, Actions("discrete", (A,)))
    never = torch.zeros(T + 1, B, dtype=torch.bool)
    batch = {
        "frame": torch.randint(0, 256, (T + 1, B, 4, 84, 84), dtype=torch.uint8),
        "reward": torch.zeros(T + 1, B),
        "done": never,
        "terminated": never,
        "truncated": never,
        "action": torch.randint(0, A, (T + 1, B)),
        "policy_logits": torch.zeros(T + 1, B, A),
        "policy_version": torch.zeros(T + 1, B, dtype=torch.int64),
    }
    # This learner does without `make_net` and `as_floats`, because they put the channels last.
    models.as_floats = lambda frame: frame.float() / 255
    return by_turns(learner_step(polybeast.Net(spec, flags), flags, [batch]))


def bare_stream(observation_bytes: int, num_envs: int, streams_per_server: int) -> Measure:
    from benchmarks import bare_stream, transport

    bare_stream.build()
    servers = transport.SERVERS
    sizes = (observation_bytes, num_envs, servers, streams_per_server)
    return lambda seconds: {"steps_per_second": bare_stream.measure(*sizes, seconds=seconds)}


def transport(env: str, num_envs: int, streams_per_server: int, over: str = "unix") -> Measure:
    from benchmarks import transport

    return lambda seconds: transport.measure(env, num_envs, streams_per_server, over, seconds)


def host(streams: int, num_envs: int, rate: int, over: str) -> Measure:
    from benchmarks.streams import measure_host

    return lambda seconds: measure_host(streams, num_envs, rate, over, seconds)


# ============================================================================ a beast's three parts
def environment(beast: str, game: str) -> Measure:
    """The beast's environments behind the adapter, stepped as one batch with random actions. Every
    row counts as a step, also the few that are resets."""
    flags = flags_of(beast, arguments(Task(game, "shallow"), beast))
    program = importlib.import_module({"polybeast": "polybeast_env"}.get(beast, beast))
    env = program.make_environment(flags)
    env.initial(seed=0)
    some = np.random.default_rng(0).integers(env.spec.num_actions, size=(1000, env.spec.num_envs))
    actions = itertools.cycle(some)
    return by_turns(lambda: len(env.step(next(actions))["done"]))


def inference(task: list, columns: int) -> Measure:
    """Inference on batches of `columns` rows, with sampled actions."""
    import torch

    from libtorchbeast import models

    env, net, flags = player(Task(*task), columns)
    rows = {k: v[None] for k, v in first_row(env).items()}  # [T = 1, columns, ...]
    act, state = acting(net, columns)

    def step() -> int:
        nonlocal state
        # An actor stays in this context for a rollout too. Each weight is cast once in it.
        with models.autocast(net, flags.precision, torch.device("cpu")):
            for _ in range(flags.unroll_length):
                _, state = act(net, rows, state)
        return flags.unroll_length * columns

    return by_turns(step)


def learner(task: list, T: int, B: int) -> Measure:
    """Updates from one rollout of T transitions in B columns, which counts as T x B steps."""
    env, net, flags = player(Task(*task), B)
    return by_turns(learner_step(net, flags, [rollout(env, net, flags, T)]))


# ============================================================================================= R2D2
def r2d2_learner(game: str) -> Measure:
    """Updates from one batch of the replay. Its steps are those trained on, without the burn-in."""
    import r2d2

    net, flags, replay, _, _ = filled_replay(game)
    return by_turns(learner_step(net, flags, [replay.sample()], r2d2, flags.burn_in))


def replay(game: str, work: str) -> Measure:
    """Inserts rollouts, samples batches, or sets the priorities of a batch. Each is compared with a
    memcpy of the same bytes: what the replay keeps of the rollouts, the batch, or its serial
    numbers and priorities."""
    from libtorchbeast.q_learning.replay_memory import required_bytes

    _, flags, replay, rollouts, block = filled_replay(game)
    batch, priorities = replay.sample(), np.ones(flags.batch_size, np.float32)
    sequences, steps = flags.batch_size, flags.batch_size * flags.train_length
    if work == "insertion":
        sequences = flags.envs_per_server  # each environment's rollout completes one
        steps = sequences * flags.unroll_length
        act, size = lambda: replay.insert(next(rollouts)), required_bytes(block, sequences)
    elif work == "sampling":
        act, size = replay.sample, sum(array.nbytes for array in batch.values())
    else:
        act = lambda: replay.learned(batch, {"priorities": priorities})
        size = batch["column/serial"].nbytes + priorities.nbytes

    def step() -> int:
        act()
        return steps

    compared = by_turns(step, memcpy(size, steps))

    def measure(seconds: float) -> Figures:
        figures = compared(seconds)
        per_second = figures["steps_per_second"] / steps
        figures["sequences_per_second"] = per_second * sequences
        figures["gigabytes_per_second"] = per_second * size / 1e9
        return figures

    return measure


def memcpy(size: int, steps: int) -> Step:
    """Copies `size` bytes, which are in no cache, and counts that as `steps` steps."""
    source, target = np.ones((2, max(1, 2**27 // size), size), np.uint8)
    places = itertools.cycle(range(len(source)))

    def step() -> int:
        i = next(places)
        target[i] = source[i]
        return steps

    return step


# ======================================================================= shares of a learner's step
def lstm_factor(T: int, B: int) -> Measure:
    """A learner's step with the shallow network on Pong, compared with the same with an LSTM. The
    ratio of the speeds says how many times longer the step with the LSTM takes."""

    def step(task: Task) -> Step:
        env, net, flags = player(task, B)
        batches = with_resets(rollout(env, net, flags, T), count=16)
        return learner_step(net, flags, list(batches))

    return by_turns(step(Task("Pong", "shallow")), step(Task("Pong", "shallow", "LSTM")))


def vtrace_share(game: str, T: int, B: int) -> Measure:
    """A learner's step, compared with its V-trace alone. The ratio of the speeds is V-trace's share
    of the step's time."""
    import torch

    import vtrace

    env, net, flags = player(Task(game, "shallow"), B)
    batch = rollout(env, net, flags, T)
    log_rhos, values = 0.1 * torch.randn(T, B), torch.randn(T + 1, B)
    discounts = flags.discounting * (~batch["terminated"][1:]).float()
    tensors = (log_rhos, discounts, batch["reward"][1:], values[:-1], values[-1])
    real = ~batch["done"][1:]

    def alone() -> int:
        vtrace.from_importance_weights(*tensors, lambda_=flags.vtrace_lambda, real=real)
        return T * B

    return by_turns(learner_step(net, flags, [batch]), alone)


def layers_share(T: int, B: int) -> Measure:
    """A learner's step with the shallow network on Pong in float32, compared with the convolutions
    and matrix products of that network alone, forwards and backwards. The ratio of the speeds is
    their share of the step's time."""
    import torch
    from torch import nn

    from libtorchbeast.flags import replace

    env, net, flags = player(Task("Pong", "shallow"), B)
    flags = replace(flags, precision="fp32")
    batch = rollout(env, net, flags, T)
    calls = []  # each layer with its input and a gradient of its output

    def record(layer: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        calls.append((layer, inputs[0].detach(), torch.randn_like(output)))

    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    net.forward(batch, ())
    for hook in hooks:
        hook.remove()
    for _, x, _ in calls[1:]:  # no gradient with respect to the frames is needed
        x.requires_grad_()

    def alone() -> int:
        for layer, x, grad in calls:
            wanted = [*layer.parameters(), x] if x.requires_grad else [*layer.parameters()]
            torch.autograd.grad(layer(x), wanted, grad)
        return T * B

    return by_turns(learner_step(net, flags, [batch]), alone)


# ========================================================================================== helpers
def player(task: Task, columns: int) -> tuple[Any, Any, Any]:
    """Returns the task's environments for `columns` columns, which are MonoBeast's or R2D2's, its
    network, and the flags."""
    import monobeast
    import polybeast_env
    import r2d2
    from libtorchbeast import models
    from libtorchbeast.flags import replace

    # The learner sees the same batch thousands of times, so the weights must hardly change.
    slow = {"learning_rate": 1e-6}
    if task.net == "R2D2":
        flags = replace(flags_of("r2d2", arguments(task, "r2d2")), envs_per_server=columns, **slow)
        env, own = polybeast_env.make_environment(flags), r2d2.Net
    else:
        flags = flags_of("monobeast", arguments(task, "monobeast"))
        flags = replace(flags, envs_per_actor=columns, **slow)
        env, own = monobeast.make_environment(flags), monobeast.Net
    return env, models.make_net(own, env.spec, flags), flags


def acting(net: Any, columns: int) -> tuple[Callable, tuple]:
    """How the network's program acts, and its state before the first row."""
    import torch

    import r2d2
    from libtorchbeast.models import act_on

    state = net.initial_state(columns)
    if not isinstance(net, r2d2.Net):
        return act_on, state
    explorer = r2d2.Explorer(columns)
    return explorer.act, (*state, torch.full((1, columns, 1), explorer.NEW))


def first_row(env: Any) -> dict[str, Any]:
    """The row after the reset, as [N, ...] tensors. Hardly any is `done`, as in training."""
    import torch

    env.initial(seed=0)
    row = env.step(np.zeros(env.spec.num_envs, np.int64))
    return {k: torch.from_numpy(v) for k, v in row.items()}


def rollout(env: Any, net: Any, flags: Any, T: int) -> dict[str, Any]:
    """Returns a rollout that `net` plays: rows [T+1, N, ...] and `core_state/i`."""
    import torch

    from libtorchbeast import models

    N = env.spec.num_envs
    row = first_row(env)
    act, state = acting(net, N)
    rows, first_state = [], {f"core_state/{i}": v for i, v in enumerate(state)}
    with models.autocast(net, flags.precision, torch.device("cpu")):
        for _ in range(T + 1):
            outputs, state = act(net, {k: v[None] for k, v in row.items()}, state)
            outputs = {k: v[0] for k, v in outputs.items()}
            version = {"policy_version": torch.zeros(N, dtype=torch.int64)}
            rows.append({k: v.clone() for k, v in (row | outputs | version).items()})
            row = {k: torch.from_numpy(v) for k, v in env.step(outputs["action"].numpy()).items()}
    return {k: torch.stack([row[k] for row in rows]) for k in rows[0]} | first_state


def filled_replay(game: str) -> tuple[Any, Any, Any, Iterator[dict[str, Any]], dict[str, Any]]:
    """Returns R2D2's network and flags, a full replay of rollouts that it has played, the same
    rollouts of all environments again and again, and the arrays of one of the replay's blocks."""
    import r2d2
    from libtorchbeast import models
    from libtorchbeast.q_learning.replay import Replay
    from libtorchbeast.q_learning.replay_memory import block_shapes

    N = int(ENVIRONMENTS[game])
    env, net, flags = player(Task(game, "R2D2"), N)
    T, count = flags.unroll_length, 4
    played = rollout(env, net, flags, count * T)
    states = {k: v for k, v in played.items() if k.startswith("core_state/")}
    parts = [{k: v[i * T : i * T + T + 1] for k, v in played.items()} for i in range(count)]
    rollouts = itertools.cycle([part | states for part in parts])
    models.add_for_loss(net, env.spec, flags)  # the target network
    kept = (env.spec, models.initial_state(net, 1), r2d2.OWN_OUTPUTS)
    replay = Replay(flags, *kept, functools.partial(r2d2.first_priorities, flags))
    for _ in range(flags.replay_capacity // (N * T) + 1):
        replay.insert(next(rollouts))
    return net, flags, replay, rollouts, block_shapes(*kept, T)


def with_resets(batch: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Yields the rollout `count` times, with a reset in a random column after every 80 to 120 rows,
    which is as often as in 8 games of Pong. All of them share the tensor of the frames."""
    import torch

    generator = np.random.default_rng(0)
    rows, B = batch["done"].shape
    done = torch.zeros(count * rows, B, dtype=torch.bool)
    t = 0
    while (t := t + int(generator.integers(80, 121))) < len(done):
        done[t, generator.integers(B)] = True
    for begins in done.view(count, rows, B):
        ends = torch.cat([begins[1:], torch.zeros(1, B, dtype=torch.bool)])
        changed = {"done": begins, "terminated": ends, "truncated": torch.zeros_like(ends)}
        yield batch | changed | {"reward": batch["reward"].masked_fill(begins, 0.0)}


def learner_step(
    net: Any, flags: Any, batches: Iterable[dict[str, Any]], program: Any = None, burn_in: int = 0
) -> Step:
    """Updates with the targets and the loss of `program`, by default MonoBeast's."""
    import torch

    import monobeast
    from libtorchbeast.learner import Learner

    own = program or monobeast
    trainer = Learner(Updater(net, flags, torch.device("cpu"), None, own.targets, own.loss))
    endless = itertools.cycle(batches)

    def step() -> int:
        batch = next(endless)
        numbers = trainer.update(batch, publish=lambda state_dict, version: None)
        assert numbers is not None, "an update was skipped"
        return batch["reward"][1 + burn_in :].numel()

    return step


# ============================================================================================= main
PARTS = {
    f.__name__: f
    for f in (raw_pong, raw_minatar, plain_learner, bare_stream, transport, host, environment,
              inference, learner, r2d2_learner, replay, lstm_factor, vtrace_share,
              layers_share)
}  # fmt: skip


def main() -> None:
    # Standard output carries only the answers. Everything else that is printed goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    linux.keep_freed_memory()  # as the programs do
    measure = PARTS[sys.argv[1]](*json.loads(sys.argv[2]))
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        print(json.dumps(measure(float(line))), file=answers)


if __name__ == "__main__":
    main()
