# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Behaviour cloning as a first phase, from batches that the program itself has saved."""

import pytest

from tests.support.forks import ALGORITHMS, IN_ORDER, PROGRAMS, RUNS, Fork, parts_of

SIGNALS = "--env tests.forks.envs:Signals-v0"
CORES = {"": "", "-recurrent": "--use_lstm"}


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    """A run learns the game and saves its later batches. Others begin with these."""
    fork = Fork("cloning", tmp_path_factory.mktemp("cloning"))
    batches, commands = f"{fork.savedir}/batches", []
    for core, words in CORES.items():
        expert, steps = f"monobeast --xpid expert{core}", "--total_steps 2400 --learning_rate 1e-2"
        own = f"{IN_ORDER} {SIGNALS} {words} {ALGORITHMS['impala']}"
        commands.append(f"{expert} {own} {steps}")
        commands.append(f"{expert} --total_steps 3600 --save_batches {batches}{core}")
    for run in RUNS:
        algorithm, core = parts_of(run)
        own = f"{IN_ORDER} {SIGNALS} {algorithm} {CORES[core]} --seed 2 --total_steps 400"
        own += " --learning_rate 1e-2 --no_learning_rate_decay"
        commands.append(f"monobeast --xpid plain-{run} {own}")
        commands.append(f"monobeast --xpid {run} {own} --demonstrations {batches}{core}")
    own = f"{PROGRAMS['monobeast']} {SIGNALS} --total_steps 400 --unroll_length 10 --batch_size 4"
    commands.append(f"monobeast --xpid actors {own} --demonstrations {batches}")
    said = fork.main(*commands)
    assert not any("error:" in text for text in said), said
    return fork


def test_what_was_cloned_is_played(fork):
    """A random game gives 2.7, a perfect one 8. Demonstrations are neither steps nor games."""
    for run in RUNS:
        (plain,), (row,) = fork.rows(f"plain-{run}"), fork.rows(run)
        assert row["mean_game_return"] > plain["mean_game_return"] + 1, (plain, row)
        assert row["step"] == pytest.approx(plain["step"], abs=80)
        assert row["games"] == pytest.approx(plain["games"], abs=12)
        assert row["updates"] > 2 * plain["updates"]
        assert 0.5 < row["shown"] < 1 and plain["shown"] == 0
    rows = fork.rows("actors")  # a slow run has more than one
    assert 0.5 < rows[0]["shown"] <= 1 and rows[-1]["step"] < 800, rows
