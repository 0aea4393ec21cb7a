# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's BatchingQueue: every column once and in order, and nobody waits for ever."""

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from libtorchbeast import BatchingQueue, ClosedBatchingQueue
from tests.support.extension import GUARD_S, guarded, in_thread
from tests.support.processes import wait_for
from tests.support.rollouts import assert_equal, columns

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("seed", range(8))
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


def test_an_item_is_split_where_a_batch_ends_and_passes_whole_where_it_is_one():
    queue = BatchingQueue(4, 4)
    with guarded(queue):
        queue.enqueue(columns(range(10)))  # more than the capacity: an item is taken whole
        assert queue.size() == 10
        assert_equal(queue.dequeue(), columns(range(4)))
        assert_equal(queue.dequeue(), columns(range(4, 8)))
        queue.enqueue(columns(range(10, 12)))
        assert_equal(queue.dequeue(), columns(range(8, 12)))
        item = columns(range(4))
        queue.enqueue(item)
        whole = queue.dequeue()
        for name, tensor in item.items():
            assert whole[name].data_ptr() == tensor.data_ptr()


def test_many_producers_and_consumers_lose_and_double_nothing():
    producers, items, width, batch_size = 4, 50, 3, 5
    queue = BatchingQueue(batch_size, 20)

    def produce(number):
        for i in range(items):
            first = (number * items + i) * width
            queue.enqueue({"x": torch.arange(first, first + width).view(1, width)})

    with guarded(queue):
        consuming = [in_thread(lambda: [b["x"][0] for b in queue]) for _ in range(3)]
        for producer in [in_thread(produce, number) for number in range(producers)]:
            producer.result(GUARD_S)
        wait_for(lambda: queue.size() == 0)  # what was taken from it is a consumer's
        queue.close()
        taken = [consumer.result(GUARD_S) for consumer in consuming]
    assert all(len(batch) == batch_size for batches_ in taken for batch in batches_)
    assert sum(len(batches_) for batches_ in taken) == producers * items * width // batch_size
    everything = torch.cat([batch for batches_ in taken for batch in batches_])
    assert everything.sort().values.tolist() == list(range(producers * items * width))
    for batches_ in taken:  # each producer's in order, for whoever takes them
        for number in range(producers):
            mine = [x for x in torch.cat(batches_).tolist() if x // (items * width) == number]
            assert mine == sorted(mine)


def test_a_full_queue_makes_producers_wait():
    queue = BatchingQueue(2, 4)
    events = []

    def produce():
        queue.enqueue(columns([4]))
        events.append("enqueued")

    with guarded(queue):
        queue.enqueue(columns(range(4)))
        threads = []
        producer = in_thread(lambda: (threads.append(threading.get_native_id()), produce()))
        wait_for(lambda: producer.done() or (threads and sleeps(threads[0])))
        events.append("taken")
        queue.dequeue()
        producer.result(GUARD_S)
        assert events == ["taken", "enqueued"] and queue.size() == 3


def sleeps(thread):
    stat = Path(f"/proc/self/task/{thread}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize(
    "item, text",
    [
        ({}, "expected at least one array, seen none"),
        ({"x": torch.zeros(2, 3)}, "expected the arrays x, y; seen x"),
        (
            {"x": torch.zeros(2, 3), "z": torch.zeros(2, 3)},
            "expected the arrays x, y; seen x, z",
        ),
        (
            {"x": torch.zeros(2, 3).double(), "y": torch.zeros(2, 3, 4)},
            r"x: expected float32\[2, 1\] with any number of columns, seen float64\[2, 3\]",
        ),
        (
            {"x": torch.zeros(3, 3), "y": torch.zeros(2, 3, 4)},
            r"x: expected float32\[2, 1\] .*, seen float32\[3, 3\]",
        ),
        (
            {"x": torch.zeros(2, 3), "y": torch.zeros(2, 3, 5)},
            r"y: expected float32\[2, 1, 4\] .*, seen float32\[2, 3, 5\]",
        ),
        (
            {"x": torch.zeros(2, 3), "y": torch.zeros(2, 2, 4)},
            r"y: expected 3 columns, seen float32\[2, 2, 4\]",
        ),
        (
            {"x": torch.zeros(2), "y": torch.zeros(2, 2, 4)},
            r"expected an array \[T, B, ...\], seen float32\[2\]",
        ),
        (
            {"x": torch.zeros(2, 0), "y": torch.zeros(2, 0, 4)},
            "expected at least one column, seen none",
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
