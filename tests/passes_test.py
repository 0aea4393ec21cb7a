# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The parts of a batch: every transition once in each pass, with the row after it."""

from argparse import Namespace

import pytest
import torch

from libtorchbeast.passes import parts

T, B = 3, 4


def make_batch(is_recurrent):
    """Row t of column b has the number 10 t + b everywhere."""
    numbers = 10 * torch.arange(T + 1).view(-1, 1) + torch.arange(B)
    batch = {"done": numbers > 1000, "x": numbers, "column/y": torch.arange(B)[None]}
    batch["code"] = numbers.to(torch.uint16)  # torch can do little with this dtype
    return batch | ({"core_state/0": torch.arange(B).view(1, B, 1)} if is_recurrent else {})


def parts_of(batch, passes, minibatches):
    calls = []

    def targets_of(batch):
        calls.append(batch)
        return {"goal": batch["x"][:-1] + 0.5}, {"sum": torch.tensor(1.0)}

    flags = Namespace(passes=passes, minibatches=minibatches)
    return list(parts(batch, lambda: targets_of(batch), flags)), calls


def test_one_pass_is_the_batch_itself_without_targets():
    batch = make_batch(False)
    (part,), calls = parts_of(batch, 1, 1)
    assert part.batch is batch and part == (batch, None, {}, None) and not calls


@pytest.mark.parametrize("minibatches", [1, 5, 50])
def test_each_transition_is_a_column_with_its_two_rows_and_its_target(minibatches):
    torch.manual_seed(0)
    (*found,), calls = parts_of(make_batch(False), 2, minibatches)
    count = min(minibatches, T * B)
    assert len(found) == 2 * count and len(calls) == 1
    assert [part.new_steps for part in found] == [None] * count + [0] * count
    assert all(part.sums for part in found)
    for part in found:
        now, then = part.batch["x"]
        assert torch.equal(part.batch["column/y"][0], now % 10)
        assert torch.equal(then, now + 10)
        assert part.batch["code"].tolist() == part.batch["x"].tolist()
        assert torch.equal(part.targets["goal"], now[None] + 0.5)
    passes = [torch.cat([part.batch["x"][0] for part in x]) for x in (found[:count], found[count:])]
    for seen in passes:
        assert sorted(seen.tolist()) == [10 * t + b for t in range(T) for b in range(B)]
    assert torch.equal(*passes) == (minibatches == 1)  # else the order is drawn anew


def test_a_recurrent_networks_columns_stay_whole():
    (*found,), _ = parts_of(make_batch(True), 2, 2)
    for part in found:
        columns = part.batch["core_state/0"][0, :, 0]
        assert torch.equal(part.batch["x"], 10 * torch.arange(T + 1).view(-1, 1) + columns)
        assert torch.equal(part.batch["column/y"][0], columns)
        assert torch.equal(part.targets["goal"], part.batch["x"][:-1] + 0.5)
    assert sorted(torch.cat([p.batch["x"][0] for p in found[:2]]).tolist()) == [0, 1, 2, 3]
