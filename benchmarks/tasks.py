# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The tasks that the benchmarks train on, and the flags that a beast gets for each."""

import argparse
import importlib
import itertools
from typing import NamedTuple

GAMES = {"Pong": "PongNoFrameskip-v4", "MinAtar": "MinAtar/Breakout-v1"}
NETS = {"shallow": "monobeast.Net", "deep": "polybeast.Net"}
OWN_NETS = {"monobeast": "shallow", "polybeast": "deep"}  # the networks used without --net
# The flags of each recurrent core. Version 0.5, which --against may run, had only --use_lstm.
CORE_FLAGS = {"": [], "LSTM": ["--use_lstm"], "minGRU": ["--core", "mingru"]}


class Task(NamedTuple):
    game: str  # a key of GAMES
    net: str  # a key of NETS, or R2D2 for its own
    core: str = ""  # a key of CORE_FLAGS

    def __str__(self) -> str:
        return ", ".join(filter(None, self))


# MinAtar has no tasks with the deep network, which is made for Atari's large images.
TASKS = [
    Task("Pong", "shallow"),
    Task("Pong", "shallow", "LSTM"),
    Task("Pong", "shallow", "minGRU"),
    Task("Pong", "deep"),
    Task("Pong", "deep", "LSTM"),
    Task("MinAtar", "shallow"),
    Task("MinAtar", "shallow", "LSTM"),
    Task("MinAtar", "shallow", "minGRU"),
]


# The settings of version 0.5, as flags, so that a change of the recipes does not change what is
# measured (libtorchbeast/recipes.py).
SHARED = """--unroll_length 20 --entropy_cost 0.01 --baseline_cost 0.5 --discounting 0.99
    --vtrace_lambda 0.95 --reward_clipping abs_one""".split()
SETTINGS = {
    "Pong": "--batch_size 4 --learning_rate 4e-4 --eval_every 1_000_000".split(),
    "MinAtar": "--batch_size 32 --learning_rate 3e-3 --eval_every 2_500_000".split(),
}
ENVIRONMENTS = {"Pong": "16", "MinAtar": "64"}  # of an actor or a server
PER_WORKER = {
    "monobeast": "--envs_per_actor",
    "polybeast": "--envs_per_server",
    "r2d2": "--envs_per_server",
}
# Flags that version 0.5 did not have, with the values that act as it did.
NEWER = {
    "--passes": "1",
    "--minibatches": "1",
    "--ppo_clip": "0",
    "--entropy_schedule": "constant",
    "--observation_scaling": "none",
    "--reward_scaling": "none",
}
# R2D2 is newer and has its own settings. Each step is trained on once, so that the steps of its
# learner are those of its environments. On Pong its replay is a tenth of the recipe's.
R2D2_SHARED = """--core lstm --unroll_length 20 --passes 1 --minibatches 1 --replay_ratio 1
    --n_steps 5 --priority_exponent 0.9 --eval_every 2_500_000""".split()
R2D2 = {
    "Pong": """--batch_size 64 --learning_rate 1e-4 --burn_in 40 --train_length 80
        --replay_capacity 100_000 --replay_start 50_000 --target_update_every 2500""".split(),
    "MinAtar": """--batch_size 8 --learning_rate 2e-3 --burn_in 10 --train_length 40
        --replay_capacity 500_000 --replay_start 10_000 --target_update_every 100""".split(),
}


def arguments(task: Task, beast: str) -> list[str]:
    """The command line of `beast` for this task. Flags that it leaves out have defaults that depend
    on the machine only."""
    words = ["--env", GAMES[task.game], PER_WORKER[beast], ENVIRONMENTS[task.game]]
    if beast == "r2d2":
        return words + R2D2[task.game] + R2D2_SHARED
    words += [*SETTINGS[task.game], *SHARED, *itertools.chain(*NEWER.items())]
    if task.net != OWN_NETS[beast]:
        words += ["--net", NETS[task.net]]
    return words + CORE_FLAGS[task.core]


def flags_of(beast: str, words: list[str]) -> argparse.Namespace:
    """The flags with which `python -m BEAST WORDS` runs on this machine."""
    program = importlib.import_module(beast)
    return program.parse(words)
