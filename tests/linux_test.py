# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What only Linux has can be missing."""

import re

import pytest

from tests.support.monobeast import CATCH, beast
from tests.support.processes import ROOT, Program

pytestmark = pytest.mark.usefixtures("as_before")

# Python runs this file at the start of each process. It takes away what only Linux has.
SITE = """
import builtins, ctypes, os

for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fallocate"):
    delattr(os, name)
look_up, plain_open = ctypes.CDLL.__getattr__, builtins.open


def without(library, name):
    if name in ("mallopt", "prctl"):
        taken(name)
        raise AttributeError(name)
    return look_up(library, name)


def refusing(path, *args, **options):
    if path == "/proc/cpuinfo":
        taken("cpuinfo")
        raise FileNotFoundError(path)
    return plain_open(path, *args, **options)


def taken(name):
    with plain_open(os.environ["TAKEN"], "a") as file:
        file.write(f"{os.getpid()} {name}\\n")


ctypes.CDLL.__getattr__, builtins.open = without, refusing
"""


def test_catch_is_solved_without_linux_and_the_solution_can_be_played(tmp_path, capsys):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    flags = "--num_actors 2 --envs_per_actor 16 --batch_size 16 --unroll_length 10".split()
    flags += "--learning_rate 5e-3 --total_steps 30_000 --eval_every 0".split()
    variables = dict(PYTHONPATH=f"{tmp_path}:{ROOT}", TAKEN=tmp_path / "taken")
    with Program(tmp_path, *CATCH, *flags, **variables) as program:
        assert program.wait_for_end() == 0, program.printed()
    last = program.rows()[-1]
    assert 30_000 <= last["step"] < 30_000 + 10 * 16 and last["mean_game_return"] >= 0.9
    assert last["actor_restarts"] == last["skipped_updates"] == 0
    asked = [line.split() for line in (tmp_path / "taken").read_text().splitlines()]
    assert {name for _, name in asked} == {"mallopt", "prctl", "cpuinfo"}
    assert len({process for process, _ in asked}) >= 3  # with the actors
    beast(tmp_path, "--mode", "test", "--greedy", "--num_episodes", 20)
    assert float(re.search(r"Mean return (-?[\d.]+)", capsys.readouterr().out)[1]) >= 0.9
