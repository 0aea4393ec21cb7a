# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A discount of -1: a game of two players in turn, in one column. An environment that says where
the turn passes is all that a fork needs: no line of a program changes."""

import pytest
import torch

import monobeast
from libtorchbeast import checkpoint, evaluate, models
from tests.support.forks import PROGRAMS, RUNS, in_programs

NIM = "--env tests.support.turns:Nim-v0 --reward_scaling none --observation_scaling none"
LEARN = f"{NIM} --learning_rate 5e-3 --entropy_cost 0.02 --discounting 0.9"
TRAIN = LEARN, "--core mingru", 400, 1600, *in_programs(LEARN, 400)
ROWS = dict(
    frame=torch.eye(6)[[5, 3, 2], None], reward=torch.zeros(3, 1),
    done=torch.tensor([[True], [False], [False]]), last_action=torch.tensor([[0], [1], [0]]),
)  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_values_of_the_two_sides_are_opposite(fork, run):
    """A game in which five, three and two stones are left, each in the eyes of the player whose
    turn it is. He takes one or two, and the last one wins: three are lost."""
    words = f"--mode test --num_episodes 1 --savedir {fork.savedir} --xpid {run}".split()
    flags = monobeast.check_flags(checkpoint.parse_for_run(monobeast.make_parser, words))
    net, _ = evaluate.load(flags, monobeast.player)
    with torch.no_grad():
        outputs, _ = models.forward(net, ROWS, models.initial_state(net, 1))
    five, three, two = values = outputs["baseline"][:, 0].tolist()
    assert two > 0.6 and three < -0.5 and five > 0.4, values
    assert three == pytest.approx(-0.9 * two, abs=0.3), values
    assert five == pytest.approx(-0.9 * three, abs=0.3), values
    logits = outputs["policy_logits"][0, 0]
    assert logits[1] > logits[0]  # it takes two of five


def test_the_first_player_learns_to_win(fork):
    """The return is his: 1 or -1. If both play at random he wins 9 of 16 games, which is 0.125.
    Only the games that he wins tell their moves, three or five."""
    for run in (*RUNS, *PROGRAMS):
        last = fork.rows(run)[-1]
        assert last["mean_game_return"] > (0.5 if run in RUNS else -1), last
        assert last["game_first_wins"] == pytest.approx((1 + last["mean_game_return"]) / 2)
        assert 3 <= last["game_moves"] <= 5
