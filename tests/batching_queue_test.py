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


@pytest.mark.parametrize("seed", range(3))
def test_batches_are_the_columns_in_order_each_once(seed):
    rng = np.random.default_rng(seed)
    batch_size = int(rng.integers(1, 9))
    queue = BatchingQueue(batch_size, batch_size + int(rng.integers(0, 5)))
    ends = np.cumsum(rng.integers(1, 12, size=60))

    def produce():
        for start, end in itertools.pairwise([0, *ends.tolist()]):
            queue.enqueue(columns(range(start, end)))

    with guarded(queue):
        producer = in_thread(produce)
        for start in range(0, ends[-1] - batch_size + 1, batch_size):
            assert_equal(queue.dequeue(), columns(range(start, start + batch_size)))
        producer.result(GUARD_S)
        assert queue.size() == ends[-1] % batch_size


@pytest.mark.parametrize(
    "item, text",
    [
        ({}, "expected at least one array, seen none"),
        ({"x": torch.zeros(2, 3)}, "expected the arrays x, y; seen x"),
        (
            {"x": torch.zeros(2, 3).double(), "y": torch.zeros(2, 3, 4)},
            r"x: expected float32\[2, 1\] with any number of columns, seen float64\[2, 3\]",
        ),
    ],
)
def test_an_item_unlike_the_first_is_refused_and_harms_nothing(item, text):
    queue = BatchingQueue(2, 4)
    good = {"x": torch.zeros(2, 1), "y": torch.ones(2, 1, 4)}
    queue.enqueue(good)
    with pytest.raises(ValueError, match=text):
        queue.enqueue(item)
    queue.enqueue(good)
    assert_equal(queue.dequeue(), {"x": torch.zeros(2, 2), "y": torch.ones(2, 2, 4)})


@pytest.mark.parametrize(
    "sizes, text",
    [
        ((0, 4), "batch_size: expected at least 1, seen 0"),
        ((4, 3), "capacity: expected at least batch_size = 4 columns, seen 3"),
    ],
)
def test_sizes_of_a_queue_are_checked(sizes, text):
    with pytest.raises(ValueError, match=text):
        BatchingQueue(*sizes)


def test_closing_a_queue_ends_loops_waiters_and_later_calls():
    empty, full = BatchingQueue(2, 4), BatchingQueue(2, 2)
    with guarded(empty, full):
        full.enqueue(columns(range(2)))
        loop = in_thread(lambda: [batch for batch in empty])
        dequeuing = [in_thread(empty.dequeue) for _ in range(2)]
        enqueuing = [in_thread(full.enqueue, columns([0])) for _ in range(2)]
        for queue in (empty, full, empty, full):  # twice is once
            queue.close()
        assert loop.result(GUARD_S) == []
        for waiter in dequeuing + enqueuing:
            with pytest.raises(ClosedBatchingQueue, match="the queue is closed"):
                waiter.result(GUARD_S)
    assert full.size() == 0  # what was inside is dropped
    with pytest.raises(ClosedBatchingQueue):
        full.dequeue()
    with pytest.raises(ClosedBatchingQueue):
        full.enqueue(columns([0]))
    assert list(full) == []
    assert issubclass(ClosedBatchingQueue, RuntimeError)
