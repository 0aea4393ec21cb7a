# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Life and death of threads and processes: each reports how it ends, none outlives its parent."""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection


def available_cores() -> int:
    """Cores that this process may run on: fewer than the machine's under taskset or Slurm."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Spawned, never forked: a fork after torch has started its threads can deadlock.
context = multiprocessing.get_context("spawn")


_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def stop_signals() -> set[signal.Signals]:
    """Those that ask this program to stop. A closed terminal's SIGHUP does not under `nohup`, which
    has made this process ignore it."""
    ignores = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return _STOP_SIGNALS - {signal.SIGHUP} if ignores else _STOP_SIGNALS


def before_imports(name: str) -> None:
    """To be called by a program before its imports, with its `__name__`: Ctrl-C ends them without a
    traceback, and a spawned child, which imports the same, dies with its parent meanwhile."""
    if name == "__main__":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    else:
        end_with_parent(signal.SIGKILL)


def prepare_child() -> None:
    """To be called first in every child process.

    Ctrl-C, a closed terminal's SIGHUP and many a scheduler's SIGTERM go to the whole group of
    processes: the main one alone decides what they mean. And a child dies with its parent, even
    with one that is killed.
    """
    for number in _STOP_SIGNALS:
        # A function that does nothing, because programs that the child starts inherit SIG_IGN.
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    keep_descriptors()
    parent = multiprocessing.parent_process()
    end_with_parent(signal.SIGKILL)
    threading.Thread(target=_exit_with, args=(parent,), name="parent", daemon=True).start()


def keep_descriptors() -> None:
    """No program that this process starts inherits its pipes: while one lived, they would not show
    that this process has ended. Those passed to a spawned child are inheritable."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            if int(name) > 2:
                os.set_inheritable(int(name), False)


def end_with_parent(number: int) -> None:
    """Linux sends this process the signal when its parent ends, even when that is killed."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def _exit_with(parent) -> None:  # also covers a parent that died before prctl, and macOS
    parent.join()
    os._exit(1)


class Process:
    """A spawned child with a one-way message pipe to its parent, and one from it.

    `target(inbox, outbox, *args)` runs in the child; `inbox` yields messages until the parent asks
    it to end, `outbox` is a Connection. If it raises, the traceback is its last message. A pipe of
    one reader and one writer needs no lock, so a killed child blocks nobody.
    """

    FAILURE = b"!"  # first byte of the last message of a child that raised, and of no other

    def __init__(self, target: Callable, args: tuple, name: str):
        self._exit_code: int | None = None
        inbox, self._to_child = context.Pipe(duplex=False)
        self.from_child, outbox = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_child, args=(target, inbox, outbox, args), name=name, daemon=True
        )
        # The child inherits the mask, so that no signal hits it before `prepare_child`. So does
        # Python's resource tracker, which a SIGHUP would end; starting it unblocks the other two.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        inbox.close()
        outbox.close()

    @property
    def name(self) -> str:
        return self._process.name

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: bytes) -> None:
        """A message to a dead child is dropped: its death is noticed elsewhere."""
        try:
            self._to_child.send_bytes(message)
        except OSError:
            pass

    def receive(self) -> bytes | None:
        """The child's next message, or None if it is dead and all its messages were read."""
        try:
            return self.from_child.recv_bytes()
        except (EOFError, OSError):  # OSError: killed in the middle of a message
            return None

    @property
    def sentinel(self) -> int:
        """Ready when the process has ended."""
        return self._process.sentinel

    def has_message(self) -> bool:
        """Whether `receive` would return at once: with a message, or with None."""
        return self.from_child.poll()

    def ask_to_end(self) -> None:
        """The child sees the end of its inbox at its next look, and ends by itself."""
        self._to_child.close()

    def end(self, deadline: float) -> int | None:
        """Ends the process, by force after `deadline` seconds, and returns its exit code. It may be
        called again."""
        if self._exit_code is not None:
            return self._exit_code
        self.ask_to_end()
        self._process.join(deadline)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.from_child.close()
        self._exit_code = self._process.exitcode
        self._process.close()
        return self._exit_code

    def kill(self) -> None:
        self._process.kill()


