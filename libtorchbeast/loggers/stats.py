# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Numbers for the log that come from batches and updates (`timing` has those that come from
clocks, `columns` explains all of them)."""

import collections
import math
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from libtorchbeast.loggers.columns import RECENT_GAMES
from libtorchbeast.loggers.standings import Standings
from libtorchbeast.rollouts import Rollout

# A game that has ended: its length, its return, and the numbers that its environment told of it.
Ended = tuple[int, float, dict[str, float]]


class FirstGames:
    """The games that have ended since all environments began to play, until games may count.

    The games that end first are the short ones. So games count only after the first game of every
    environment has ended. Rows do not say of which environment they are. But while a first game
    runs, its environment has made as many steps as that game is long. So once the environments have
    made, on average, more steps than the longest game has, no first game still runs. It must be a
    rollout more, because the environments' rollouts come one after the other.

    This needs no environments of equal speed, and an environment may be replaced.
    """

    def __init__(self, num_envs: int):
        self.games: list[Ended] = []
        self._num_envs = num_envs
        self._rows = self._longest = 0

    def add(self, lengths: torch.Tensor, games: list[Ended]) -> bool:
        """Adds `episode_step` [T, B] of rows, and the games that ended there. Returns whether games
        may count from now on."""
        self._rows += lengths.numel()
        if lengths.numel():
            self._longest = max(self._longest, int(lengths.max()))
        self.games += games
        first_ended = self._rows > (self._longest + len(lengths)) * self._num_envs
        # A game that never ends does not hold up the others for ever.
        return first_ended or len(self.games) >= RECENT_GAMES * self._num_envs


class Stats:
    """Collects numbers from learner and inference threads between two rows of the log. Every method
    may be called from any thread. `num_envs` counts the environments of the run."""

    def __init__(self, num_envs: int):
        self.games = 0
        self.num_envs = num_envs
        self._games_told = 0
        self._lock = threading.Lock()  # protects every attribute
        self._recent: collections.deque[Ended] = collections.deque(maxlen=RECENT_GAMES)
        self._is_current = True  # False after a resume, until new games count
        self._untold: collections.deque[Ended] = collections.deque(maxlen=RECENT_GAMES)
        self._first_games: FirstGames | None = FirstGames(num_envs)  # None when games count at once
        self._means = Means()  # of the numbers since the last row
        self._lag_max: float | None = None  # None: there was no update since the last row
        self._largest_reward: float | None = None  # None: there was no update
        self.standings = Standings()

    def restart(self) -> None:
        """To be called when all games that count have ended and all environments start afresh."""
        with self._lock:
            if self._first_games is not None:
                self._count(self._first_games.games)
            self._first_games = FirstGames(self.num_envs)

    def add_games(self, batch: Rollout, columns: torch.Tensor | slice = slice(None)) -> None:
        """Counts the games that ended in rows 1..T, in `columns` (bool [B]; default: all). Row 0
        repeats row T of the rollout before."""
        names = ("episode_over", "episode_step", "episode_return")
        over, ages, returns = (batch[name][1:, columns] for name in names)
        numbers: list[dict[str, float]] = [{} for _ in range(int(over.sum()))]
        for key in [key for key in batch if key.startswith("game/")]:
            for told, value in zip(numbers, batch[key][1:, columns][over].tolist(), strict=True):
                told |= {key.removeprefix("game/"): value} if math.isfinite(value) else {}
        met = batch["past"][1:, columns][over] if "past" in batch else ()
        with self._lock:
            for steps, told in zip(met, numbers, strict=False):
                if "past" in told:
                    self.standings.add(int(steps.max()), told["past"])
            games = list(zip(ages[over].tolist(), returns[over].tolist(), numbers, strict=True))
            self.games += len(games)
            if self._first_games is None:
                self._count(games)
            elif self._first_games.add(ages, games):
                # The newest, one for each environment: among all of them too many are short.
                self._count(self._first_games.games[-self.num_envs :])
                self._first_games = None

    def _count(self, games: list[Ended]) -> None:
        self._is_current |= bool(games)
        self._recent += games
        self._untold += games

    def take_games(self) -> dict[str, Any]:
        """The games since the last call, in JSON's types: how many ended, and those of the newest
        that count."""
        with self._lock:
            news = {"games": self.games - self._games_told, "recent": list(self._untold)}
            self._games_told = self.games
            self._untold.clear()
            return news

    def add_games_of_rank(self, news: dict[str, Any]) -> None:
        """Adds what `take_games` has returned in another rank."""
        with self._lock:
            self.games += news["games"]
            self._count([tuple(game) for game in news["recent"]])

    def counted(self, batches: Iterable[Rollout]) -> Iterator[Rollout]:
        """Yields batches of new rollouts, and counts the games that ended in each."""
        for batch in batches:
            self.add_games(batch)
            yield batch

    def add_update(self, numbers: dict[str, Any]) -> None:
        """Adds what `Learner.update` returned."""
        with self._lock:
            self._lag_max = max(self._lag_max or 0.0, numbers["lag_max"])
            self._largest_reward = max(self._largest_reward or 0.0, numbers["largest_reward"])
            self._means.add(numbers, 1)  # `take` overwrites those of the two above

    def add_inference(self, columns: int) -> None:
        """Counts an inference batch of so many columns (environments)."""
        with self._lock:
            self._means.add({"inference_batch": columns}, 1)

    def take(self) -> dict[str, float]:
        """Returns columns of what came since the last call. Those without a value are left out."""
        with self._lock:
            row: dict[str, float] = {"games": self.games}
            if self._recent and self._is_current:
                lengths, returns, numbers = zip(*self._recent, strict=True)
                row["mean_game_return"] = sum(returns) / len(returns)
                row["mean_game_length"] = sum(lengths) / len(lengths)
                row |= {f"game_{name}": mean for name, mean in Means(numbers).row().items()}
            row |= self._means.row()
            if self.standings.results:
                row["rating"] = self.standings.rating
            if self._lag_max is not None and self._largest_reward is not None:
                row |= {"lag_max": self._lag_max, "largest_reward": self._largest_reward}
            self._means, self._lag_max = Means(), None
            return row

    def state_dict(self) -> dict:
        with self._lock:
            return {
                "games": self.games,
                "lengths": [length for length, _, _ in self._recent],
                "returns": [score for _, score, _ in self._recent],
                "numbers": [numbers for _, _, numbers in self._recent],
                "largest_reward": self._largest_reward,
                "standings": self.standings.state_dict(),
            }

    def load_state_dict(self, state: dict) -> None:
        with self._lock:
            self.games, self._is_current = state["games"], False
            numbers = state.get("numbers", [])  # 0.7 did not save them
            older: list = [{}] * (len(state["lengths"]) - len(numbers))
            self._recent += zip(state["lengths"], state["returns"], older + numbers, strict=True)
            self._largest_reward = state["largest_reward"]
            self.standings.load_state_dict(state.get("standings", {}))  # nor this


class Means:
    """The mean of each column over many rows, in which a row counts by the seconds it covers; the
    first `rows` all count the same. A row may lack columns. Vectors (lists), and what is not
    finite, count as lacking."""

    def __init__(self, rows: Iterable[dict[str, Any]] = ()):
        self._sums: dict[str, float] = collections.defaultdict(float)
        self._seconds: dict[str, float] = collections.defaultdict(float)
        for row in rows:
            self.add(row, 1)

    def add(self, row: dict[str, Any], seconds: float) -> None:
        for name, value in row.items():
            if not isinstance(value, list) and math.isfinite(value):
                self._sums[name] += value * seconds
                self._seconds[name] += seconds

    def row(self) -> dict[str, float]:
        return {name: value / self._seconds[name] for name, value in self._sums.items()}


def summary(updates: list[dict[str, Any]], lag: torch.Tensor) -> dict[str, Any]:
    """What `Learner.update` returns, from the numbers of each update and the transitions' lags."""
    numbers = updates[0]
    if len(updates) > 1:
        largest = max(one["largest_reward"] for one in updates)
        numbers = Means(updates).row() | {"largest_reward": largest}
    return numbers | {"lag_mean": lag.float().mean().item(), "lag_max": float(lag.max())}
