# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A time limit for environments that a process opens itself: for the Spec, with --num_actors 0, in
the test modes and in evaluations. actors.py watches those of actors, and rpcenv/watchdog.py those
of servers."""

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator

from libtorchbeast.environment import Environment
from libtorchbeast.flags import Flags
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, Clock
from libtorchbeast.origin import errors_of
from libtorchbeast.workers import HEARTBEAT_S, Reminder

logger = logging.getLogger(__name__)

Opened = Callable[[int], None]  # is called when 1, 2, ... environments are open

STOP_S = 10.0  # a step that is running when this process must end may take this long


class OpeningWatch:
    """The context in which a thread opens environments. It gives `opened`, an argument of
    Environment.initial.

    A second thread says after a few seconds which environment is being waited for. If one takes
    longer than `open_timeout` seconds, it ends this process with exit code 1, because no thread can
    be ended from outside. It cannot do so while the environment holds the GIL.

    Args:
        num_envs: how many are opened. Without a `clock` the watch ends with the last one.
        flag: a smaller value of this flag means fewer environments. The log then says so.
        must_end: returns whether this process must end anyway, for example because of a signal.
        leave: is called before this process ends, because the context is then never left.
        what: is the name of a single environment in the log.
        clock: if it is given, each later step, and closing, may take `step_timeout` seconds.
    """

    def __init__(
        self,
        open_timeout: float,
        num_envs: int = 1,
        flag: str = "",
        must_end: Callable[[], bool] = lambda: False,
        leave: Callable[[], None] = lambda: None,
        what: str = "The first environment",
        clock: Clock | None = None,
        step_timeout: float = math.inf,
    ):
        self._open_timeout, self._num_envs = open_timeout, num_envs
        self._clock, self._step_timeout = clock, step_timeout
        self._what, self._flag = what, flag
        self._must_end, self._leave = must_end, leave
        self._num_opened, self._call_began = 0, 0.0
        self._waited = 0.0  # seconds for the next one, without those for which the process stopped
        self._is_open = threading.Event()
        self._ending = threading.Lock()  # whoever ends this process holds it for ever

    def __enter__(self) -> Opened:
        threading.Thread(target=self._watch, name="opening", daemon=True).start()
        return self._opened

    def __exit__(self, *exc_info) -> None:
        with self._ending:
            self._is_open.set()

    def _opened(self, count: int) -> None:
        self._num_opened, self._waited = count, 0.0
        if count >= self._num_envs and self._clock is None:
            self.__exit__()

    def _watch(self) -> None:
        reminder = Reminder()
        interval = min(HEARTBEAT_S, self._open_timeout / 4, self._step_timeout / 4)
        while not self._is_open.wait(interval):
            self._waited += interval
            which = self._what
            if self._num_envs > 1:
                which = f"Environment {self._num_opened + 1} of {self._num_envs}"
            limit, took = self._open_timeout, f"{which} took longer than --open_timeout"
            what = "to open"
            if stepping := self._clock is not None and self._num_opened >= self._num_envs:
                limit, what = self._step_timeout, "for one step, or to close"
                took = "An environment took longer than --step_timeout"
                before, self._call_began = self._call_began, self._clock.call_began[0]
                if not before or before != self._call_began:  # another call, or none
                    self._waited = 0.0
            elif seconds := reminder.due(True):
                words = " If the simulator is slow, fewer environments start sooner"
                hint = f"{words} (--{self._flag})." if self._flag else ""
                logger.warning(f"{which} is being waited for, {seconds:.0f} s so far.{hint}")
            with self._ending:
                if self._is_open.is_set():
                    return
                if self._waited > limit:
                    logger.warning(f"{took} {limit:g} {what}.")
                    self._end_process(exit_code=1)
                if self._must_end() and (not stepping or self._waited > STOP_S):
                    self._end_process(exit_code=0)

    def _end_process(self, exit_code: int) -> None:
        try:
            self._leave()
        except Exception as error:
            logger.warning(str(error))
            exit_code = 1
        finally:
            os._exit(exit_code)


@contextlib.contextmanager
def opened_here(
    make: Callable[[], Environment], flags: Flags, must_end: Callable[[], bool], leave: Callable
) -> Iterator[tuple[Environment, Clock, Opened]]:
    """The context of the --envs_per_actor environments that `make` returns, watched until they are
    closed. Yields them, the clock that the watch reads, and `opened`; see OpeningWatch."""
    clock, N = Clock(ACTOR_ACTIVITIES), flags.envs_per_actor
    timeout, both = flags.open_timeout, dict(clock=clock, step_timeout=flags.step_timeout)
    watched = OpeningWatch(timeout, N, "envs_per_actor", must_end, leave, **both)
    with errors_of(flags.env), watched as opened, contextlib.ExitStack() as stack:
        env = make()
        stack.callback(env.close)
        stack.callback(clock.begin_call)  # before it, so that one that hangs is noticed
        yield env, clock, opened