def messages(inbox: Connection) -> Iterator[bytes]:
    while True:
        try:
            message = inbox.recv_bytes()
        except (EOFError, ConnectionError):
            return
        yield message


def _child(target: Callable, inbox: Connection, outbox: Connection, args: tuple) -> None:
    prepare_child()
    try:
        target(messages(inbox), outbox, *args)
    except BaseException:
        try:
            outbox.send_bytes(Process.FAILURE + traceback.format_exc().encode()[-16000:])
        except OSError:
            pass
        sys.exit(1)


class PipeEvent:
    """A flag that is also a descriptor to wait on, together with pipes and processes; it may be set
    from any thread and from a signal handler, and stays set."""

    def __init__(self):
        self._reader, self._writer = os.pipe()
        self._set = False

    def set(self) -> None:
        if not self._set:
            self._set = True
            os.write(self._writer, b"w")

    def is_set(self) -> bool:
        return self._set

    def fileno(self) -> int:
        return self._reader

    def close(self) -> None:
        self._set = True  # nobody writes any more
        os.close(self._reader)
        os.close(self._writer)


HEARTBEAT_S = 0.5  # at least as often signs of life are given, and looked for


def longest_silence(step_timeout: float) -> float:
    """Seconds: a process that steps for no longer is heard of, however busy the machine is."""
    return max(step_timeout, 2 * HEARTBEAT_S)


class SilenceTimer:
    """Of a process that watches whether others give signs of life, and looks often.

    A time in which it was stopped itself (Ctrl-Z, a scheduler's pause) is nobody's silence: those
    that it watches were probably stopped with it.
    """

    STOPPED_S = 5.0  # who looks again after so long was

    def __init__(self):
        self._looked = self._began = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._looked > self.STOPPED_S:
            self._began = now
        self._looked = now

    def silence(self, heard: float) -> float:
        """Seconds since `heard`, a time of time.monotonic(), as of the last look."""
        return self._looked - max(heard, self._began)


class Thread(threading.Thread):
    """A daemon thread that keeps the exception it ended with and calls `on_end(self)`."""

    def __init__(self, target: Callable, args: tuple, name: str, on_end: Callable):
        super().__init__(name=name, daemon=True)
        self._work, self._work_args, self._on_end = target, args, on_end
        self.exception: BaseException | None = None

    def run(self) -> None:
        try:
            self._work(*self._work_args)
        except BaseException as error:
            self.exception = error
            logging.getLogger(__name__).error("Thread %s failed: %r", self.name, error)
        finally:
            self._on_end(self)


class Threads:
    """Threads of one program, whose first failure ends it.

    Args:
        wakeup: is set when one of them ends, for whatever reason.
    """

    def __init__(self, wakeup: PipeEvent):
        self.failure: BaseException | None = None  # the first
        self._wakeup = wakeup
        self._threads: list[Thread] = []

    def start(self, target: Callable, args: tuple, name: str) -> None:
        thread = Thread(target, args, name, on_end=self._ended)
        self._threads.append(thread)
        thread.start()

    def join(self, timeout: float) -> None:
        """Waits for each of them, at most `timeout` seconds."""
        for thread in self._threads:
            thread.join(timeout)

    def raise_failure(self) -> None:
        """Raises the first failure of a thread, if there was one, with its traceback."""
        if self.failure is not None:
            raise self.failure

    def _ended(self, thread: Thread) -> None:
        if self.failure is None:
            self.failure = thread.exception
        self._wakeup.set()


@contextlib.contextmanager
def stop_signals_set(wakeup: PipeEvent) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP set `wakeup`, and do nothing else, as long as this lasts."""
    handlers = {s: signal.signal(s, lambda number, frame: wakeup.set()) for s in stop_signals()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
