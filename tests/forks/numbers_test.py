# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Numbers of the environment, which is all that a fork needs: no line of a program changes.
(WarpBeast's environments tell no numbers of games; tests/tensors_test.py has its refusal.)"""

import pytest

from tests.support.forks import PROGRAMS, RUNS

TOLD = "--env tests.forks.envs:Told-v0 --learning_rate 1e-2 --reward_clipping none"
TRAIN = (
    TOLD, "--core mingru", 400, 2400,
    "r2d2 --xpid r2d2 --total_steps 800 --env tests.forks.envs:Told-v0 --num_servers 1 "
    "--envs_per_server 4 --batch_size 4 --train_length 8 --burn_in 0 --n_steps 1 "
    "--replay_start 100 --replay_ratio 4 --unroll_length 8",
)  # fmt: skip


@pytest.mark.parametrize("run", [*RUNS, *PROGRAMS, "r2d2"])
def test_the_column_of_all_games_grows_and_each_task_has_one(fork, run):
    """A third of the actions is right by chance. The tasks' means are over other games, between
    which lies the mean over all."""
    *_, last = rows = fork.rows(run)
    if run in RUNS:
        assert rows[0]["game_right"] < 0.5 and last["game_right"] > rows[0]["game_right"] + 0.1
        assert last["mean_game_return"] < 24 * last["game_right"]
    of_tasks = sorted([last["game_right_plain"], last["game_right_paid"]])
    assert 0 < of_tasks[0] <= last["game_right"] <= of_tasks[1] <= 1, rows
