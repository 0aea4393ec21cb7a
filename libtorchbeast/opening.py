# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The watch on environments that a process opens for itself: for the Spec, with --num_actors 0, in
the test modes and in evaluations. actors.py watches those of actors, and rpcenv/watchdog.py those
of servers."""

import logging
import os
import threading
from collections.abc import Callable

from libtorchbeast.workers import HEARTBEAT_S, Reminder

logger = logging.getLogger(__name__)


class OpeningWatch:
    """The context in which a thread opens environments. It gives `opened`, an argument of
    Environment.initial.

    A second thread says after a few seconds which environment is being waited for. If one takes
    longer than `open_timeout` seconds, it ends this process with exit code 1, because no thread can
    be ended from outside. It cannot do so while the environment holds the GIL.

    Args:
        num_envs: how many are opened. The watch ends with the last of them.
        flag: a smaller value of this flag means fewer environments. The log then says so.
        must_end: whether this process must end although nothing took too long.
        leave: is called before this process ends. The thread that opens never leaves the context.
        what: is the name of a single environment in the log.
    """

    def __init__(
        self,
        open_timeout: float,
        num_envs: int = 1,
        flag: str = "",
        must_end: Callable[[], bool] = lambda: False,
        leave: Callable[[], None] = lambda: None,
        what: str = "The first environment",
    ):
        self._open_timeout, self._num_envs = open_timeout, num_envs
        self._what, self._flag = what, flag
        self._must_end, self._leave = must_end, leave
        self._num_opened = 0
        self._waited = 0.0  # seconds for the next one, without those for which the process stopped
        self._is_open = threading.Event()
        self._ending = threading.Lock()  # whoever ends this process holds it for ever

    def __enter__(self) -> Callable[[int], None]:
        threading.Thread(target=self._watch, name="opening", daemon=True).start()
        return self._opened

    def __exit__(self, *exc_info) -> None:
        with self._ending:
            self._is_open.set()

    def _opened(self, count: int) -> None:
        self._num_opened, self._waited = count, 0.0
        if count >= self._num_envs:
            self.__exit__()

    def _watch(self) -> None:
        reminder, interval = Reminder(), min(HEARTBEAT_S, self._open_timeout / 4)
        while not self._is_open.wait(interval):
            self._waited += interval
            number = f"Environment {self._num_opened + 1} of {self._num_envs}"
            which = self._what if self._num_envs == 1 else number
            if seconds := reminder.due(True):
                words = " If the simulator is slow, fewer environments start sooner"
                hint = f"{words} (--{self._flag})." if self._flag else ""
                logger.warning(f"{which} is being waited for, {seconds:.0f} s so far.{hint}")
            with self._ending:
                if self._is_open.is_set():
                    return
                if self._waited > self._open_timeout:
                    limit = f"--open_timeout {self._open_timeout:g}"
                    logger.warning(f"{which} took longer than {limit} to open.")
                    self._end_process(exit_code=1)
                if self._must_end():
                    self._end_process(exit_code=0)

    def _end_process(self, exit_code: int) -> None:
        try:
            self._leave()
        except Exception as error:
            logger.warning(str(error))
            exit_code = 1
        finally:
            os._exit(exit_code)
