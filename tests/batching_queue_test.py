# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's BatchingQueue, as Python sees it. Its rules, its end, and what happens among
threads are tested in tests/core/queue_test.cc; extension_test.py closes one on which threads wait.
"""

import pytest
import torch

from libtorchbeast import BatchingQueue, ClosedBatchingQueue
from tests.support.rollouts import assert_equal, columns


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
    queue.close()
    with pytest.raises(ClosedBatchingQueue, match="the queue is closed"):
        queue.dequeue()
    assert queue.size() == 0 and list(queue) == []  # what was inside is dropped
    assert issubclass(ClosedBatchingQueue, RuntimeError)
