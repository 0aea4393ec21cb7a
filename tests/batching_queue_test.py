# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's BatchingQueue, as Python sees it. Its rules, and what happens among threads,
are tested in tests/core/queue_test.cc."""

import pytest
import torch

from libtorchbeast import BatchingQueue, ClosedBatchingQueue
from tests.support.extension import GUARD_S, guarded, in_thread
from tests.support.rollouts import assert_equal, columns

pytestmark = pytest.mark.usefixtures("one_thread")


def test_batches_are_the_columns_in_order_and_what_is_wrong_harms_nothing():
    with pytest.raises(ValueError, match="batch_size: expected at least 1, seen 0"):
        BatchingQueue(0, 4)
    queue = BatchingQueue(4, 6)
    queue.enqueue(columns(range(3)))
    with pytest.raises(ValueError, match="expected the arrays .*; seen other"):
        queue.enqueue({"other": torch.zeros(2, 3)})
    queue.enqueue(columns(range(3, 9)))
    assert queue.size() == 9
    for first in (0, 4):
        assert_equal(queue.dequeue(), columns(range(first, first + 4)))
    assert queue.size() == 1


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
