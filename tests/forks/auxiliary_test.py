# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""An auxiliary loss on an extra output: the network also predicts the reward of each action."""

from tests.support.forks import PROGRAMS, RUNS

SIGNALS = "--env tests.forks.envs:Signals-v0 --learning_rate 1e-2"
TRAIN = (
    SIGNALS, "--core mingru", 240, 1200,
    "monobeast --xpid ppo-recurrent --mode export",
    f"polybeast --xpid other --num_servers 1 {SIGNALS}",
)  # fmt: skip


def test_the_prediction_improves(fork):
    """At first it does not know which third of the actions gives 1: it errs by 2/9 at best."""
    for run in RUNS:
        first, last = fork.rows(run)
        assert last["reward_loss"] < 0.6 * first["reward_loss"], (run, first, last)
    for program in PROGRAMS:
        assert 0 < fork.rows(program)[-1]["reward_loss"] < 1


def test_an_export_has_no_such_output_and_a_network_without_it_is_refused(fork):
    export, refused = fork.said
    assert (fork.savedir / "ppo-recurrent/policy.pt2").exists()
    assert export.rstrip().endswith("# action, policy_logits, baseline")
    assert refused.startswith("polybeast: error: loss() raised KeyError: 'loss/reward' (")
    end = "; the network is polybeast.Net, with policy_logits, baseline"
    assert refused.endswith(end) and "); batch.now has frame, " in refused and "\n" not in refused
