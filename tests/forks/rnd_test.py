# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Random network distillation: networks that only the loss needs, with a learning rate of their
own, and a bonus that is scaled by its running moments."""

import torch

from tests.support.forks import RUNS
from tests.support.monobeast import refusal

RATES = "--no_learning_rate_decay --learning_rate 3e-3 --rnd_learning_rate 5e-4"
TRAIN = (
    f"--env tests.forks.envs:Room-v0 {RATES}", "--core mingru", 240, 1200,
    "monobeast --xpid impala-recurrent --mode export",
    "warpbeast --xpid warpbeast --env breakout --num_envs 16 --batch_size 16 --total_steps 1000",
)  # fmt: skip


def parts(fork, run, name):
    """The weights of the goal or the predictor, as one vector."""
    of_loss = fork.checkpoint(run)["loss"]
    return torch.cat([x.flatten() for k, x in of_loss.items() if k.startswith(f"rnd.{name}.")])


def test_the_predictor_learns_and_the_goal_stays(fork):
    """With one seed all runs of a network begin with the same weights."""
    for run in RUNS:
        first, last = fork.rows(run)
        assert last["rnd_loss"] < 0.9 * first["rnd_loss"], (first, last)
    assert torch.equal(parts(fork, "ppo", "goal"), parts(fork, "impala", "goal"))
    assert not torch.equal(parts(fork, "ppo", "predictor"), parts(fork, "impala", "predictor"))


def test_the_bonus_is_scaled_and_is_what_the_values_predict(fork):
    """The room gives no reward. Unscaled, the bonus would be as small as rnd_loss. Its moments are
    of each transition once, also with several passes, and after the resume."""
    for run in RUNS:
        first, last = fork.rows(run)
        assert 5 * last["rnd_loss"] < last["bonus"] < 2, last
        assert last["mean_value"] > max(0.3, first["mean_value"]), (first, last)
        checkpoint = fork.checkpoint(run)
        assert checkpoint["loss"]["rnd.moments"][1] == checkpoint["step"]
    last = fork.rows("warpbeast")[-1]
    assert last["rnd_loss"] > 0 and last["bonus"] > 0


def test_actors_and_exports_do_not_have_it(fork):
    assert not [name for name in fork.checkpoint("impala")["model"] if "rnd" in name]
    assert (fork.savedir / "impala-recurrent/policy.pt2").stat().st_size < 3e6


def test_a_program_without_it_does_not_resume_the_run(fork, as_before):
    """And writes nothing, but for the number of the process in the lock."""
    paths = [path for path in (fork.savedir / "ppo").iterdir() if path.name != "lock"]
    files = {path: path.read_bytes() for path in paths}
    message = refusal(fork.savedir, *"--xpid ppo --num_actors 0 --total_steps 2000".split())
    assert "error: The checkpoint has other parts for the loss than monobeast.Net: " in message
    assert {path: path.read_bytes() for path in paths} == files
