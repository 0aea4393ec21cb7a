# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Where time goes: what workers spend it on, how long answers take, how many CPU cores are busy.

Each worker has a `Clock`, which books its time under the name of an activity. `shares` turns the
sums of all workers of one kind into the log's columns share_<activity>.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import psutil
import torch

from libtorchbeast.linux import own_cores
from libtorchbeast.shared_memory import SharedTensors
from libtorchbeast.workers import HEARTBEAT_S

# The activities of each kind of worker. Those of PolyBeast's streams are ActorPool.ACTIVITIES.
ACTOR_ACTIVITIES = ("environment", "inference", "actor_waiting")  # an actor process of MonoBeast
INFERENCE_ACTIVITIES = ("answering", "answer_waiting")  # an inference thread of PolyBeast
LEARNER_ACTIVITIES = ("learning", "learner_waiting")  # a learner thread

# Latencies are counted in buckets by their logarithm, eight for each doubling. The first bucket
# begins at one microsecond, the last ends after about a quarter of an hour. PolyBeast's streams
# count in the same buckets (src/actor_times.h).
LATENCY_BUCKETS = 240

Source = Callable[[], dict[str, float]]  # returns columns for the next row of the log


# ======================================================================================= activities
class Clock:
    """Books the time of one worker: `lap(activity)` adds the time since the last lap to it. Counts
    how long the worker's single answers took.

    Args:
        seconds: float64 [len(activities)], the sums. Shared memory, if another process reads them.
        call_began: float64 [1]: the time at which a call that may hang began, 0 outside of such a
            call. A watchdog in another process may read it.
        latencies: int64 [LATENCY_BUCKETS], the counts. Shared memory, as above.
    """

    def __init__(
        self,
        activities: Sequence[str],
        seconds: np.ndarray | None = None,
        call_began: np.ndarray | None = None,
        latencies: np.ndarray | None = None,
    ):
        self.seconds = np.zeros(len(activities)) if seconds is None else seconds
        self._index = {name: i for i, name in enumerate(activities)}
        self.call_began = np.zeros(1) if call_began is None else call_began
        self.latencies = np.zeros(LATENCY_BUCKETS, np.int64) if latencies is None else latencies
        self._last_lap = time.monotonic()

    def begin_call(self) -> None:
        """To be called before a call that may hang. The next `lap` marks its end."""
        self.call_began[0] = time.monotonic()

    def lap(self, activity: str) -> float:
        """Books the time since the last lap under `activity`; returns it, in seconds."""
        now = time.monotonic()
        seconds = now - self._last_lap
        self.seconds[self._index[activity]] += seconds
        self._last_lap = now
        self.call_began[0] = 0.0
        return seconds

    def count_latency(self, seconds: float) -> None:
        """Counts an answer that took so long."""
        bucket = int(8 * math.log2(max(seconds, 1e-6) / 1e-6))
        self.latencies[min(bucket, LATENCY_BUCKETS - 1)] += 1


# ========================================================================================== sources
def growth(read: Callable[[], npt.ArrayLike]) -> Callable[[], np.ndarray]:
    """Returns a function that says how much the sums that `read` returns have grown since its last
    call."""
    before = np.array(read())

    def grown() -> np.ndarray:
        nonlocal before
        last, before = before, np.array(read())
        return before - last

    return grown


def shares(activities: Sequence[str], read_seconds: Callable[[], npt.ArrayLike]) -> Source:
    """Columns share_<activity>: each activity's share of the time since the last call.
    `read_seconds` returns the seconds so far, one sum for each activity."""
    grown = growth(read_seconds)

    def take() -> dict[str, float]:
        spent = grown()
        if spent.sum() <= 0:
            return {}
        parts = (spent / spent.sum()).tolist()
        return {f"share_{name}": part for name, part in zip(activities, parts, strict=True)}

    return take


