# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A terminal that is closed, as an SSH connection that breaks closes it. workers_test.py has what
nohup changes."""

from tests.support.processes import load, rows
from tests.support.terminal import InTerminal, command_of


def test_a_closed_terminal_saves_and_ends_the_run(tmp_path):
    with InTerminal(tmp_path, command_of(tmp_path, "polybeast")) as program:
        program.wait_for_step(0)
        program.close_terminal()
        assert program.wait_for_end() == 0, (tmp_path / "run/out.log").read_text()
    assert load(tmp_path / "run")["step"] == rows(tmp_path / "run")[-1]["step"] > 0
    assert not list(tmp_path.glob("torchbeast*"))
