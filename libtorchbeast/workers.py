# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Threads and processes that report how they end, and processes that end with their parent."""

import atexit
import contextlib
import faulthandler
import importlib.util
import io
import logging
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from libtorchbeast import linux
from libtorchbeast.errors import report
from libtorchbeast.flags import UserError


def available_cores() -> int:
    return len(linux.own_cores())


def share_of_cores() -> int:
    """The cores for this process if torchrun has started others on this machine, too."""
    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def before_imports(name: str) -> None:
    """A program calls this with its `__name__` before its other imports, which take seconds.

    During these imports Ctrl-C ends the program without a traceback. A spawned child imports the
    same modules, and ends if its parent ends meanwhile.
    """
    linux.keep_freed_memory()
    if name == "__main__":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    else:
        linux.end_with_parent(signal.SIGKILL)


def _set_up_child() -> None:
    """Every child process calls this first.

    The child ignores the signals to stop, because Ctrl-C, a closed terminal's SIGHUP and many a
    scheduler's SIGTERM go to the whole group of processes, and the main process alone decides what
    they mean. The child ends when its parent ends, even if the parent is killed.
    """
    for number in STOP_SIGNALS:
        # Not SIG_IGN, which the programs that the child starts would inherit.
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    # A pipe shows that this process has ended only when nobody else has it open. So the programs
    # that it starts must not inherit its pipes, which a spawn has made inheritable.
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
            if int(name) > 2:
                os.set_inheritable(int(name), False)
    faulthandler.enable()  # a crash in C prints the line of Python that called it
    parent = multiprocessing.parent_process()
    linux.end_with_parent(signal.SIGKILL)
    threading.Thread(target=_exit_after, args=(parent,), name="parent", daemon=True).start()


def _exit_after(parent) -> None:
    """Ends this process after its parent where `linux.end_with_parent` has no effect: on macOS, and
    if the parent ended before the call."""
    parent.join()
    os._exit(1)


def start_program(module: str) -> subprocess.Popen:
    """Runs a module that reads --flags_from_stdin and that this process can import, as a child that
    ends with this process. It gets this flag, and one pipe takes all that it prints. Whatever the
    working directory, it imports from where this process does."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    path = [os.path.abspath(sys.path[0]), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    return subprocess.Popen(
        [sys.executable, spec.origin, "--flags_from_stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | variables,
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the child
        # The child ends when its standard input does. A stopped one has to go on for that.
        preexec_fn=lambda: linux.end_with_parent(signal.SIGCONT),
    )


class Process(SpawnProcess):
    """A child process, with a pipe for messages in each direction. It is started at once, by a
    spawn, because a fork after torch has started its threads can deadlock.

    `target(inbox, outbox, *args)` runs in the child. `inbox` yields messages until the parent asks
    the child to end; `outbox` is a Connection. If `target` raises, the error's `report` is the
    child's last message. Each pipe has one reader and one writer and so needs no lock: a child that
    is killed blocks nobody. What the child prints goes to this process's log.
    """

    FAILURE = b"!"  # begins the last message of a child that raised, and no other message

    def __init__(self, target: Callable, args: tuple, name: str):
        inbox, to_child = multiprocessing.Pipe(duplex=False)
        from_child, outbox = multiprocessing.Pipe(duplex=False)
        printed, output = multiprocessing.Pipe(duplex=False)
        own_args = (target, inbox, outbox, output, args)
        super().__init__(target=_child, args=own_args, name=name, daemon=True)
        # The child inherits this mask, so that no signal reaches it before `_set_up_child`. So does
        # Python's resource tracker, which a SIGHUP would end. Starting the tracker unblocks SIGINT
        # and SIGTERM, so they are blocked again.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            self.start()
        except BlockingIOError as error:
            said = f"the process {name} cannot be started (ulimit -u): {error}"
            raise UserError(said) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for end in (inbox, outbox, output):
            end.close()
        # Only now, because a child gets what its process has as attributes when it starts.
        self._to_child, self.from_child = to_child, from_child
        self._reader = threading.Thread(target=_log_lines, args=(printed, name), daemon=True)
        self._reader.start()

    def _bootstrap(self, *args: Any, **options: Any) -> None:
        """Runs in the child. Python's own end would crash in C while a daemon thread, such as an
        actor's pulse, is inside torch."""
        code = super()._bootstrap(*args, **options)  # type: ignore[misc]
        atexit._run_exitfuncs()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)

    def send(self, message: bytes) -> None:
        """Sends a message, or drops it if the child has ended, which `receive` tells."""
        with contextlib.suppress(OSError):
            self._to_child.send_bytes(message)

    def receive(self) -> bytes | None:
        """The child's next message, or None if it has ended and all its messages were read. What an
        environment has forked may hold the pipe open for longer than that."""
        try:
            while self.exitcode is None and not self.from_child.poll(HEARTBEAT_S):
                pass
            return self.from_child.recv_bytes() if self.from_child.poll() else None
        except (EOFError, OSError):  # OSError: killed in the middle of a message
            return None

    def has_message(self) -> bool:
        """Whether `receive` would return at once, be it with a message or with None."""
        return self.from_child.poll() or self.exitcode is not None

    def ask_to_end(self) -> None:
        """Ends the child's inbox: the child ends by itself when it next reads from it."""
        self._to_child.close()

    def end(self, deadline: float) -> int | None:
        """Ends the process, by force after `deadline` seconds, and returns its exit code. It may be
        called again."""
        self.ask_to_end()
        self.join(deadline)
        if self.is_alive():
            self.kill()
            self.join()
        self._reader.join(timeout=0.2)  # a program that the child has started may still print
        self.from_child.close()
        return self.exitcode


