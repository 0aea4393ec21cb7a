# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's DynamicBatcher, as Python sees it: each caller gets the answers to its own
columns. Its rules, and what happens among threads, are tested in tests/core/batcher_test.cc."""

import pytest
import torch

from libtorchbeast import ClosedBatchingQueue, DynamicBatcher
from tests.support.compare import assert_same
from tests.support.extension import GUARD_S, answer, guarded, in_thread
from tests.support.processes import wait_for


def double(inputs, core_state):
    return {"twice": 2 * inputs["x"]}, tuple(state + 1 for state in core_state)


def request(*values):
    """(inputs, core_state): a column for each of the values."""
    x = torch.tensor([values])
    return {"x": x, "y": x.unsqueeze(-1).repeat(1, 1, 3)}, (x.view(1, -1, 1).repeat(2, 1, 2),)


def calls(batcher, *groups):
    """Starts a request for each group of values, in this order. Returns a future for each."""
    futures, waiting = [], batcher.size()
    for values in groups:
        futures.append(in_thread(batcher.compute, *request(*values)))
        waiting += len(values)
        wait_for(lambda: batcher.size() == waiting)  # noqa: B023
    return futures


def test_a_thread_that_raises_fails_its_callers_and_no_others():
    batcher = DynamicBatcher(2, 2, 1e6)

    def fail(inputs, core_state):
        raise ZeroDivisionError

    with guarded(batcher):
        futures = calls(batcher, [1], [2])
        with pytest.raises(ZeroDivisionError):
            answer(batcher, fail)
        for future in futures:
            with pytest.raises(RuntimeError, match="the batch was dropped without an answer"):
                future.result(GUARD_S)
        answering = in_thread(answer, batcher, double)
        assert batcher.compute(*request(1, 2))[0]["twice"].tolist() == [[2, 4]]
        batcher.close()
        answering.result(GUARD_S)


def test_every_caller_gets_its_own_answers_and_what_is_wrong_harms_nothing():
    with pytest.raises(ValueError, match="expected 1 <= minimum <= maximum, seen minimum 0 and"):
        DynamicBatcher(0, 4, 1.0)
    batcher = DynamicBatcher(3, 3, 1e6)
    with guarded(batcher):
        with pytest.raises(ValueError, match="a request of 4 columns: expected at most .* of 3"):
            batcher.compute(*request(1, 2, 3, 4))
        assert batcher.size() == 0
        futures = calls(batcher, [1], [2, 3])
        batch = next(batcher)
        assert len(batch) == 3
        good = double(*batch.get_inputs())
        with pytest.raises(ValueError, match=r"twice: expected 3 columns, seen int64\[1, 2\]"):
            batch.set_outputs(({"twice": good[0]["twice"][:, :2]}, good[1]))
        batch.set_outputs(good)
        for future, values in zip(futures, ([1], [2, 3]), strict=True):
            outputs, state = future.result(GUARD_S)
            assert outputs["twice"].tolist() == [[2 * value for value in values]]
            assert_same(state, (request(*values)[1][0] + 1,))
        (handed_out,) = calls(batcher, [1, 2, 3])
        batch = next(batcher)
        batcher.close()
        with pytest.raises(ClosedBatchingQueue, match="the batcher is closed"):
            handed_out.result(GUARD_S)
        batch.set_outputs(double(*batch.get_inputs()))  # too late, and harmless
