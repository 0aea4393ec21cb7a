# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Nested observations, several choices at once, and masks are learned from. parallel_test.py and
past_test.py have several choices in MonoBeast, control_test.py actions that are real numbers."""

import numpy as np
import pytest

import monobeast
import polybeast
from libtorchbeast import evaluate
from libtorchbeast.checkpoint import parse_for_run


@pytest.mark.parametrize("program, game, steps, wanted, by_chance", [
    (polybeast, "Pairs", 50_000, 6.0, -2.7),
    (monobeast, "Allowed", 10_000, 7.0, 2.5),  # PolyBeast sends a mask as any other observation
])  # fmt: skip
def test_it_is_learned(program, game, steps, wanted, by_chance, tmp_path):
    argv = f"--env tests.support.games:{game}-v0 --xpid t --seed 1 --savedir {tmp_path}".split()
    more = "--num_actors 1 --envs_per_actor 32"
    if program is polybeast:
        more = "--num_servers 1 --envs_per_server 32 --net monobeast.Net"
    program.main([*argv, *more.split(), "--total_steps", str(steps)])
    argv += "--mode test --greedy --num_episodes 30".split()
    draft = parse_for_run(program.make_parser, argv)
    mean = np.mean(
        [game.score for game in evaluate.test_newest(program.check_flags(draft), program.player)]
    )
    assert mean > wanted > by_chance
