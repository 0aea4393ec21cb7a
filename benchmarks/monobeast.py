# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""How fast MonoBeast trains, and how fast its parts are alone, in one run on one machine.

    python -m benchmarks.monobeast --task pong
    python -m benchmarks.monobeast --task minatar

Prints one JSON line. All speeds are agent steps per second. Compare ratios, not speeds: machines
differ, and a shared one differs from itself.

    raw          one core: the emulator alone (Pong: 4 frames a step, no picture taken), or
                 gymnasium.make("MinAtar/Breakout-v1"), with random actions
    environment  one core: N environments behind the adapter, random actions
    inference    one core: N columns a batch, action sampled
    learner      one core: transitions learned from, one batch after the other
    training     the program itself, all of it; `ratio` = training / raw
"""

import argparse
import random
from collections.abc import Callable

import numpy as np
import torch

import monobeast
from benchmarks.common import measure_training, report, steps_per_second
from libtorchbeast import models
from libtorchbeast.acting import act_on
from libtorchbeast.learner import Learner
from libtorchbeast.rollouts import batches
from libtorchbeast.stats import Clock

TASKS = {"pong": "PongNoFrameskip-v4", "minatar": "MinAtar/Breakout-v1"}


def raw_pong() -> Callable[[], int]:
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

    return step


def raw_minatar() -> Callable[[], int]:
    import gymnasium
    import minatar.gym

    if TASKS["minatar"] not in gymnasium.registry:
        minatar.gym.register_envs()
    env = gymnasium.make(TASKS["minatar"])
    env.reset(seed=0)

    def step() -> int:
        _, _, terminated, truncated, _ = env.step(random.randrange(3))
        if terminated or truncated:
            env.reset()
        return 1

    return step


def measure_parts(flags: argparse.Namespace, seconds: float) -> dict[str, float]:
    """Environment, inference and learner alone, with the shapes that training uses."""
    N = flags.envs_per_actor
    env = monobeast.make_environment(flags)
    env.initial(seed=0)
    actions = np.random.default_rng(0).integers(env.spec.num_actions, size=(1000, N))
    speeds = {}
    turn = iter(range(10**9))
    speeds["environment"] = steps_per_second(
        lambda: len(env.step(actions[next(turn) % 1000])["done"]), seconds
    )

    net = models.make_net(monobeast.Net, env.spec, flags)
    actor = monobeast.Actor(env, net, 0, flags, Clock(torch.zeros(3, dtype=torch.float64)))
    row = {k: torch.from_numpy(v) for k, v in env.initial(seed=0).items()}
    state = net.initial_state(N)
    with actor.autocast():
        speeds["inference"] = steps_per_second(
            lambda: len(act_on(net, row, state)[0]["action"]), seconds
        )

    shapes = monobeast.describe(flags)[1]
    rollout = {k: torch.zeros(shape, dtype=dtype) for k, (shape, dtype) in shapes.items()}
    actor.unroll({k: v.numpy() for k, v in rollout.items()}, version=0)
    endless = iter(lambda: (rollout, lambda: None), None)
    batch = next(batches(endless, flags.batch_size))
    learner = Learner(net, flags, torch.device("cpu"), dump_dir=None)

    def learn() -> int:
        before = learner.step
        learner.update(batch, publish=lambda state_dict, version: None)
        return learner.step - before

    speeds["learner"] = steps_per_second(learn, seconds)
    env.close()
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each part alone")
    parser.add_argument("--training_seconds", type=float, default=40.0)
    own, rest = parser.parse_known_args()
    arguments = ["--env", TASKS[own.task], *rest]
    flags = monobeast.make_parser().parse_args(arguments)
    monobeast.check_flags(flags)
    torch.set_num_threads(1)

    speeds = {
        "raw": steps_per_second({"pong": raw_pong, "minatar": raw_minatar}[own.task](), own.seconds)
    }
    speeds |= measure_parts(flags, own.seconds)
    speeds["training"] = measure_training("monobeast", arguments, own.training_seconds)
    names = ("num_actors envs_per_actor num_buffers batch_size unroll_length num_learner_threads "
             "use_lstm net").split()  # fmt: skip
    precision = models.choose_precision(flags.precision, torch.device("cpu"))
    result = {
        "benchmark": f"monobeast-{own.task}",
        "ratio": round(speeds["training"] / speeds["raw"], 3),
        "steps_per_second": {k: round(v) for k, v in speeds.items()},
        "settings": {name: getattr(flags, name) for name in names}
        | {"precision": str(precision).removeprefix("torch.")},
    }
    report(result)


if __name__ == "__main__":
    main()
