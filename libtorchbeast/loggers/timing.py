# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Where time goes: what workers spend it on, how long answers take, how many CPU cores are busy.

Each worker has a `Clock`, which books its time under the name of an activity. `Shares` turns the
sums of all workers of one kind into the log's columns share_<activity>.
"""

import math
import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import psutil
import torch

from libtorchbeast.shared_memory import SharedTensors

# The activities of each kind of worker. Those of PolyBeast's streams are ActorPool.ACTIVITIES.
ACTOR_ACTIVITIES = ("environment", "inference", "actor_waiting")  # an actor process of MonoBeast
INFERENCE_ACTIVITIES = ("answering", "answer_waiting")  # an inference thread of PolyBeast
LEARNER_ACTIVITIES = ("learning", "learner_waiting")  # a learner thread

Source = Callable[[], dict[str, float]]  # returns columns for the next row of the log


# ======================================================================================= activities
class Clock:
    """Books the time of one worker: `lap(activity)` adds the time since the last lap to it.

    Args:
        activities: their names.
        seconds: float64 [len(activities)], the sums. Shared memory, if another process reads them.
        call_began: float64 [1]: the time at which a call that may hang began, 0 outside of such a
            call. A watchdog in another process may read it.
    """

    def __init__(
        self,
        activities: Sequence[str],
        seconds: np.ndarray | None = None,
        call_began: np.ndarray | None = None,
    ):
        self.seconds = np.zeros(len(activities)) if seconds is None else seconds
        self._index = {name: i for i, name in enumerate(activities)}
        self._call_began = np.zeros(1) if call_began is None else call_began
        self._last_lap = time.monotonic()

    def begin_call(self) -> None:
        """To be called before a call that may hang. The next `lap` marks its end."""
        self._call_began[0] = time.monotonic()

    def lap(self, activity: str) -> float:
        """Books the time since the last lap under `activity`; returns it, in seconds."""
        now = time.monotonic()
        seconds = now - self._last_lap
        self.seconds[self._index[activity]] += seconds
        self._last_lap = now
        self._call_began[0] = 0.0
        return seconds


class Shares:
    """Turns growing sums of seconds into columns share_<activity>: each activity's share of the
    time since the last call.

    Args:
        activities: their names.
        read_seconds: returns the sums so far, one for each activity.
    """

    def __init__(self, activities: Sequence[str], read_seconds: Callable[[], npt.ArrayLike]):
        self._activities, self._read_seconds = activities, read_seconds
        self._before = np.array(read_seconds())

    def take(self) -> dict[str, float]:
        now = np.array(self._read_seconds())
        spent = now - self._before
        self._before = now
        if spent.sum() <= 0:
            return {}
        shares = (spent / spent.sum()).tolist()
        return {f"share_{k}": share for k, share in zip(self._activities, shares, strict=True)}


class ThreadClocks:
    """The clocks of this process's threads of one kind, and the columns that these give.

    Args:
        activities: what such a thread does.
        num_threads: how many there are.
    """

    def __init__(self, activities: Sequence[str], num_threads: int):
        self._clocks = [Clock(activities) for _ in range(num_threads)]
        self._shares = Shares(activities, lambda: sum(clock.seconds for clock in self._clocks))

    def __getitem__(self, thread: int) -> Clock:
        return self._clocks[thread]

    def take(self) -> dict[str, float]:
        """Returns the columns share_<activity>, for the time since the last call."""
        return self._shares.take()


# ======================================================================================== latencies
# Latencies are counted in buckets by their logarithm, eight for each doubling. The first bucket
# begins at one microsecond, the last ends after about a quarter of an hour. PolyBeast's streams
# count in the same buckets (src/actor_times.h).
LATENCY_BUCKETS = 240


class Latencies:
    """Counts how long the single answers of one worker took.

    Args:
        counts: int64 [LATENCY_BUCKETS]. Shared memory, if another process reads them.
    """

    def __init__(self, counts: np.ndarray | None = None):
        self.counts = np.zeros(LATENCY_BUCKETS, np.int64) if counts is None else counts

    def add(self, seconds: float) -> None:
        bucket = int(8 * math.log2(max(seconds, 1e-6) / 1e-6))
        self.counts[min(bucket, LATENCY_BUCKETS - 1)] += 1


class LatencyPercentiles:
    """Turns growing counts of latencies into columns: the median and the 99th percentile since the
    last call, in milliseconds, with an error of at most 5 %.

    Args:
        read_counts: returns the counts so far, one for each of the LATENCY_BUCKETS.
    """

    def __init__(self, read_counts: Callable[[], npt.ArrayLike]):
        self._read_counts = read_counts
        self._before = np.array(read_counts())

    def take(self) -> dict[str, float]:
        now = np.array(self._read_counts())
        cumulative = np.cumsum(now - self._before)
        self._before = now
        if cumulative[-1] <= 0:
            return {}
        p50, p99 = (_percentile_ms(cumulative, share) for share in (0.50, 0.99))
        return {"latency_p50_ms": p50, "latency_p99_ms": p99}


def _percentile_ms(cumulative: np.ndarray, share: float) -> float:
    """The middle of the bucket with the `share` quantile of the latencies, in milliseconds."""
    bucket = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return 1e-3 * 2 ** ((bucket + 0.5) / 8)


# ================================================================================== actor processes
class ActorTimes:
    """What MonoBeast's actor processes write down about their time, in memory that they share with
    the main process. Can be passed as an argument to a process that is started with "spawn".

    Args:
        num_actors: how many actor processes there are.
    """

    def __init__(self, num_actors: int):
        self._memory = SharedTensors(
            {
                "seconds": ((num_actors, len(ACTOR_ACTIVITIES)), torch.float64),
                "call_began": ((num_actors, 1), torch.float64),
                "sign_of_life": ((num_actors, 1), torch.float64),
                "opened": ((num_actors, 1), torch.int64),
                "latencies": ((num_actors, LATENCY_BUCKETS), torch.int64),
            }
        )

    @property
    def calls_began(self) -> np.ndarray:
        """float64 [num_actors, 1]: when each actor's call that may hang began; 0: there is none."""
        return self._memory["call_began"].numpy()

    @property
    def signs_of_life(self) -> np.ndarray:
        """float64 [num_actors, 1]: when each actor last showed that it lives; 0: not yet."""
        return self._memory["sign_of_life"].numpy()

    @property
    def opened(self) -> np.ndarray:
        """int64 [num_actors, 1]: how many environments each actor has opened and reset."""
        return self._memory["opened"].numpy()

    def begin_opening(self, actor: int) -> Callable[[int], None]:
        """An actor calls this before it opens its environments, and calls the function that this
        returns when it has opened and reset 1, 2, ... of them."""

        def opened(count: int) -> None:
            self.calls_began[actor] = self.signs_of_life[actor] = time.monotonic()
            self.opened[actor] = count

        opened(0)
        return opened

    def clock(self, actor: int) -> Clock:
        seconds = self._memory["seconds"][actor].numpy()
        return Clock(ACTOR_ACTIVITIES, seconds, self.calls_began[actor])

    def latencies(self, actor: int) -> Latencies:
        return Latencies(self._memory["latencies"][actor].numpy())

    def sources(self) -> list[Source]:
        """Functions that return the log's columns about the time of all actors."""
        seconds, latencies = (self._memory[name].numpy() for name in ("seconds", "latencies"))
        return [
            Shares(ACTOR_ACTIVITIES, lambda: seconds.sum(0)).take,
            LatencyPercentiles(lambda: latencies.sum(0)).take,
        ]

    def close(self) -> None:
        """Closes the shared memory's descriptor. The memory is freed with its last reader."""
        self._memory.close()


