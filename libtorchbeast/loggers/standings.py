# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The results of games against the run's own past, and a rating: the run's opponents.csv."""

import contextlib
import copy
import logging
from pathlib import Path
from typing import Any

from libtorchbeast.loggers.files import write_whole

logger = logging.getLogger(__name__)

FIRST_GAMES = 100  # after which what looks wrong is told
K = 4  # Elo's factor: the most points that one game is worth
HEADER = ("step", "wins", "draws", "losses", "rating")

Results = dict[int, list[float]]  # {step of a kept file: [wins, draws, losses, its rating]}


class Standings:
    """The results against each kept file, and one rating from them (Elo 1978): after each game it
    moves by K times the difference between the score and the one that the ratings predict. A file
    has the rating that the network in training had when they first met, at the beginning 0. Its row
    stays when the file is deleted."""

    def __init__(self) -> None:
        self.rating = 0.0
        self.results: Results = {}

    def add(self, step: int, won: float) -> None:
        """Adds a game against the file of `step`; `won` is positive, 0 for a draw, or negative."""
        result = self.results.setdefault(step, [0, 0, 0, self.rating])
        sign = (won > 0) - (won < 0)
        result[1 - sign] += 1
        predicted = 1 / (1 + 10 ** ((result[3] - self.rating) / 400))
        self.rating += K * ((1 + sign) / 2 - predicted)
        wins, draws, losses = map(sum, list(zip(*self.results.values(), strict=True))[:3])
        if draws == FIRST_GAMES and not wins and not losses:
            said = "where all act at once, are the `sides` of libtorchbeast/past.py right?"
            logger.warning("The first %d games against the past were all drawn: %s", draws, said)

    def write(self, folder: str) -> None:
        """Writes the run's opponents.csv, if there was a game. On a full disk the file stays as it
        was; the log's own row fails there too, and says why."""
        if self.results:
            lines = [HEADER, *((step, *self.results[step]) for step in sorted(self.results))]
            text = "".join(",".join(map(str, line)) + "\n" for line in lines)
            with contextlib.suppress(OSError):
                write_whole(Path(folder, "opponents.csv"), text)

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(vars(self))  # games go on while the checkpoint is saved

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def read(folder: str) -> Results:
    """The results in a run's folder, without lines that somebody else has written."""
    path, results = Path(folder, "opponents.csv"), {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, OverflowError):
            step, wins, draws, losses, rating = map(float, line.split(","))
            results[int(step)] = [wins, draws, losses, rating]
    return results
