# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a run logs (the README's glossary explains each column)."""

import collections
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
import torch

from libtorchbeast.rollouts import Rollout

# Columns of logs.csv after _tick and _time.
FIELDS = (
    "step frame updates hours sps fps games mean_game_return mean_game_length eval_step "
    "mean_eval_return eval_cpu_s total_loss pg_loss baseline_loss entropy mean_value grad_norm "
    "learning_rate lag_mean lag_max clipped_rho_share share_environment share_transport "
    "share_batching share_inference share_actor_waiting share_learning share_learner_waiting "
    "share_answering share_answer_waiting inference_batch latency_p50_ms latency_p99_ms cpu_cores "
    "idle_cores actor_restarts streams stream_failures skipped_updates checkpoint_errors"
).split()

GAMES = 100  # "mean_game_return" is the mean of this many games, the last ones

# Numbers of an update -> columns. Those with a name of their own in the log come first.
_LOG_NAMES = {"total": "total_loss", "pg": "pg_loss", "baseline": "baseline_loss"}
_LOG_NAMES |= {"mean_entropy": "entropy"}
_LOG_NAMES |= {
    k: k for k in "mean_value grad_norm learning_rate lag_mean clipped_rho_share".split()
}


class Stats:
    """Collects numbers from learner threads between two rows of the log. Thread-safe."""

    def __init__(self):
        self.games = 0
        self._lock = threading.Lock()  # protects everything here
        self._returns: collections.deque[float] = collections.deque(maxlen=GAMES)
        self._lengths: collections.deque[int] = collections.deque(maxlen=GAMES)
        self._sums: collections.Counter[str] = collections.Counter()
        self._updates = 0
        self._lag_max = 0.0
        self._lags: collections.Counter[int] = collections.Counter()
        self._inferences = self._inferred_columns = 0

    def add_games(self, batch: Rollout) -> None:
        """Counts the games that ended in rows 1..T (row 0 was row T of the rollout before)."""
        over = batch["episode_over"][1:]
        if not over.any():
            return
        with self._lock:
            self._returns += batch["episode_return"][1:][over].tolist()
            self._lengths += batch["episode_step"][1:][over].tolist()
            self.games += int(over.sum())

    def add_update(self, numbers: dict[str, Any]) -> None:
        """What `Learner.update` returned."""
        with self._lock:
            self._updates += 1
            self._lags.update(numbers["lags"])
            self._lag_max = max(self._lag_max, numbers["lag_max"])
            for name in _LOG_NAMES:
                self._sums[name] += numbers[name]

    def add_inference(self, columns: int) -> None:
        with self._lock:
            self._inferences += 1
            self._inferred_columns += columns

    def take(self) -> dict[str, float]:
        """The means since the last call. What does not exist is left out."""
        with self._lock:
            row: dict[str, float] = {"games": self.games}
            if self._returns:
                row["mean_game_return"] = sum(self._returns) / len(self._returns)
                row["mean_game_length"] = sum(self._lengths) / len(self._lengths)
            if self._updates:
                row |= {_LOG_NAMES[k]: v / self._updates for k, v in self._sums.items()}
                row["lag_max"] = self._lag_max
            if self._inferences:
                row["inference_batch"] = self._inferred_columns / self._inferences
            self._inferences = self._inferred_columns = 0
            self._sums.clear()
            self._updates, self._lag_max = 0, 0.0
            return row

    def histograms(self) -> dict[str, dict[float, int]]:
        """How often each lag was, since the last call, and each of the last games' returns."""
        with self._lock:
            lags = dict(self._lags)
            self._lags.clear()
            return {"lag": lags, "game_return": dict(collections.Counter(self._returns))}

    def state_dict(self) -> dict:
        with self._lock:
            return {
                "games": self.games,
                "returns": list(self._returns),
                "lengths": list(self._lengths),
            }

    def load_state_dict(self, state: dict) -> None:
        with self._lock:
            self.games = state["games"]
            self._returns.extend(state["returns"])
            self._lengths.extend(state["lengths"])


