# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A run in a terminal that is closed, as an SSH connection that breaks closes it."""

import contextlib
import os
import pty
import select
import signal
import sys

import pytest

from tests.processes import ROOT, Program, load, rows, wait_for

FLAGS = "--env tests.envs:Catch-v0 --batch_size 4 --log_every 0.5 --total_steps 1000000000".split()
BEASTS = {
    "monobeast": "--num_actors 2 --envs_per_actor 2".split(),
    "polybeast": "--num_servers 1 --envs_per_server 4 --net monobeast.Net".split(),
}


class InTerminal(Program):
    """A beast in a session of its own, whose terminal is a pseudo-terminal."""

    def __init__(self, folder, module, *before):
        self.path, self._mark, self._ended = folder / "run", None, None
        program = [sys.executable, "-m", module, "--savedir", str(folder), "--xpid", "run"]
        command = [*before, *program, *FLAGS, *BEASTS[module]]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(folder)  # where nohup writes its file
            os.execvpe(command[0], command, environment)

    @property
    def pid(self):
        return self._pid

    def wait_for_step(self, step):
        """Meanwhile it may print."""

        def fact():
            if self._terminal and select.select([self._terminal], [], [], 0)[0]:
                with contextlib.suppress(OSError):  # nobody writes any more
                    os.read(self._terminal, 2**16)
            return any(row["step"] > step for row in self.rows())

        wait_for(fact, self.has_ended)

    def close_terminal(self):
        os.close(self._terminal)
        self._terminal = None

    def has_ended(self):
        if self._ended is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._ended = os.waitstatus_to_exitcode(status) if pid else None
        return self._ended is not None

    def __exit__(self, *exc_info):
        while not self.has_ended() or self.session():
            for pid in self.session():
                os.kill(pid, signal.SIGKILL)

    def wait_for_end(self):
        wait_for(self.has_ended)
        wait_for(lambda: not self.session())
        return self._ended


@pytest.mark.parametrize("module", BEASTS)
def test_a_closed_terminal_saves_and_ends_the_run(tmp_path, module):
    with InTerminal(tmp_path, module) as program:
        program.wait_for_step(0)
        program.close_terminal()
        assert program.wait_for_end() == 0, (tmp_path / "run/out.log").read_text()
    assert load(tmp_path / "run")["step"] == rows(tmp_path / "run")[-1]["step"] > 0
    assert not list(tmp_path.glob("torchbeast*"))


@pytest.mark.parametrize("module", BEASTS)
def test_nohup_lets_it_go_on(tmp_path, module):
    with InTerminal(tmp_path, module, "nohup") as program:
        program.wait_for_step(0)
        program.close_terminal()
        program.wait_for_step(program.rows()[-1]["step"])
        program.wait_for_step(program.rows()[-1]["step"])
        os.kill(program.pid, signal.SIGTERM)
        assert program.wait_for_end() == 0
    table = rows(tmp_path / "run")
    assert load(tmp_path / "run")["step"] == table[-1]["step"]
    assert not any(table[-1].get(k) for k in ("stream_failures", "actor_restarts"))
