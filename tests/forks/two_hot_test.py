# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A value head that is a distribution over bins, trained with the cross-entropy to the two bins
next to the target. Its mean is the baseline, in units of return."""

import math

import torch

from tests.support.forks import PROGRAMS, RUNS, import_fork, in_programs

SIGNALS = "--env tests.forks.envs:Signals-v0 --learning_rate 1e-2 --value_limit 10"
TRAIN = SIGNALS, "--use_lstm", 240, 1200, *in_programs(SIGNALS, 240)


def test_the_mean_of_the_two_bins_is_the_value(fork):
    values, bins = torch.linspace(-12, 12, 97).view(1, -1), torch.linspace(-10, 10, 41)
    shares = import_fork(fork.copy).two_hot(values, bins)
    means, counts, sums = (shares * bins).sum(-1), (shares > 0).sum(-1), shares.sum(-1)
    torch.testing.assert_close(means, values.clamp(-10, 10), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert set(counts.flatten().tolist()) == {1, 2}


def test_the_values_are_learned_in_units_of_return(fork):
    """An action gives 1/3 if it is random and 1 if it is right, and 4.5 follow on average."""
    for run in RUNS:
        first, last = fork.rows(run)
        assert last["baseline_loss"] < 3.4 < math.log(41), last  # the loss of equal shares
        assert max(0.5, first["mean_value"]) < last["mean_value"] < 8, (first, last)
    for program in PROGRAMS:
        last = fork.rows(program)[-1]
        assert 0 < last["baseline_loss"] < 4 and last["value_error"] > 0
