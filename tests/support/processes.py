# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Runs a beast as a user does, in its own processes, and watches it from outside."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import torch

from libtorchbeast.checkpoint import load_newest
from libtorchbeast.loggers.csv_table import read_csv

ROOT = Path(__file__).resolve().parents[2]
GUARD_S = 240.0  # only ends tests that hang; no test depends on its value


def heed_signals():
    """SIGHUP and SIGINT do what they usually do, even if the tests run under nohup, or in the
    background of a script."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Command:
    """A program in its own session, so that a signal to its process group acts like Ctrl-C in a
    terminal. Used as a context manager, which leaves no process behind. What it prints goes to
    folder/printed. `files` is its limit of open files."""

    def __init__(self, folder, command, files=None, **environment):
        environment |= self.mark()

        def set_up():
            heed_signals()
            if files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        self._printed = Path(folder) / "printed"
        with open(self._printed, "w") as printed:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                cwd=ROOT,
                env=os.environ | {k: str(v) for k, v in environment.items()},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=set_up,
            )

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.kill_all()
        self.process.wait()

    def kill_all(self):
        while pids := self.session():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def mark(self):
        """Returns an environment variable by which `session` finds whatever has it."""
        name, value = "TORCHBEAST_TEST", uuid.uuid4().hex
        self._mark = f"{name}={value}".encode()
        return {name: value}

    @property
    def pid(self):
        return self.process.pid

    def printed(self):
        return self._printed.read_text()

    def session(self):
        """The ids of all living processes that the program has started, in whatever session."""
        return {int(pid) for pid in os.listdir("/proc") if pid.isdigit() and self._started(pid)}

    def _started(self, pid):
        # The words after the program's name: its state, parent, group and session.
        stat = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if not stat or stat[0] in b"ZX":
            return False
        inherited = self._mark in _read(f"/proc/{pid}/environ").split(b"\0")
        return int(stat[3]) == self.pid or inherited

    def actors(self):
        return {pid for pid in self.session() if b"spawn_main" in _read(f"/proc/{pid}/cmdline")}

    def wait_for(self, fact):
        """Waits until `fact()` is true and returns its value. Fails if the process ends before."""
        return wait_for(fact, lambda: self.process.poll() is not None, self.printed)

    def wait_for_end(self):
        """Waits for the end of the process and returns its exit code."""
        try:
            return self.process.wait(GUARD_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end. It printed:\n{self.printed()}") from None


class Program(Command):
    """`python -m MODULE --savedir savedir --xpid run FLAGS`, after the words of `before`."""

    def __init__(self, savedir, *flags, module="monobeast", before=(), **options):
        self.path = Path(savedir) / "run"
        command = [sys.executable, "-m", module, "--savedir", savedir, "--xpid", "run", *flags]
        super().__init__(savedir, [*before, *command], **options)

    def wait_for_step(self, step):
        """Waits until logs.csv has a row with more than `step` steps, and returns the row."""
        return self.wait_for(lambda: next((r for r in self.rows() if r["step"] > step), None))

    def rows(self):
        return rows(self.path)

    def resumed(self):
        """The steps from which it has resumed, one for each start."""
        return [int(step) for step in re.findall(r"Resuming from step (\d+)", self.printed())]

    def step(self):
        """The step of the newest checkpoint, or 0 if there is none."""
        return (load_newest(str(self.path / "model.tar")) or {"step": 0})["step"]


def wait_for(fact, hopeless=lambda: False, describe=lambda: ""):
    """Waits until `fact()` is true and returns its value. Fails after GUARD_S seconds, or if
    `hopeless()` is true."""
    end = time.monotonic() + GUARD_S
    while True:
        over = hopeless() or time.monotonic() > end
        if seen := fact():
            return seen
        assert not over, f"waited in vain. This was printed:\n{describe()}"
        time.sleep(0.02)


def rows(path):
    """The rows of logs.csv as dicts of floats, without empty cells."""
    if not (path / "logs.csv").exists():
        return []
    return [{k: float(v) for k, v in row.items() if v} for row in read_csv(path / "logs.csv")[1]]


def load(path):
    return torch.load(path / "model.tar", weights_only=True)


def _read(path):
    """The content of a file in /proc. Empty if the process has ended or is another user's."""
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
