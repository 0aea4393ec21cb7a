# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Ends a server whose environments hang, because no thread can be ended from outside."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from libtorchbeast.workers import HEARTBEAT_S, SilenceTimer

logger = logging.getLogger(__name__)

HUNG_EXIT_CODE = 3


class TimeLimit(NamedTuple):
    """The longest time that a call may take."""

    seconds: float
    words: str  # the limit in words, for messages


class CallTimer:
    """Measures the calls of one Stream into its environments. One call runs at a time.

    Its Stream's thread makes the calls; the watchdog's thread asks whether one takes too long.
    """

    def __init__(self, stream_number: int):
        self.stream_number = stream_number
        self.seconds = 0.0  # that the last call took
        self._running: tuple[float, TimeLimit] | None = None  # when it began, and its limit

    def run(self, limit: TimeLimit, call: Callable[..., Any], *args: Any) -> Any:
        """Returns what `call(*args)` returns."""
        began = time.monotonic()
        self._running = began, limit
        try:
            return call(*args)
        finally:
            self._running = None
            self.seconds = time.monotonic() - began

    def exceeded(self, silence_timer: SilenceTimer) -> TimeLimit | None:
        """Returns the limit that the running call has exceeded, or None."""
        if running := self._running:
            began, limit = running
            if silence_timer.silence(began) > limit.seconds:
                return limit
        return None


class Watchdog:
    """A thread that ends this process, with exit code 3, when a call exceeds its limit.

    Args:
        address: The server's, for the log.
        timers: Returns the timers to look at.
        sign_of_life: Is called at least twice a second, from `start` to `stop`.
        interval: Seconds between two looks, if that is shorter.
    """

    def __init__(
        self,
        address: str,
        timers: Callable[[], Iterable[CallTimer]],
        sign_of_life: Callable[[], None],
        interval: float,
    ):
        self._address, self._timers, self._sign_of_life = address, timers, sign_of_life
        self._interval = min(HEARTBEAT_S, interval)
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        silence_timer = SilenceTimer()
        while True:
            self._sign_of_life()
            if self._stopped.wait(self._interval):
                return
            silence_timer.tick()
            for timer in self._timers():
                if limit := timer.exceeded(silence_timer):
                    self._end_process(timer.stream_number, limit)

    def _end_process(self, stream_number: int, limit: TimeLimit) -> None:
        logger.critical(
            "%s: the environments of stream %d took longer than %s; this process ends",
            self._address,
            stream_number,
            limit.words,
        )
        os._exit(HUNG_EXIT_CODE)