class Clock:
    """Adds up where one worker's time goes: `lap(i)` books the time since the last lap under i.

    Args:
        seconds: float64 [activities], in shared memory where another process reads it.
        began: float64 [1], for a watchdog: when the call that may hang was begun, 0 outside of it.
    """

    def __init__(self, seconds: torch.Tensor, began: torch.Tensor | None = None):
        self._seconds = seconds.numpy()
        self._began = np.zeros(1) if began is None else began.numpy()
        self._last = time.monotonic()

    def begin(self) -> None:
        """Before a call that may hang; the next `lap` ends it."""
        self._began[0] = time.monotonic()

    def lap(self, activity: int) -> float:
        """Returns the seconds that it booked."""
        now = time.monotonic()
        seconds = now - self._last
        self._seconds[activity] += seconds
        self._last = now
        self._began[0] = 0.0
        return seconds


class Shares:
    """Turns growing sums of seconds, one for each activity, into columns `share_<activity>`: shares
    of the time since the last call."""

    def __init__(self, names: list[str], read_seconds: Callable[[], Sequence[float]]):
        self._names, self._read_seconds = names, read_seconds
        self._before = list(read_seconds())

    def take(self) -> dict[str, float]:
        now = list(self._read_seconds())
        spent = [after - before for after, before in zip(now, self._before, strict=True)]
        self._before = now
        total = sum(spent)
        if total <= 0:
            return {}
        return {f"share_{k}": s / total for k, s in zip(self._names, spent, strict=True)}


LATENCY_BUCKETS = 240  # eight for each doubling, from one microsecond to about a quarter of an hour


class Latencies:
    """Counts how long single calls took, by the logarithm of their seconds.

    Args:
        counts: int64 [LATENCY_BUCKETS], in shared memory where another process reads it.
    """

    def __init__(self, counts: torch.Tensor):
        self._counts = counts.numpy()

    def add(self, seconds: float) -> None:
        bucket = int(8 * math.log2(max(seconds, 1e-6) / 1e-6))
        self._counts[min(bucket, LATENCY_BUCKETS - 1)] += 1


class LatencyPercentiles:
    """Turns growing counts of latencies into columns: median and 99th percentile since the last
    call, in milliseconds, exact to 5 %."""

    def __init__(self, read_counts: Callable[[], Sequence[int]]):
        self._read_counts = read_counts
        self._before = np.array(read_counts())

    def take(self) -> dict[str, float]:
        now = np.array(self._read_counts())
        counted = np.cumsum(now - self._before)
        self._before = now
        if counted[-1] <= 0:
            return {}
        buckets = [int(np.searchsorted(counted, share * counted[-1])) for share in (0.50, 0.99)]
        p50, p99 = (1e-3 * 2 ** ((bucket + 0.5) / 8) for bucket in buckets)
        return {"latency_p50_ms": p50, "latency_p99_ms": p99}


class CpuCores:
    """Column `cpu_cores`: how many cores this process and its descendants kept busy since the last
    call (1000 cpu_cores / sps is the CPU seconds per thousand steps); and `idle_cores`, of those
    that this process may use, how many nobody did."""

    def __init__(self):
        self._process = psutil.Process()
        self._seconds, self._idle, self._time = self._read(), _idle_seconds(), time.monotonic()

    def take(self) -> dict[str, float]:
        before, idle, start = self._seconds, self._idle, self._time
        self._seconds, self._idle, self._time = self._read(), _idle_seconds(), time.monotonic()
        spent = sum(now - before.get(pid, 0.0) for pid, now in self._seconds.items())
        seconds = max(1e-9, self._time - start)
        return {
            "cpu_cores": max(0.0, spent) / seconds,
            "idle_cores": max(0.0, self._idle - idle) / seconds,
        }

    def _read(self) -> dict[int, float]:
        seconds = {}
        for process in [self._process, *self._process.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.Error:  # it has just ended
                continue
            seconds[process.pid] = times.user + times.system
        return seconds


def _idle_seconds() -> float:
    """Since the machine's start. Time that a virtual machine was not given is not idle."""
    cores = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        ours = os.sched_getaffinity(0)
        cores = [core for i, core in enumerate(cores) if i in ours] or cores  # ids may have gaps
    return sum(core.idle for core in cores)


class Means:
    """Means of the rows' columns, weighted with the rows' seconds: what a whole run looked like."""

    def __init__(self):
        self._sums: collections.Counter[str] = collections.Counter()
        self._seconds: collections.Counter[str] = collections.Counter()

    def add(self, row: dict[str, float], seconds: float) -> None:
        for name, value in row.items():
            self._sums[name] += value * seconds
            self._seconds[name] += seconds

    def row(self) -> dict[str, float]:
        return {name: value / self._seconds[name] for name, value in self._sums.items()}
