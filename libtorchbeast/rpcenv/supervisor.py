# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Keeps processes running: one that ends is started again, more and more slowly if that goes on."""

import logging
import multiprocessing.connection
import signal
import time
from collections.abc import Callable

from libtorchbeast.workers import HEARTBEAT_S, PipeEvent, Process, Reminder, SilenceTimer, in_words

logger = logging.getLogger(__name__)

# A process that fails again and again is started after delays that double.
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0
STABLE_S = 5.0  # if it was ready for this long, the delays begin with the first one again
END_S = 3.0  # processes have this time to end by themselves


class StartFailure(RuntimeError):
    """A process failed before it was ready for the first time, and nobody else killed it: a user's
    mistake, which no restart repairs. The text is the process's traceback, its exit code, or why it
    was killed."""


class Supervisor:
    """Runs processes number 0 to `count` - 1, which should never end.

    `start(index, life)` starts one; `life` counts its starts from 0. A process sends b"." when it
    is ready, which takes at most `start_timeout` seconds, and then again and again. One that is
    silent for `longest_silence` seconds hangs or was stopped. Processes that take longer are
    killed. One thread uses this object.
    """

    def __init__(
        self,
        start: Callable[[int, int], Process],
        count: int,
        longest_silence: float,
        start_timeout: float,
    ):
        self._workers = [_Worker(start, index) for index in range(count)]
        self._longest_silence, self._start_timeout = longest_silence, start_timeout
        self._silence_timer, self._reminder = SilenceTimer(), Reminder()

    def run(self, stop: PipeEvent) -> None:
        """Runs the processes until `stop` is set, and ends them. Raises StartFailure if one fails
        before it was ready for the first time."""
        try:
            while not stop.is_set():
                for worker in self._workers:
                    worker.start_if_due()
                self._wait(stop)
                self._silence_timer.tick()
                for worker in self._workers:
                    self._read_messages(worker)
                    self._kill_if_hung(worker)
                self._say_who_is_not_ready()
        finally:
            self._end_all()

    def _wait(self, stop: PipeEvent) -> None:
        """Waits until there may be work: a process sent a message or ended, `stop` was set, a start
        is due, or it is time to look for signs of life."""
        running = [w.process for w in self._workers if w.process]
        handles = [h for process in running for h in (process.from_child, process.sentinel)]
        due = [w.due for w in self._workers if not w.process]
        timeout = max(0.0, min([time.monotonic() + HEARTBEAT_S, *due]) - time.monotonic())
        multiprocessing.connection.wait([*handles, stop.fileno()], timeout)

    def _read_messages(self, worker: "_Worker") -> None:
        while worker.process and worker.process.has_message():
            message = worker.process.receive()
            if message is None or message.startswith(Process.FAILURE):
                worker.schedule_restart(message)
            else:
                worker.record_sign_of_life()

    def _kill_if_hung(self, worker: "_Worker") -> None:
        if not worker.process or worker.why_killed:
            return
        longest = self._longest_silence if worker.ready_since else self._start_timeout
        if self._silence_timer.silence(worker.last_sign) > longest:
            why = f"it gave no sign of life for {longest:g} s (--step_timeout) and was killed"
            if not worker.ready_since:
                limit = f"{longest:g} s, three times --open_timeout"
                why = f"{worker.process.name} took longer to start than {limit}"
            worker.why_killed = why
            worker.process.kill()

    def _say_who_is_not_ready(self) -> None:
        opening = [w.process.name for w in self._workers if w.process and not w.ready_since]
        if seconds := self._reminder.due(bool(opening)):
            what = f"The first environment of {', '.join(opening)}"
            logger.warning("%s is being waited for, %.0f s so far.", what, seconds)

    def _end_all(self) -> None:
        processes = [w.process for w in self._workers if w.process]
        for process in processes:
            process.ask_to_end()
        for worker in self._workers:
            if worker.process and not worker.was_ready:  # it does not read its inbox yet
                worker.process.kill()
        end = time.monotonic() + END_S
        for process in processes:
            process.end(max(0.0, end - time.monotonic()))


class _Worker:
    def __init__(self, start: Callable[[int, int], Process], index: int):
        self._start, self._index = start, index
        self.process: Process | None = None
        self.was_ready = False  # in any life
        self.why_killed = ""  # why this program has killed it
        self.due = 0.0  # when to start the process, if there is none
        self._life = 0
        self._delay = FIRST_DELAY_S
        self.ready_since = 0.0  # when this life gave its first sign, 0 before it
        self.last_sign = 0.0  # when this life gave its last sign, or else was started

    def start_if_due(self) -> None:
        if self.process is None and time.monotonic() >= self.due:
            self.process = self._start(self._index, self._life)
            self._life += 1
            self.ready_since, self.last_sign = 0.0, time.monotonic()

    def record_sign_of_life(self) -> None:
        self.was_ready = True
        self.last_sign = time.monotonic()
        self.ready_since = self.ready_since or self.last_sign

    def schedule_restart(self, last_message: bytes | None) -> None:
        """Removes the process, which has ended, and says when the next one starts. Raises
        StartFailure if none was ready yet, and nobody else killed this one."""
        assert self.process is not None
        exit_code = self.process.end(deadline=1.0)
        traceback = (last_message or b"")[1:].decode(errors="replace").strip()
        failure = traceback or self.why_killed or in_words(exit_code)
        # By somebody's SIGKILL, or because memory ran out.
        was_killed = last_message is None and exit_code == -signal.SIGKILL and not self.why_killed
        name, self.process, self.why_killed = self.process.name, None, ""
        if not (self.was_ready or was_killed):
            raise StartFailure(failure)
        if self.ready_since and time.monotonic() - self.ready_since > STABLE_S:
            self._delay = FIRST_DELAY_S
        logger.error("%s failed and starts again in %g s: %s", name, self._delay, failure)
        self.due = time.monotonic() + self._delay
        self._delay = min(2 * self._delay, LONGEST_DELAY_S)
