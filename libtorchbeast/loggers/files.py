# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A run's folder and the ways to write into it: its lock, the link to it, whole lines, whole files,
and the copy of the log."""

import contextlib
import errno
import fcntl
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from logging.handlers import MemoryHandler
from pathlib import Path

from libtorchbeast import workers
from libtorchbeast.flags import UserError

logger = logging.getLogger(__name__)

LAST_WRITE_S = 300.0  # a disk that takes longer for the last checkpoint is taken to hang


class RunInUse(RuntimeError):
    """Another living process has the run open."""


def cannot_write(run: Path, error: OSError) -> UserError:
    return UserError(f"the run's folder cannot be written: {error} ({run})")


@contextlib.contextmanager
def hold(run: str | Path):
    """Makes the run's folder and locks it for this process, until the context ends. It has to be
    entered before anything in the folder is read. However the process ends, the kernel frees the
    lock. Yields a function that says whether another process has taken the folder's name since,
    after the folder was renamed or deleted.

    Raises:
        RunInUse: another living process holds the lock.
        UserError: the folder cannot be made or written.
    """
    run, name = Path(run), f"{os.getpid()}\n".encode()
    with contextlib.ExitStack() as stack:
        try:
            run.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(run / "lock", "ab+", buffering=0))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(name)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().decode(errors="replace").strip() or "unknown"
            said = "stop that process, or choose another --xpid"
            raise RunInUse(f"the run {run} is in use by process {owner}; {said}") from None
        except OSError as error:
            raise cannot_write(run, error) from error
        os.register_at_fork(after_in_child=file.close)  # or the lock would outlive this process
        inode = os.fstat(file.fileno()).st_ino
        yield lambda: (run / "lock").exists() and (run / "lock").stat().st_ino != inode


def link_latest(run: Path) -> None:
    """Makes the link `latest`, beside the run's folder, point to this folder."""
    latest = run.parent / "latest"
    if latest.exists() and not latest.is_symlink():
        logger.warning("%s is not a link, so it is left as it is.", latest)
        return
    new_link = run.parent / f".latest.{os.getpid()}"
    try:
        new_link.unlink(missing_ok=True)
        new_link.symlink_to(run.name)
        new_link.replace(latest)
    except OSError as error:  # some file systems have no links
        logger.warning("The link %s could not be made: %s", latest, error)


def write_whole(
    path: Path, content: str | bytes | memoryview, first: Callable[[], None] = lambda: None
) -> None:
    """Replaces the file's content, whole or not at all. After an error no PATH.tmp is left. `first`
    is called when the new content is on the disk, before it takes the file's place."""
    new_file = Path(f"{path}.tmp")
    try:
        with open(new_file, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        first()
        new_file.replace(path)
        with contextlib.suppress(OSError):  # some network mounts cannot sync a folder
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)  # so that the new name survives a power failure
            finally:
                os.close(directory)
    except BaseException:
        new_file.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def watched_disk(path: str, must_end: Callable[[], bool]) -> Iterator[Callable]:
    """Yields a function that gives contexts for code that writes to `path`. While one lasts, a
    thread says so on stderr; out.log may be on the same disk. If the process `must_end`, or if a
    signal to stop is pending, because the main thread sleeps in the kernel, LAST_WRITE_S are left.
    """
    is_done, writes = threading.Event(), list[None]()

    @contextlib.contextmanager
    def writing() -> Iterator[None]:
        writes.append(None)
        try:
            yield
        finally:
            writes.pop()

    def watch() -> None:
        reminder, left = workers.Reminder(), LAST_WRITE_S
        signal.pthread_sigmask(signal.SIG_BLOCK, workers.STOP_SIGNALS)  # to see them pending
        while not is_done.wait(workers.HEARTBEAT_S):
            if seconds := reminder.due(bool(writes)):
                print(f"Writing to {path} has taken {seconds:.0f} s so far.", file=sys.stderr)
            if not writes:
                left = LAST_WRITE_S
            elif must_end() or signal.sigpending() & workers.STOP_SIGNALS:
                left -= workers.HEARTBEAT_S
            if left <= 0:
                print(f"Writing to {path} hangs. What is not saved is lost.", file=sys.stderr)
                os._exit(1)

    with contextlib.suppress(RuntimeError):  # no thread is left: writing has to go on
        threading.Thread(target=watch, name="disk", daemon=True).start()
    try:
        yield writing
    finally:
        is_done.set()


class LineFile:
    """Appends whole lines to a file. If a write fails in the middle of a line, the next write first
    removes that part of a line."""

    def __init__(self, path: Path) -> None:
        # Without a buffer, because a buffer would write the lines that failed a second time.
        self._file = open(path, "ab", buffering=0)
        self._size = self._file.tell()

    def write(self, line: str) -> None:
        """Appends a line that ends in a newline. Raises OSError if it could not be written."""
        data = line.encode()
        self._size = self._file.truncate(min(self._size, self._file.seek(0, os.SEEK_END)))
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, "only part of a line could be written", self._file.name)
        self._size += len(data)

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def copy_of_log(path: Path):
    """Appends to `path` what any module logs at INFO and above, until the context ends."""
    root = logging.getLogger()
    level = root.level
    with contextlib.closing(LineFile(path)) as file:
        handler = _LineHandler(file)
        handler.setLevel(logging.INFO)
        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(form))
        root.addHandler(handler)
        root.setLevel(min(level, logging.INFO))
        for early in [h for h in root.handlers if isinstance(h, MemoryHandler)]:  # from the start
            early.setTarget(handler)
            early.close()
            root.removeHandler(early)
        try:
            yield
        finally:
            root.setLevel(level)
            root.removeHandler(handler)


class _LineHandler(logging.StreamHandler):
    """Like logging.FileHandler, but on a full disk it drops lines and prints no tracebacks."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):  # The terminal has shown this line already.
            super().handleError(record)
