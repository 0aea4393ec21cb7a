# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about files, in small. checkpoint_test.py has damaged ones, learner_test.py what is
not finite, monobeast_test.py runs in order, and past_test.py a league that is killed."""

import subprocess

import pytest

import monobeast
import polybeast
from libtorchbeast import shared_memory
from tests.faults import files
from tests.faults.harness import hold
from tests.support.monobeast import PARALLEL as MONO
from tests.support.polybeast import SMALL as POLY
from tests.support.polybeast import refusal


def test_killed_while_saving():
    hold(files.killed_while_saving(kills=20, runs=0))  # faults_signals_test.py resumes


def test_full_disk(tmp_path):
    """R2D2 has every file that the other beasts have, and a replay."""
    command = [*files.with_tmpfs(tmp_path, "1m"), "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount a disk: {done.stderr.strip()}")
    hold(files.full_disk(("r2d2",)))


@pytest.mark.parametrize("program, flags", [(monobeast, MONO), (polybeast, POLY)])
def test_more_actors_than_a_program_may_open_files_are_refused(
    program, flags, tmp_path, monkeypatch, as_before
):
    """That a run fits into little shared memory is in shared_memory_test.py."""
    monkeypatch.setattr(shared_memory.resource, "getrlimit", lambda which: (36, 36))
    words = [*flags, "--num_actors", 1, "--total_steps", 100]
    said = "--num_actors 1: expected a smaller number: 37 open files would be needed"
    assert refusal(tmp_path, *words, program=program).startswith(said)
