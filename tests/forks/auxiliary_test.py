# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""An auxiliary loss on an extra output: the network also predicts the reward of each action."""

from tests.support.forks import RUNS

SIGNALS = "--env tests.forks.envs:Signals-v0 --learning_rate 1e-2"
TRAIN = SIGNALS, "--core mingru", 240, 1200, "monobeast --xpid ppo-recurrent --mode export"


def test_the_prediction_improves(fork):
    """At first it does not know which third of the actions gives 1: it errs by 2/9 at best."""
    for run in RUNS:
        first, last = fork.rows(run)
        assert last["reward_loss"] < 0.6 * first["reward_loss"], (run, first, last)


def test_an_export_has_no_such_output(fork):
    (export,) = fork.said
    assert (fork.savedir / "ppo-recurrent/policy.pt2").exists()
    assert export.rstrip().endswith("# action, policy_logits, baseline")
