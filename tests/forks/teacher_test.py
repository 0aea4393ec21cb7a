# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A teacher: frozen, from another run, or an average of the network in training. It has a core
state of its own, and is only in the learner."""

import shutil

import pytest
import torch

from tests.support.forks import ALGORITHMS, IN_ORDER, PROGRAMS, RUNS, Fork

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
        algorithm, dash, name = run.partition("-")
        own = f"{IN_ORDER} {SIGNALS} {ALGORITHMS[algorithm]} {CORES[dash + name]} --seed 2"
        rates = "--learning_rate 1e-2 --teacher_cost 10"
        for xpid, more in ((run, f"--teacher teacher{dash + name}"), (f"moving-{run}", "")):
            more += "" if more else " --teacher_rate 0.1"
            steps = "--total_steps 240"
            commands.append(f"monobeast --xpid {xpid} {steps} {own} {rates} {more}")
    commands.append(
        f"monobeast --xpid same {IN_ORDER} {SIGNALS} {ALGORITHMS['impala']} --total_steps 160 "
        "--learning_rate 1e-30 --init_from teacher --teacher teacher"
    )
    for program, own in PROGRAMS.items():
        commands.append(
            f"{program} --xpid {program} --total_steps 240 {own} {SIGNALS} --teacher teacher "
        )
    commands.append(f"monobeast --xpid wrong {IN_ORDER} {SIGNALS} --use_lstm --teacher teacher")
    fork.said = fork.main(*commands)
    for name in CORES:
        fork.teachers = getattr(fork, "teachers", {}) | {name: fork.checkpoint(f"teacher{name}")}
        shutil.rmtree(fork.savedir / f"teacher{name}")
    fork.said += fork.main(
        *(f"monobeast --xpid {run} --total_steps 1200" for run in RUNS),
        f"monobeast --xpid gone {IN_ORDER} {SIGNALS} --teacher teacher",
    )
    return fork


@pytest.mark.parametrize("run", RUNS)
def test_a_frozen_teacher_is_learned_from_and_stays(fork, run):
    """Also after a resume without its file."""
    first, last = fork.rows(run)
    assert last["kl"] < 0.7 * first["kl"], (first, last)
    expected = fork.teachers["-recurrent" if "recurrent" in run else ""]["model"]
    seen = fork.checkpoint(run)["loss"]
    assert seen.keys() == {f"teacher.{name}" for name in expected}
    assert all(torch.equal(seen[f"teacher.{name}"], x) for name, x in expected.items())
    assert not any("teacher" in name for name in fork.checkpoint(run)["model"])


@pytest.mark.parametrize("run", RUNS)
def test_a_moving_teacher_follows(fork, run):
    """It begins as the network, and is nearer to it than to where both began."""
    (row,), state = fork.rows(f"moving-{run}"), fork.checkpoint(f"moving-{run}")
    assert 0 < row["kl"] < 0.05, row
    name = "policy.weight"
    assert not torch.equal(state["loss"][f"teacher.{name}"], state["model"][name])
    torch.testing.assert_close(
        state["loss"][f"teacher.{name}"], state["model"][name], rtol=0, atol=0.1
    )


def test_the_same_weights_have_no_divergence(fork):
    """In which moments, masks and precision would show."""
    assert fork.rows("same")[-1]["kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_logs_it(fork, program):
    assert fork.rows(program)[-1]["kl"] > 0


def test_a_teacher_that_does_not_fit_or_is_not_there_is_one_sentence(fork):
    gone, wrong = fork.said[-1], fork.said[-6]
    assert gone.startswith("monobeast: error: --teacher teacher: there is no checkpoint ")
    assert wrong.startswith("monobeast: error: --teacher teacher: ") and "does not fit" in wrong
