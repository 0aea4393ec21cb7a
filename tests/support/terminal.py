# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Runs a program in a pseudo-terminal."""

import os
import pty
import select
import sys

from tests.support.processes import ROOT, Program, heed_signals, wait_for

FLAGS = "--env tests.support.envs:Catch-v0 --batch_size 4 --log_every 0.5".split()
FLAGS += ["--total_steps", "1000000000", "--xpid", "run"]
BEASTS = {
    "monobeast": "--num_actors 0 --envs_per_actor 4".split(),
    "polybeast": "--num_servers 1 --envs_per_server 4 --net monobeast.Net".split(),
}


def command_of(folder, module, *flags):
    """The words that start a beast whose run is `folder`/run."""
    program = [sys.executable, "-m", module, "--savedir", str(folder)]
    return [*program, *FLAGS, *BEASTS[module], *flags]


class InTerminal(Program):
    """A program in its own session, whose terminal is a pseudo-terminal."""

    def __init__(self, folder, command):
        self.path, self._ended, self._seen = folder / "run", None, b""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
        environment |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"} | self.mark()
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            heed_signals()
            os.chdir(folder)  # nohup writes its file here
            os.execvpe(command[0], command, environment)

    @property
    def pid(self):
        return self._pid

    def wait_for_step(self, step):
        self.wait_while_reading(lambda: any(row["step"] > step for row in self.rows()))

    def wait_while_reading(self, fact):
        wait_for(lambda: self.printed() and fact(), self.has_ended, self.printed)

    def printed(self):
        while self._terminal and select.select([self._terminal], [], [], 0)[0]:
            try:
                self._seen += os.read(self._terminal, 2**16)
            except OSError:  # all processes in the terminal have ended
                break
        return self._seen.decode(errors="replace")

    def close_terminal(self):
        os.close(self._terminal)
        self._terminal = None

    def has_ended(self):
        if self._ended is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._ended = os.waitstatus_to_exitcode(status) if pid else None
        return self._ended is not None

    def __exit__(self, *exc_info):
        self.kill_all()
        wait_for(self.has_ended)

    def wait_for_end(self):
        wait_for(self.has_ended)
        wait_for(lambda: not self.session())
        return self._ended
