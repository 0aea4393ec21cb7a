# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about files, in small. checkpoint_test.py has damaged ones, learner_test.py what is
not finite, and past_test.py a league that is killed."""

import subprocess

import pytest

from libtorchbeast import shared_memory
from tests.faults import files
from tests.faults.harness import hold
from tests.support.polybeast import SMALL as POLY
from tests.support.polybeast import refusal


def test_killed_while_saving():
    hold(files.killed_while_saving(kills=20, runs=0))  # below, real programs resume after a kill


def test_resumed_in_order():
    hold(files.resumed_in_order(kills=1, steps=4_000, flags=("--use_lstm",)))


@pytest.fixture
def may_mount(tmp_path):
    command = [*files.with_tmpfs(tmp_path, "1m"), "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount a disk: {done.stderr.strip()}")


def test_full_disk(may_mount):
    hold(files.full_disk(("r2d2",)))  # it has every file that the other beasts have, and a replay


def test_small_machine(may_mount):
    """monobeast.py and polybeast.py count files with the same function."""
    hold(files.small_machine(("monobeast",)))


def test_polybeast_refuses_more_actors_than_it_may_open_files(tmp_path, monkeypatch, as_before):
    monkeypatch.setattr(shared_memory.resource, "getrlimit", lambda which: (36, 36))
    said = "--num_actors 1: expected a smaller number: 37 open files would be needed"
    assert refusal(tmp_path, *POLY, "--total_steps", 100).startswith(said)
