# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's BatchingQueue, as Python sees it: every column once and in order, and nobody
waits for ever. Its rules are tested in tests/core/queue_test.cc."""

import itertools

import numpy as np
import pytest
import torch

from libtorchbeast import BatchingQueue, ClosedBatchingQueue
from tests.support.extension import GUARD_S, guarded, in_thread
from tests.support.rollouts import assert_equal, columns

pytestmark = pytest.mark.usefixtures("one_thread")


def test_batches_are_the_columns_in_order_each_once():
    queue = BatchingQueue(5, 7)
    ends = np.cumsum(np.random.default_rng(0).integers(1, 12, size=100))

    def produce():
        for start, end in itertools.pairwise([0, *ends.tolist()]):
            queue.enqueue(columns(range(start, end)))

    with guarded(queue):
        producer = in_thread(produce)
        for start in range(0, ends[-1] - 5 + 1, 5):
            assert_equal(queue.dequeue(), columns(range(start, start + 5)))
        producer.result(GUARD_S)
        assert queue.size() == ends[-1] % 5


def test_what_is_wrong_is_a_value_error_and_harms_nothing():
    with pytest.raises(ValueError, match="batch_size: expected at least 1, seen 0"):
        BatchingQueue(0, 4)
    queue = BatchingQueue(2, 4)
    queue.enqueue({"x": torch.zeros(2, 1), "y": torch.ones(2, 1, 4)})
    with pytest.raises(ValueError, match="expected the arrays x, y; seen x"):
        queue.enqueue({"x": torch.zeros(2, 3)})
    queue.enqueue({"x": torch.zeros(2, 1), "y": torch.ones(2, 1, 4)})
    assert_equal(queue.dequeue(), {"x": torch.zeros(2, 2), "y": torch.ones(2, 2, 4)})


def test_closing_a_queue_ends_loops_waiters_and_later_calls():
    empty, full = BatchingQueue(2, 4), BatchingQueue(2, 2)
    with guarded(empty, full):
        full.enqueue(columns(range(2)))
        loop = in_thread(lambda: [batch for batch in empty])
        waiters = [in_thread(empty.dequeue), in_thread(full.enqueue, columns([0]))]
        for queue in (empty, full, empty, full):  # twice is once
            queue.close()
        assert loop.result(GUARD_S) == []
        for waiter in waiters:
            with pytest.raises(ClosedBatchingQueue, match="the queue is closed"):
                waiter.result(GUARD_S)
    assert full.size() == 0 and list(full) == []  # what was inside is dropped
    for call in (full.dequeue, lambda: full.enqueue(columns([0]))):
        with pytest.raises(ClosedBatchingQueue):
            call()
    assert issubclass(ClosedBatchingQueue, RuntimeError)
