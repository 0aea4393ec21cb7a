# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The tasks that the benchmarks train on, and the flags that a beast gets for each."""

import argparse
import importlib
from typing import NamedTuple

GAMES = {"Pong": "PongNoFrameskip-v4", "MinAtar": "MinAtar/Breakout-v1"}
NETS = {"shallow": "monobeast.Net", "deep": "polybeast.Net"}
OWN_NETS = {"monobeast": "shallow", "polybeast": "deep"}  # the networks used without --net


class Task(NamedTuple):
    game: str  # a key of GAMES
    net: str  # a key of NETS
    lstm: bool = False

    def __str__(self) -> str:
        return f"{self.game}, {self.net}" + (", LSTM" if self.lstm else "")


# MinAtar has no tasks with the deep network, which is made for Atari's large images.
TASKS = [
    Task("Pong", "shallow"),
    Task("Pong", "shallow", lstm=True),
    Task("Pong", "deep"),
    Task("Pong", "deep", lstm=True),
    Task("MinAtar", "shallow"),
    Task("MinAtar", "shallow", lstm=True),
]


def arguments(task: Task, beast: str) -> list[str]:
    """The command line of `beast` for this task. All other flags have their defaults."""
    words = ["--env", GAMES[task.game]]
    if task.net != OWN_NETS[beast]:
        words += ["--net", NETS[task.net]]
    return words + (["--use_lstm"] if task.lstm else [])


def flags_of(beast: str, words: list[str]) -> argparse.Namespace:
    """The flags with which `python -m BEAST WORDS` runs on this machine."""
    program = importlib.import_module(beast)
    return program.parse(words)