def latency_percentiles(read_counts: Callable[[], npt.ArrayLike]) -> Source:
    """Columns latency_p50_ms and latency_p99_ms: the median and the 99th percentile since the last
    call, in milliseconds, with an error of at most 5 %. `read_counts` returns the counts so far,
    one for each of the LATENCY_BUCKETS."""
    grown = growth(read_counts)

    def take() -> dict[str, float]:
        cumulative = np.cumsum(grown())
        if cumulative[-1] <= 0:
            return {}
        buckets = np.searchsorted(cumulative, np.array([0.50, 0.99]) * cumulative[-1])
        p50, p99 = (1e-3 * 2 ** ((buckets + 0.5) / 8)).tolist()  # the middle of each bucket
        return {"latency_p50_ms": p50, "latency_p99_ms": p99}

    return take


def cpu_cores() -> Source:
    """Columns cpu_cores and idle_cores: how many cores this process and its descendants kept busy
    since the last call, and how many of the cores that this process may use were idle."""
    grown = growth(lambda: [busy_seconds(), _idle_seconds(), time.monotonic()])

    def take() -> dict[str, float]:
        busy, idle, seconds = np.maximum(grown(), [0.0, 0.0, 1e-9]).tolist()
        return {"cpu_cores": busy / seconds, "idle_cores": idle / seconds}

    return take


def busy_seconds() -> float:
    """CPU seconds of this process and its descendants. Those of descendants that have ended are in
    `children_user` and `children_system` of their parents."""
    seconds, process = 0.0, psutil.Process()
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has just ended
            times = each.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _idle_seconds() -> float:
    """The idle time of the cores that this process may use, since the machine's start. Time that a
    hypervisor gave to another virtual machine does not count as idle."""
    cores = psutil.cpu_times(percpu=True)
    allowed = own_cores()
    # The system's core numbers may have gaps, so that none of them is an index of this list.
    cores = [core for i, core in enumerate(cores) if i in allowed] or cores
    return sum(core.idle for core in cores)


# ================================================================================== actor processes
class ActorTimes(SharedTensors):
    """What MonoBeast's actor processes write down about their time, in memory that they share with
    the main process. The first axis is that of the actors."""

    def __init__(self, num_actors: int):
        super().__init__(
            {
                "seconds": ((num_actors, len(ACTOR_ACTIVITIES)), torch.float64),
                # When the call that may hang began, 0 if there is none.
                "call_began": ((num_actors, 1), torch.float64),
                # When it last showed that it lives, 0 before it has.
                "sign_of_life": ((num_actors, 1), torch.float64),
                # How many environments it has opened and reset.
                "opened": ((num_actors, 1), torch.int64),
                "latencies": ((num_actors, LATENCY_BUCKETS), torch.int64),  # counts of answers
            }
        )

    def begin_opening(self, actor: int) -> Callable[[int], None]:
        """An actor calls this before it opens its environments, and calls the function that this
        returns when it has opened and reset 1, 2, ... of them."""

        def on_open(count: int) -> None:
            self["call_began"][actor] = self["sign_of_life"][actor] = time.monotonic()
            self["opened"][actor] = count

        on_open(0)
        return on_open

    def start_pulse(self, actor: int, step_timeout: float) -> None:
        """Starts a thread that writes down the actor's signs of life."""

        def beat() -> None:
            while True:
                self["sign_of_life"][actor] = time.monotonic()
                time.sleep(min(HEARTBEAT_S, step_timeout / 4))

        threading.Thread(target=beat, name="pulse", daemon=True).start()

    def clock(self, actor: int) -> Clock:
        names = ("seconds", "call_began", "latencies")
        return Clock(ACTOR_ACTIVITIES, *(self[name][actor].numpy() for name in names))

    def sources(self) -> list[Source]:
        """Functions that return the log's columns about the time of all actors."""
        seconds, latencies = (self[name].numpy() for name in ("seconds", "latencies"))
        return [
            shares(ACTOR_ACTIVITIES, lambda: seconds.sum(0)),
            latency_percentiles(lambda: latencies.sum(0)),
        ]
