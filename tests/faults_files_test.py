# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about files and numbers, in small."""

import subprocess

import pytest

from tests.faults import files
from tests.faults.harness import hold


def test_killed_while_saving():
    hold(files.killed_while_saving(kills=20, runs=1))


def test_damaged():
    hold(files.damaged(bits=150, cuts=50))


def test_resumed_in_order():
    hold(files.resumed_in_order(kills=2, steps=8000, flags=("--use_lstm",)))


def test_league_resumed_in_order():
    hold(files.league_resumed_in_order(kills=1, steps=12_000))


@pytest.fixture
def may_mount(tmp_path):
    command = [*files.with_tmpfs(tmp_path, "1m"), "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount a disk: {done.stderr.strip()}")


@pytest.mark.parametrize("beast", files.FLAGS)
def test_full_disk(may_mount, beast):
    hold(files.full_disk((beast,)))


def test_small_machine(may_mount):
    hold(files.small_machine())


@pytest.mark.parametrize("beast", files.LARGE)
def test_not_finite(beast):
    hold(files.not_finite(updates=250, every=50, beast=beast))
