# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Numbers of the environment. It is all that a fork needs: no line of a program changes."""

import pytest

from tests.support.forks import PROGRAMS, RUNS

TOLD = "--env tests.forks.told:Told-v0 --learning_rate 1e-2 --reward_clipping none"
TRAIN = (
    TOLD, "--core mingru", 400, 2400,
    "r2d2 --xpid r2d2 --total_steps 400 --env tests.forks.told:Told-v0 --num_servers 1 "
    "--envs_per_server 8 --batch_size 4 --train_length 8 --burn_in 0 --unroll_length 8 "
    "--min_replay 100",
    "monobeast --xpid impala --mode test --num_episodes 4",
    "warpbeast --xpid warp --total_steps 400 --env tests.forks.told:Told-v0",
)  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_the_column_of_all_games_grows(fork, run):
    """A third of the actions is right by chance."""
    first, last = fork.rows(run)
    assert first["game_right"] < 0.5 and last["game_right"] > first["game_right"] + 0.1
    assert last["mean_game_return"] < 24 * last["game_right"]


@pytest.mark.parametrize("run", [*RUNS, *PROGRAMS, "r2d2"])
def test_each_task_has_a_column(fork, run):
    """Their means are over other games, between which lies the mean over all."""
    row = fork.rows(run)[-1]
    of_tasks = sorted([row["game_right_plain"], row["game_right_paid"]])
    assert 0 < of_tasks[0] <= row["game_right"] <= of_tasks[1] <= 1, row