def in_words(exit_code: int | None) -> str:
    """How a process ended: "exit code 1", "exit code -11: Segmentation fault"."""
    killed_by = signal.strsignal(-exit_code) if exit_code is not None and exit_code < 0 else None
    return f"exit code {exit_code}" + (f": {killed_by}" if killed_by else "")


def _messages(inbox: Connection) -> Iterator[bytes]:
    """Yields messages until the other end of the pipe is closed."""
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            yield inbox.recv_bytes()


def _log_lines(printed: Connection, name: str) -> None:
    """Logs what a child prints: perhaps progress bars with carriage returns, or no text at all."""
    level = logging.INFO
    with printed, open(printed.fileno(), errors="replace", closefd=False) as lines:
        for line in lines:
            if line.startswith("Fatal Python error"):  # from faulthandler, after a crash in C
                level = logging.ERROR
            logging.getLogger(__name__).log(level, "%s: %s", name, line.rstrip())


def _child(
    target: Callable, inbox: Connection, outbox: Connection, output: Connection, args: tuple
) -> None:
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    _set_up_child()
    try:
        target(_messages(inbox), outbox, *args)
    except BaseException as error:
        with contextlib.suppress(OSError):
            outbox.send_bytes(Process.FAILURE + report(error).encode()[-16000:])
        sys.exit(1)


class Patient:
    """A stream that waits a second at most for its reader, such as a pager or a frozen terminal.
    What the reader does not take is lost, but the program goes on. A run's out.log has it."""

    def __init__(self, stream: Any):
        self._stream, self._patience_s = stream, 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        for begin in range(0, len(text), 1024):  # a pipe that is ready takes 4096 bytes
            with contextlib.suppress(OSError, ValueError):  # it is no file
                is_ready = select.select([], [self._stream], [], self._patience_s)[1]
                self._patience_s = float(bool(is_ready))
                if not is_ready:
                    break
            self._stream.write(text[begin : begin + 1024])
            self._stream.flush()
        return len(text)


def make_stderr_patient() -> None:
    if not isinstance(sys.stderr, Patient):
        sys.stderr = Patient(sys.stderr or open(os.devnull, "w"))  # none, if it was closed


