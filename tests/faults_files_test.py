# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about files, in small. checkpoint_test.py has damaged ones, learner_test.py what is
not finite, and past_test.py a league that is killed."""

import subprocess

import pytest

from tests.faults import files
from tests.faults.harness import hold


def test_killed_while_saving():
    hold(files.killed_while_saving(kills=20, runs=1))


def test_resumed_in_order():
    hold(files.resumed_in_order(kills=1, steps=12_000, flags=("--use_lstm",)))


@pytest.fixture
def may_mount(tmp_path):
    command = [*files.with_tmpfs(tmp_path, "1m"), "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount a disk: {done.stderr.strip()}")


def test_full_disk(may_mount):
    hold(files.full_disk(("r2d2",)))  # it has every file that the other beasts have, and a replay


def test_small_machine(may_mount):
    hold(files.small_machine())
