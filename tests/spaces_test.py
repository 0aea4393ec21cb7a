# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Both beasts learn with nested observations, several choices at once, and masks. control_test.py
has actions that are real numbers."""

import numpy as np
import pytest

import monobeast
import polybeast
from libtorchbeast import evaluate
from libtorchbeast.checkpoint import parse_for_run

BEASTS = {
    "monobeast": (monobeast, "--num_actors 1 --envs_per_actor 32"),
    "polybeast": (polybeast, "--num_servers 1 --envs_per_server 32 --net monobeast.Net"),
}
LEARN = "--total_steps 20000 --learning_rate 3e-3 --passes 2 --minibatches 4"
GAMES = {"Pairs": (6.0, -2.7), "Allowed": (7.0, 2.5)}  # the wanted return, and that by chance


@pytest.mark.parametrize(
    "game, beast",  # PolyBeast sends a mask as any other observation
    [("Pairs", "monobeast"), ("Pairs", "polybeast"), ("Allowed", "monobeast")],
)
def test_both_beasts_learn_it(game, beast, tmp_path):
    wanted, by_chance = GAMES[game]
    program, more = BEASTS[beast]
    argv = f"--env tests.support.games:{game}-v0 --xpid t --seed 1 {more}".split()
    argv += ["--savedir", str(tmp_path)]
    program.main([*argv, *LEARN.split()])
    argv += ["--mode", "test", "--greedy", "--num_episodes", "30"]
    draft = parse_for_run(program.make_parser, argv)
    mean = np.mean(
        [game.score for game in evaluate.test_newest(program.check_flags(draft), program.player)]
    )
    assert mean > wanted > by_chance
