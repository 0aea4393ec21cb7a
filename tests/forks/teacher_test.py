# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A teacher: frozen, from another run, or an average of the network in training. It has a core
state of its own, and is only in the learner."""

import shutil

import pytest
import torch

from tests.support.compare import assert_same
from tests.support.forks import ALGORITHMS, IN_ORDER, RUNS, Fork, parts_of

SIGNALS = "--env tests.forks.envs:Signals-v0 --teacher_burn_in 2"
CORES = {"": "", "-recurrent": "--use_lstm"}


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    """Teachers with and without a core teach each of RUNS, which resumes after they are deleted."""
    fork = Fork("teacher", tmp_path_factory.mktemp("teacher"))
    commands = [
        f"monobeast --xpid teacher{core} --total_steps 1600 --learning_rate 1e-2 {IN_ORDER} "
        f"{SIGNALS} {words} {ALGORITHMS['impala']} --teacher_cost 0"
        for core, words in CORES.items()
    ]
    for run in RUNS:
        algorithm, core = parts_of(run)
        own = f"{IN_ORDER} {SIGNALS} {algorithm} {CORES[core]} --seed 2 --total_steps 240"
        own += " --learning_rate 1e-2 --teacher_cost 10"
        commands.append(f"monobeast --xpid {run} {own} --teacher teacher{core}")
        commands.append(f"monobeast --xpid moving-{run} {own} --teacher_rate 0.1")
    commands.append(
        f"monobeast --xpid same {IN_ORDER} {SIGNALS} {ALGORITHMS['impala']} --total_steps 160 "
        "--learning_rate 1e-30 --init_from teacher --teacher teacher"
    )
    fork.main(*commands)
    fork.teachers = {core: fork.checkpoint(f"teacher{core}")["model"] for core in CORES}
    for core in CORES:
        shutil.rmtree(fork.savedir / f"teacher{core}")
    *_, fork.gone = fork.main(
        *(f"monobeast --xpid {run} --total_steps 1200" for run in RUNS),
        f"monobeast --xpid gone {IN_ORDER} {SIGNALS} --teacher teacher",
    )
    return fork


def test_a_frozen_teacher_is_learned_from_and_stays(fork):
    """Also after a resume without its file."""
    for run in RUNS:
        first, last = fork.rows(run)
        assert last["kl"] < 0.7 * first["kl"], (first, last)
        expected, seen = fork.teachers[parts_of(run)[1]], fork.checkpoint(run)
        assert_same(seen["loss"], {f"teacher.{name}": x for name, x in expected.items()})
        assert not any("teacher" in name for name in seen["model"])


def test_a_moving_teacher_follows(fork):
    """It begins as the network, and is nearer to it than to where both began."""
    for run in RUNS:
        (row,), state = fork.rows(f"moving-{run}"), fork.checkpoint(f"moving-{run}")
        assert 0 < row["kl"] < 0.05, row
        teachers, own = state["loss"]["teacher.policy.weight"], state["model"]["policy.weight"]
        assert not torch.equal(teachers, own)
        torch.testing.assert_close(teachers, own, rtol=0, atol=0.1)


def test_the_same_weights_have_no_divergence(fork):
    """In which moments, masks and precision would show."""
    assert fork.rows("same")[-1]["kl"] == pytest.approx(0, abs=1e-6)


def test_a_teacher_that_is_not_there_is_one_sentence(fork):
    assert fork.gone.startswith("monobeast: error: --teacher teacher: there is no checkpoint ")
