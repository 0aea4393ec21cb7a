# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Keeps processes alive: each that ends is started again, more slowly if it keeps ending."""

import logging
import math
import multiprocessing.connection
import signal
import time
from collections.abc import Callable

from libtorchbeast.workers import HEARTBEAT_S, PipeEvent, Process, SilenceTimer

logger = logging.getLogger(__name__)

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0
LONG_LIFE_S = 5.0  # who was ready for so long starts again with the first delay
END_S = 3.0


class StartFailure(RuntimeError):
    """A process that nobody killed failed before it was ready for the first time: a user's mistake,
    which no restart mends. The text is its traceback, or its exit code."""


class Supervisor:
    """Runs processes number 0 to `count` - 1, which should never end.

    `start(index, life)` starts one; `life` counts its starts from 0. A process sends b"." when it
    is ready, and from then on again and again: one that is silent for `longest_silence` seconds
    hangs, or was stopped, and is killed. To be used by one thread.
    """

    def __init__(self, start: Callable[[int, int], Process], count: int, longest_silence: float):
        self._workers = [_Worker(start, index) for index in range(count)]
        self._longest_silence = longest_silence
        self._silence_timer = SilenceTimer()

    def run(self, wakeup: PipeEvent) -> None:
        """Until `wakeup` is set; then all processes have ended.

        Raises:
            StartFailure: a process failed before it was ready for the first time.
        """
        try:
            while not wakeup.is_set():
                for worker in self._workers:
                    worker.start_if_due()
                self._wait(wakeup)
                for worker in self._workers:
                    self._look_at(worker)
                self._silence_timer.tick()
                for worker in self._workers:
                    self._kill_if_silent(worker)
        finally:
            self._end_all()

    def _wait(self, wakeup: PipeEvent) -> None:
        """For a message, an end, `wakeup`, or the next start that is due; a moment at most."""
        running = [w.process for w in self._workers if w.process]
        handles = [h for process in running for h in (process.from_child, process.sentinel)]
        due = [w.due for w in self._workers if not w.process]
        timeout = max(0.0, min([time.monotonic() + HEARTBEAT_S, *due]) - time.monotonic())
        multiprocessing.connection.wait([*handles, wakeup], timeout)

    def _look_at(self, worker: "_Worker") -> None:
        while worker.process and worker.process.has_message():
            message = worker.process.receive()
            if message is None or message.startswith(Process.FAILURE):
                failure = worker.bury(message)
                if not (worker.was_ready or worker.was_killed):
                    raise StartFailure(failure)
                worker.start_later(failure)
            else:
                worker.hear()

    def _kill_if_silent(self, worker: "_Worker") -> None:
        if worker.ready_since and self._silence_timer.silence(worker.heard) > self._longest_silence:
            worker.kill_for_silence(self._longest_silence)

    def _end_all(self) -> None:
        processes = [w.process for w in self._workers if w.process]
        for process in processes:
            process.ask_to_end()
        for worker in self._workers:
            if worker.process and not worker.was_ready:  # it is busy with its imports, say
                worker.process.kill()
        end = time.monotonic() + END_S
        for process in processes:
            process.end(max(0.0, end - time.monotonic()))


class _Worker:
    def __init__(self, start: Callable[[int, int], Process], index: int):
        self._start, self._index = start, index
        self.process: Process | None = None
        self.was_ready = False  # in any life
        self.was_killed = False  # by another, or because memory ran out
        self.due = 0.0  # when to start, if there is no process
        self._life = 0
        self._delay = FIRST_DELAY_S
        self.ready_since = self.heard = 0.0  # the latter: when it was heard last; 0 for not yet

    def start_if_due(self) -> None:
        if self.process is None and time.monotonic() >= self.due:
            self.process = self._start(self._index, self._life)
            self._life += 1

    def hear(self) -> None:
        self.was_ready = True
        self.heard = time.monotonic()
        self.ready_since = self.ready_since or self.heard

    def kill_for_silence(self, seconds: float) -> None:
        logger.critical(
            "%s gave no sign of life for %g s (--step_timeout) and is killed",
            self.process.name,
            seconds,
        )
        self.process.kill()
        self.heard = math.inf  # its end is on its way

    def bury(self, last_message: bytes | None) -> str:
        """Why the process ended: its traceback or its exit code."""
        exit_code = self.process.end(deadline=1.0)
        self.was_killed = last_message is None and exit_code == -signal.SIGKILL
        self._name, self.process = self.process.name, None
        traceback = (last_message or b"")[1:].decode(errors="replace").strip()
        return traceback or f"exit code {exit_code}"

    def start_later(self, failure: str) -> None:
        if self.ready_since and time.monotonic() - self.ready_since > LONG_LIFE_S:
            self._delay = FIRST_DELAY_S
        self.ready_since = self.heard = 0.0
        logger.error("%s failed and starts again in %g s: %s", self._name, self._delay, failure)
        self.due = time.monotonic() + self._delay
        self._delay = min(2 * self._delay, LONGEST_DELAY_S)