# ======================================================================================== CPU cores
class CpuCores:
    """Columns cpu_cores and idle_cores: how many cores this process and its descendants kept busy
    since the last call, and how many of the cores that this process may use were idle."""

    def __init__(self):
        self._process = psutil.Process()
        self._measure()

    def take(self) -> dict[str, float]:
        before, idle_before, start = self._seconds, self._idle, self._time
        self._measure()
        spent = self._seconds - before
        seconds = max(1e-9, self._time - start)
        return {
            "cpu_cores": max(0.0, spent) / seconds,
            "idle_cores": max(0.0, self._idle - idle_before) / seconds,
        }

    def _measure(self) -> None:
        self._seconds = self._read()
        self._idle = _read_idle_seconds()
        self._time = time.monotonic()

    def _read(self) -> float:
        """CPU seconds of this process and its descendants. Those of descendants that have ended are
        in `children_user` and `children_system` of their parents."""
        seconds = 0.0
        for process in [self._process, *self._process.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.Error:  # it has just ended
                continue
            seconds += times.user + times.system + times.children_user + times.children_system
        return seconds


def _read_idle_seconds() -> float:
    """The idle time of the cores that this process may use, since the machine's start. Time that a
    hypervisor gave to another virtual machine does not count as idle."""
    cores = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        # The system's core numbers may have gaps, so that none of them is an index of this list.
        cores = [core for i, core in enumerate(cores) if i in allowed] or cores
    return sum(core.idle for core in cores)
