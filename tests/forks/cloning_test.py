# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Behaviour cloning as a first phase, from batches that the program itself has saved."""

import pytest

from tests.support.forks import ALGORITHMS, IN_ORDER, PROGRAMS, RUNS, Fork

SIGNALS = "--env tests.forks.envs:Signals-v0"
CORES = {"": "", "-recurrent": "--use_lstm"}


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    """A run learns the game and saves its later batches. Others begin with these."""
    fork = Fork("cloning", tmp_path_factory.mktemp("cloning"))
    commands = []
    for core, words in CORES.items():
        own = f"monobeast --xpid expert{core} {IN_ORDER} {SIGNALS} {words} {ALGORITHMS['impala']}"
        commands.append(f"{own} --learning_rate 1e-2 --total_steps 3200")
        own = f"monobeast --xpid expert{core} --save_batches {fork.savedir}/batches{core}"
        commands.append(f"{own} --total_steps 5600")
    for run in RUNS:
        algorithm, dash, name = run.partition("-")
        own = f"{IN_ORDER} {SIGNALS} {ALGORITHMS[algorithm]} {CORES[dash + name]} --seed 2"
        own += " --total_steps 400 --learning_rate 1e-2 --no_learning_rate_decay"
        commands.append(f"monobeast --xpid plain-{run} {own}")
        own += f" --demonstrations {fork.savedir}/batches{dash + name}"
        commands.append(f"monobeast --xpid {run} {own}")
    own = f"--total_steps 400 {PROGRAMS['monobeast']} {SIGNALS} --unroll_length 10"
    commands.append(
        f"monobeast --xpid actors {own} --batch_size 4 --demonstrations {fork.savedir}/batches"
    )
    said = fork.main(*commands)
    assert not any("error:" in text for text in said), said
    return fork


@pytest.mark.parametrize("run", RUNS)
def test_what_was_cloned_is_played(fork, run):
    """A random game gives 2.7, a perfect one 8. Demonstrations are neither steps nor games."""
    (plain,), (row,) = fork.rows(f"plain-{run}"), fork.rows(run)
    assert row["mean_game_return"] > plain["mean_game_return"] + 1, (plain, row)
    assert row["step"] == pytest.approx(plain["step"], abs=80)
    assert row["games"] == pytest.approx(plain["games"], abs=12)
    assert row["updates"] > 2 * plain["updates"]
    assert 0.5 < row["shown"] < 1 and plain["shown"] == 0


def test_it_works_with_actor_processes(fork):
    rows = fork.rows("actors")  # a slow run has more than one
    assert 0.5 < rows[0]["shown"] <= 1 and rows[-1]["step"] < 800, rows
