# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What the benchmarks train, and the flags that a beast gets for it."""

import argparse
import importlib
from typing import NamedTuple

GAMES = {"Pong": "PongNoFrameskip-v4", "MinAtar": "MinAtar/Breakout-v1"}
NETS = {"shallow": "monobeast.Net", "deep": "polybeast.Net"}
OWN_NETS = {"monobeast": "shallow", "polybeast": "deep"}  # what they take without --net


class Task(NamedTuple):
    game: str  # of GAMES
    net: str  # of NETS
    lstm: bool = False

    def __str__(self) -> str:
        return f"{self.game}, {self.net}" + (", LSTM" if self.lstm else "")


# The deep network is made for Atari's images: MinAtar's are 10 x 10.
TASKS = [
    Task("Pong", "shallow"),
    Task("Pong", "shallow", lstm=True),
    Task("Pong", "deep"),
    Task("Pong", "deep", lstm=True),
    Task("MinAtar", "shallow"),
    Task("MinAtar", "shallow", lstm=True),
]


def arguments(task: Task, beast: str) -> list[str]:
    """The command line of `beast` for this task, all else at its default."""
    words = ["--env", GAMES[task.game]]
    if task.net != OWN_NETS[beast]:
        words += ["--net", NETS[task.net]]
    return words + (["--use_lstm"] if task.lstm else [])


def flags_of(beast: str, words: list[str]) -> argparse.Namespace:
    """The flags that `python -m BEAST WORDS` runs with, recipes and machine considered."""
    program = importlib.import_module(beast)
    return program.parse(words)
