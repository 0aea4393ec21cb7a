# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Counting what is skipped. tests/learner_test.py has the skipped updates themselves."""

import math
from argparse import Namespace

import pytest

import monobeast
from libtorchbeast.flags import UserError
from libtorchbeast.skipped import MAX_EMPTY_IN_A_ROW, MAX_SKIPPED_IN_A_ROW, Skipped
from tests.support.actors import make_actor, make_flags, make_rollouts


def test_only_what_is_skipped_in_a_row_ends_the_run(tmp_path):
    actor = make_actor(monobeast.Net)
    (batch,) = make_rollouts(actor, 1)
    skips = Skipped(actor.net, make_flags(), str(tmp_path))
    good, bad = ({"total_loss": x, "grad_norm": 1.0} for x in (0.5, math.inf))
    for number in range(2 * MAX_SKIPPED_IN_A_ROW - 2):
        if number == MAX_SKIPPED_IN_A_ROW - 1:
            assert not skips.must_skip(good)
        assert skips.must_skip(bad)
        skips.skip(batch, batch, bad, number)
    assert skips.must_skip({"total_loss": 0.5, "grad_norm": math.nan})
    with pytest.raises(UserError, match=f"{MAX_SKIPPED_IN_A_ROW} updates in a row had a loss or"):
        skips.skip(batch, batch, bad, 0)
    last = skips.count
    assert last == 2 * MAX_SKIPPED_IN_A_ROW - 1
    # Enough to debug, not a full disk; and in any case the one that ended the run.
    names = {f"nonfinite-{number}.tar" for number in (1, 2, 3, last)}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_what_the_network_returned_is_blamed_on_no_observation():
    class Large(monobeast.Net):
        def forward(self, inputs, core_state=()):
            outputs, core_state = super().forward(inputs, core_state)
            return outputs | {"feat": 1e9 + outputs["baseline"]}, core_state

    actor = make_actor(Large)
    (batch,) = make_rollouts(actor, 1)
    bad = {"total_loss": math.nan, "grad_norm": 1.0}
    skips = Skipped(actor.net, make_flags(), None)
    with pytest.raises(UserError) as error:
        for number in range(MAX_SKIPPED_IN_A_ROW):
            assert skips.must_skip(bad) and batch["feat"].min() > 1e8
            skips.skip(batch, batch, bad, number)
    assert "feat" not in str(error.value)
    batch["frame"] = batch["frame"] + 1e8  # an observation is
    with pytest.raises(UserError, match="'frame' has numbers as large as"):
        skips.must_skip(bad)
        skips.skip(batch, batch, bad, number)


def test_only_empty_batches_in_a_row_end_the_run():
    skips = Skipped(None, Namespace(), None)
    for _ in range(2):
        for _ in range(MAX_EMPTY_IN_A_ROW - 1):
            assert skips.note_empty(True)
        assert not skips.note_empty(False)
    with pytest.raises(UserError, match=f"{MAX_EMPTY_IN_A_ROW} batches in a row"):
        for _ in range(MAX_EMPTY_IN_A_ROW):
            skips.note_empty(True)
