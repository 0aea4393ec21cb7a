# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Ends a server whose environments hang, because no thread can be ended from outside."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from libtorchbeast.workers import HEARTBEAT_S, Reminder, SilenceTimer

logger = logging.getLogger(__name__)

HUNG_EXIT_CODE = 3


class TimeLimit(NamedTuple):
    """The longest time that a call may take."""

    seconds: float
    words: str  # the limit in words, for messages


class CallTimer:
    """Measures the calls of one Stream into its environments, which the Stream's thread makes one
    at a time. The watchdog's thread asks whether one takes too long."""

    def __init__(self, stream_number: int, num_envs: int = 1):
        self.stream_number, self.num_envs = stream_number, num_envs
        self.num_opened = 0  # how many of the environments are open and reset
        self.reminder = Reminder()
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

    def on_open(self, count: int) -> None:
        """The running call has opened `count` environments. Its limit counts from here again."""
        self.num_opened = count
        if running := self._running:
            self._running = time.monotonic(), running[1]

    @property
    def is_opening(self) -> bool:
        return self._running is not None and self.num_opened < self.num_envs

    def exceeded(self, silence_timer: SilenceTimer) -> TimeLimit | None:
        """Returns the limit that the running call has exceeded, or None."""
        if running := self._running:
            began, limit = running
            if silence_timer.silence(began) > limit.seconds:
                return limit
        return None


class Watchdog(threading.Thread):
    """A thread that ends this process, with exit code 3, when a call exceeds its limit. Every
    `interval` seconds, and at least twice a second, it calls `sign_of_life` and looks at the calls
    of `timers()`, from `start` to `stop`. `address` is the server's, for the log."""

    def __init__(
        self,
        address: str,
        timers: Callable[[], Iterable[CallTimer]],
        sign_of_life: Callable[[], None],
        interval: float,
    ):
        super().__init__(name="watchdog", daemon=True)
        self._address, self._timers, self._sign_of_life = address, timers, sign_of_life
        self._interval = min(HEARTBEAT_S, interval)
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        silence_timer = SilenceTimer()
        while True:
            self._sign_of_life()
            if self._stopped.wait(self._interval):
                return
            self._look(silence_timer)

    def _look(self, silence_timer: SilenceTimer) -> None:
        silence_timer.tick()
        for timer in self._timers():
            next_one = f"{timer.num_opened + 1} of {timer.num_envs}"
            if limit := timer.exceeded(silence_timer):
                which = f" environment {next_one}" if timer.is_opening else ""
                logger.critical(
                    f"{self._address}: the environments of stream {timer.stream_number} took "
                    f"longer than {limit.words}{which}; this process ends"
                )
                os._exit(HUNG_EXIT_CODE)
            if seconds := timer.reminder.due(timer.is_opening):
                logger.warning(
                    f"{self._address}: stream {timer.stream_number} has been opening its "
                    f"environments for {seconds:.0f} s and waits for number {next_one}. If the "
                    f"simulator is slow, fewer of them start sooner (--envs_per_server)."
                )
