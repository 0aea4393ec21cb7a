# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Batches that the C++ core joins in page-locked memory: one copy to the device, and memory that
nobody overwrites or keeps."""

import gc
import types
import weakref

import pytest
import torch

from libtorchbeast import BatchingQueue, ClosedBatchingQueue, DynamicBatcher, learner
from libtorchbeast.accelerator import devices, lending
from libtorchbeast.accelerator.devices import CPU, device_stream, to_device, to_host
from libtorchbeast.loggers.timing import LEARNER_ACTIVITIES, Clock
from tests.support import simulated_device as sim
from tests.support.actors import run_of
from tests.support.compare import assert_same
from tests.support.device_life import BATCH_SIZE, Life
from tests.support.extension import GUARD_S, guarded, in_thread
from tests.support.processes import wait_for
from tests.support.rollouts import assert_equal, columns
from tests.support.simulated_device import DEVICE


@pytest.fixture
def simulated():
    with sim.installed():
        yield


def full_queue(items=(2, 3, 4)):
    """A queue with the columns 0, 1, 2, ..., which gives batches of 3."""
    queue, first = BatchingQueue(3, 9), 0
    for size in items:
        queue.enqueue(columns(range(first, first + size)))
        first += size
    return queue


def test_for_the_cpu_nothing_is_lent():
    queue = full_queue()
    assert lending.batches(queue, CPU) is queue
    batcher = DynamicBatcher(1, 8, 1e6)
    with guarded(batcher):
        asked = {"x": torch.ones(1, 2)}
        asking = in_thread(batcher.compute, asked)
        batch = next(batcher)
        rows, state = lending.Inputs(CPU).of(batch)
        batch.set_outputs((rows, state))
        asking.result(GUARD_S)
    assert rows["x"].data_ptr() == asked["x"].data_ptr() and state == ()


@sim.needs_simulated_device
def test_rollouts_are_joined_where_one_copy_brings_them_to_the_device(simulated):
    queue = full_queue()
    with device_stream(DEVICE), guarded(queue):
        batches = lending.batches(queue, DEVICE)
        on_device = []
        for number in range(3):
            batch = next(batches)
            assert isinstance(batch, devices.Slab) == (number > 0)
            on_device.append(to_device(batch, DEVICE))  # nobody waits for this copy
            assert sim.counts == {"to_device": number + 1}
        queue.close()
        assert list(batches) == []
        for number, batch in enumerate(to_host(*on_device)):
            assert_equal(batch, columns(range(3 * number, 3 * number + 3)))
        assert list(lending.batches(queue, DEVICE)) == []  # closed before the first batch


@sim.needs_simulated_device
def test_the_next_batch_is_joined_and_copied_during_an_update(simulated, monkeypatch):
    monkeypatch.setattr(learner, "threading", types.SimpleNamespace(RLock=sim.RLock))
    life, queue = Life(DEVICE, DEVICE), BatchingQueue(BATCH_SIZE, BATCH_SIZE)
    batches, clock = lending.batches(queue, DEVICE), Clock(LEARNER_ACTIVITIES)
    own = (run_of(life.learner, life.stats), batches, life.weights.publish, clock)
    sim.counts.clear()
    with guarded(queue):
        learning = in_thread(learner.learn, *own)
        queue.enqueue(life.rollouts[0])
        wait_for(lambda: life.learner.updates == 1)
        with life.learner._one_at_a_time:  # as if the other thread's update ran
            queue.enqueue(life.rollouts[1])
            wait_for(lambda: sim.counts["to_device"] == 2)
            assert queue.size() == 0 and life.learner.updates == 1
        wait_for(lambda: life.learner.updates == 2)
        queue.close()
        learning.result(GUARD_S)


def test_the_core_keeps_no_lent_memory_also_if_it_is_closed():
    shapes = {name: (tuple(x.shape), x.dtype) for name, x in columns(range(3)).items()}
    queue = full_queue([3, 1])
    with guarded(queue):
        for is_closed in (False, True):
            slab = devices.Slab(shapes, CPU)
            memory = weakref.ref(slab._memory.untyped_storage())
            waiting = in_thread(queue.dequeue, slab)
            if is_closed:
                queue.close()
                with pytest.raises(ClosedBatchingQueue):
                    waiting.result(GUARD_S)
            else:
                assert waiting.result(GUARD_S) is slab
                assert_equal(slab, columns(range(3)))
            del slab, waiting
            gc.collect()
            assert memory() is None


def test_lent_memory_that_does_not_fit_is_refused_and_nothing_is_taken():
    queue, lent = full_queue(), columns(range(3))
    done = lent["done"]
    with guarded(queue):
        for wrong, expected in ((done.byte(), r"bool\[4, 2\]"), (done.t(), "a contiguous tensor")):
            with pytest.raises(ValueError, match=f"done: expected {expected}"):
                queue.dequeue(lent | {"done": wrong})
        assert queue.size() == 9
        assert_equal(queue.dequeue(into=columns(range(6, 9))), columns(range(3)))


@sim.needs_simulated_device
def test_inputs_are_joined_where_one_copy_brings_them_to_the_device(simulated):
    batcher, inputs = DynamicBatcher(1, 8, 1e6), lending.Inputs(DEVICE)
    with device_stream(DEVICE), guarded(batcher):
        for size in (2, 4, 1, 4):
            x = torch.arange(size).view(1, size)
            asked = {"x": x, "done": x > 1}, (x.view(1, size, 1).repeat(2, 1, 2) / 4, x[..., None])
            asking = in_thread(batcher.compute, *asked)
            batch = next(batcher)
            rows, state = inputs.of(batch)
            assert sim.counts == {"to_device": 1}
            answer = to_host(rows, state)
            batch.set_outputs(answer)
            assert_same(list(asking.result(GUARD_S)), list(asked))
            sim.counts.clear()
