# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Nested observations and several choices at once are learned, and masks. control_test.py has
actions that are real numbers."""

import numpy as np
import pytest

import monobeast
import polybeast
from libtorchbeast import evaluate
from libtorchbeast.checkpoint import parse_for_run

GAMES = [  # and the wanted return; by chance it is -2.7 or 2.5
    ("Pairs", monobeast, "--num_actors 1 --envs_per_actor 32", 6.0),
    ("Pairs", polybeast, "--num_servers 1 --envs_per_server 32 --net monobeast.Net", 6.0),
    # PolyBeast sends a mask as any other observation.
    ("Allowed", monobeast, "--num_actors 1 --envs_per_actor 32", 7.0),
]


@pytest.mark.parametrize("game, program, own, wanted", GAMES)
def test_a_beast_learns_it(game, program, own, wanted, tmp_path):
    run = f"--savedir {tmp_path} --xpid t --seed 1 --env tests.support.games:{game}-v0 {own}"
    learn = "--total_steps 20000 --learning_rate 3e-3 --passes 2 --minibatches 4"
    program.main(f"{run} {learn}".split())
    play = f"{run} --mode test --greedy --num_episodes 30".split()
    flags = program.check_flags(parse_for_run(program.make_parser, play))
    games = evaluate.play_newest(flags, program.player)
    assert np.mean([game.score for game in games]) > wanted