class PipeEvent:
    """An event that `select` can wait for together with pipes and processes. Any thread and any
    signal handler may set it. It stays set."""

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
        self._set = True  # so that `set` writes no more
        os.close(self._reader)
        os.close(self._writer)


# Processes give signs of life at least this often, and are checked for them at least this often.
HEARTBEAT_S = 0.5


def longest_silence(step_timeout: float) -> float:
    """Seconds without a sign of life after which a process counts as hung or stopped."""
    return max(step_timeout, 2 * HEARTBEAT_S)


class SilenceTimer:
    """Measures how long others have given no sign of life, for a process that checks this often.

    This process may itself stall for a while: Ctrl-Z or a scheduler stops it, or a slow disk holds
    it up. That time does not count as silence, because the others were perhaps stopped with it.
    Silence before and after it does.
    """

    STALL_S = 5.0  # this process has stalled if two ticks are further apart

    def __init__(self):
        self._last_tick = time.monotonic()
        # When each stall began and ended, oldest first.
        self._stalls: deque[tuple[float, float]] = deque()

    def tick(self) -> None:
        """To be called before each check, a few times a second."""
        now = time.monotonic()
        if now - self._last_tick > self.STALL_S:
            self._stalls.append((self._last_tick, now))
        self._last_tick = now

    def silence(self, last_sign: float) -> float:
        """Seconds from `last_sign`, a time of time.monotonic(), to the last tick, without the time
        in which this process stalled."""
        seconds = self._last_tick - last_sign
        for began, ended in reversed(self._stalls):
            if ended <= last_sign:
                break
            seconds -= ended - max(began, last_sign)
        return seconds


class Reminder:
    """Tells when the log should say that something still lasts: after 5, 10, 20, ... seconds. It
    should be a warning, because a terminal shows no lower level (loggers/display.py)."""

    FIRST_S = 5.0

    def __init__(self):
        self._began: float | None = None

    def due(self, lasts: bool) -> float:
        """To be called a few times a second. Returns for how many seconds it has lasted if the log
        should say so now, else 0."""
        now = time.monotonic()
        if not lasts:
            self._began = None
        elif self._began is None:
            self._began, self._wait = now, self.FIRST_S
        elif now - self._began >= self._wait:
            self._wait *= 2
            return now - self._began
        return 0.0


class Threads:
    """Daemon threads of one program, whose first failure ends it. `wakeup` is set when one of them
    ends, for whatever reason."""

    def __init__(self, wakeup: PipeEvent):
        self.failure: BaseException | None = None  # the first
        self._wakeup = wakeup
        self._threads: list[threading.Thread] = []

    def start(self, target: Callable, args: tuple, name: str) -> None:
        def run() -> None:
            try:
                target(*args)
            except BaseException as error:
                if self.failure is None:
                    self.failure = error
                logging.getLogger(__name__).error("Thread %s failed: %r", name, error)
            finally:
                self._wakeup.set()

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    def join(self, timeout: float) -> None:
        """Waits for each of them, at most `timeout` seconds."""
        for thread in self._threads:
            thread.join(timeout)

    def raise_failure(self) -> None:
        """Raises the first failure of a thread, if there was one, with its traceback."""
        if self.failure is not None:
            raise self.failure


@contextlib.contextmanager
def stop_signals_set(wakeup: PipeEvent) -> Iterator[list[str]]:
    """SIGINT, SIGTERM and SIGHUP set `wakeup`, and do nothing else, as long as this lasts. The list
    gets their names in the order in which they come. A closed terminal's SIGHUP is left alone under
    `nohup`, which makes a program ignore it."""
    received: list[str] = []

    def stop(number, frame) -> None:
        received.append(signal.Signals(number).name)
        wakeup.set()

    ignores = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = STOP_SIGNALS - {signal.SIGHUP} if ignores else STOP_SIGNALS
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield received
    finally:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number, own in before.items():
                signal.signal(number, own)
