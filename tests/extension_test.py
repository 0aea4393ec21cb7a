# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension as Python sees it: arrays, queues, batches, and streams to real servers."""

import contextlib
import copy
import gc
import itertools
import math
import re
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

import atari_wrappers
import polybeast
from libtorchbeast import (
    _C,
    ActorPool,
    BatchingQueue,
    ClosedBatchingQueue,
    DynamicBatcher,
    StreamError,
    describe,
    models,
)
from libtorchbeast.devices import to_host
from libtorchbeast.environment import Environment
from libtorchbeast.learner import Learner
from libtorchbeast.loggers.timing import INFERENCE_ACTIVITIES, Clock
from libtorchbeast.rollouts import batches, core_state_of
from libtorchbeast.rpcenv.client import spec_of
from libtorchbeast.rpcenv.mock import make_mock
from libtorchbeast.rpcenv.server import Server, stream_seed
from libtorchbeast.run import Run
from libtorchbeast.weights import NewestWeights
from tests.compare import assert_same
from tests.envs import BreakingCatch, Catch, Sampled
from tests.models_test import CLOSE, A, Counting, OnesNet, make_actor, make_flags, make_rollouts
from tests.processes import ROOT, wait_for
from tests.rollouts_test import assert_equal, columns

GUARD_S = 60.0  # no test depends on it: it only ends one that hangs
T = 5
exchange = _C.exchange


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Of torch's: what is computed here is small, and others may need the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextlib.contextmanager
def guarded(*closables):
    """Closes them in the end; and should the test hang, so that what waits at them fails."""
    close = lambda: [closable.close() for closable in closables]
    timer = threading.Timer(GUARD_S, close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        close()


def in_thread(function, *args):
    """Runs it and returns a future that raises what it raised."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *args)
    finally:
        pool.shutdown(wait=False)


# ======================================================================================= arrays
DTYPES = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 "
    "complex32 complex64 complex128"
).split()


def numbers(dtype, shape=(2, 3, 4)):
    """A tensor of random bytes; a bool's are 0 and 1."""
    count, high = math.prod(shape), 2 if dtype == torch.bool else 256
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    data = np.random.default_rng(0).integers(0, high, count * dtype.itemsize, np.uint8)
    return torch.from_numpy(data).view(dtype).view(shape)


def bytes_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4), (), (1,), (0,), (3, 0, 2), (1, 1, 1)], ids=str)
def test_a_tensor_passes_as_it_is_and_without_a_copy(dtype, shape):
    tensor = numbers(dtype, shape)
    seen = exchange(tensor)
    assert type(seen) is torch.Tensor and seen.is_contiguous()
    assert (seen.dtype, seen.shape) == (dtype, tensor.shape)
    assert bytes_of(seen) == bytes_of(tensor)
    assert seen.data_ptr() == tensor.data_ptr()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES], ids=str)
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.permute(2, 0, 1),
        lambda t: t[:, ::2],
        lambda t: t[..., 1],
        lambda t: t[:1].expand(5, 3, 4),
        lambda t: t[1, 2, 3].expand(2, 2),
        lambda t: t.as_strided((3, 3), (1, 1)),
        lambda t: t.unsqueeze(0).to(memory_format=torch.channels_last),
    ],
    ids="permuted every-second selected expanded scalar-expanded overlapping channels-last".split(),
)
def test_what_is_not_contiguous_is_copied(dtype, change):
    tensor = change(numbers(dtype))
    assert not tensor.is_contiguous()
    seen = exchange(tensor)
    assert seen.is_contiguous() and seen.data_ptr() != tensor.data_ptr()
    assert (seen.dtype, seen.shape) == (dtype, tensor.shape)
    assert bytes_of(seen) == bytes_of(tensor)


def test_a_view_into_the_middle_is_not_copied():
    tensor = torch.arange(24).view(4, 6)
    seen = exchange(tensor[1:3])
    assert seen.data_ptr() == tensor.data_ptr() + 6 * 8
    seen[0, 0] = -1
    assert tensor[1, 0] == -1


@pytest.mark.parametrize("name", [n for n in DTYPES if n not in ("bfloat16", "complex32")])
def test_numpys_arrays_pass_too(name):
    array = numbers(getattr(torch, name)).numpy()
    seen = exchange(array)
    assert seen.data_ptr() == array.ctypes.data
    assert bytes_of(seen) == array.tobytes()
    backwards = array[::-1, :, ::-2]  # negative strides, which torch itself does not have
    seen = exchange(backwards)
    assert seen.shape == backwards.shape and bytes_of(seen) == backwards.tobytes()
    scalar = np.array(array[1, 2, 3])
    assert bytes_of(exchange(scalar)) == scalar.tobytes()
    assert exchange(array[:, :0]).shape == (2, 0, 4)


@pytest.mark.parametrize("kind", [3, 11], ids=["CUDA", "ROCm"])
def test_page_locked_memory_is_the_hosts(kind):
    """As torch describes what `to_host` gives; there need not be a GPU for it."""
    tensor = torch.arange(6)

    class Pinned:
        __dlpack__ = tensor.__dlpack__

        def __dlpack_device__(self):
            return kind, 0

    assert exchange(Pinned()).data_ptr() == tensor.data_ptr()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_comes_from_a_gpu_passes():
    (outputs,) = to_host({"action": torch.arange(6, device="cuda")})
    assert outputs["action"].is_pinned() and exchange(outputs["action"]).tolist() == [*range(6)]


class Memory(bytearray):
    """Can be watched."""


@pytest.mark.parametrize("contiguous", [True, False])
def test_memory_lives_as_long_as_its_last_user_and_no_longer(contiguous):
    memory = Memory(range(200))
    alive = weakref.ref(memory)
    array = np.frombuffer(memory, np.uint8)[:: 1 if contiguous else 2]
    seen = exchange(array)
    del memory, array
    gc.collect()
    assert (alive() is not None) == contiguous  # a copy does not need it
    assert seen.tolist() == list(range(0, 200, 1 if contiguous else 2))
    del seen
    gc.collect()
    assert alive() is None


def test_memory_of_tensors_is_given_back():
    """Of those in a queue that is closed, of those taken, and of a batcher's."""
    memory = [Memory(b"\1" * 8) for _ in range(4)]
    alive = [weakref.ref(m) for m in memory]
    items = [{"x": np.frombuffer(m, np.uint8).reshape(1, 8)} for m in memory]
    queue = BatchingQueue(8, 100)
    for item in items:
        queue.enqueue(item)
    del memory, items, item
    taken = queue.dequeue()
    gc.collect()
    assert all(a() is not None for a in alive)
    queue.close()
    gc.collect()
    assert [a() is not None for a in alive] == [True, False, False, False]
    del queue
    assert taken["x"].tolist() == [[1] * 8]
    del taken
    gc.collect()
    assert alive[0]() is None


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: [1, 2], TypeError, "array: expected a tensor or an array, seen <class 'list'>"),
        (lambda: None, TypeError, "array: expected a tensor or an array, seen <class 'NoneType'>"),
        (lambda: 3.5, TypeError, "array: expected a tensor or an array, seen <class 'float'>"),
        (lambda: torch.zeros(2, device="meta"), (ValueError, BufferError), "meta"),
        (lambda: torch.zeros(2, requires_grad=True), (ValueError, BufferError), "gradient.*detach"),
        (lambda: torch.zeros(2, dtype=torch.cfloat).conj(), (ValueError, BufferError), "conj"),
        (lambda: np.array(["a"]), (ValueError, BufferError), "DLPack"),
        (lambda: np.zeros(2, ">i4"), (ValueError, BufferError), "DLPack"),
    ],
)
def test_what_cannot_pass_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        exchange(make())


def test_an_error_names_the_array():
    queue = BatchingQueue(1, 1)
    with pytest.raises(TypeError, match="^reward: expected a tensor or an array, seen .*'int'"):
        queue.enqueue({"frame": torch.zeros(1, 1), "reward": 1})
    assert queue.size() == 0


# ======================================================================================== queue
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


# ====================================================================================== batcher
def answer(batcher, net, sizes=None):
    """An inference thread: net(inputs, core_state) gives the outputs of each batch."""
    for batch in batcher:
        if sizes is not None:
            sizes.append(len(batch))
        batch.set_outputs(net(*batch.get_inputs()))


def double(inputs, core_state):
    return {"twice": 2 * inputs["x"]}, tuple(state + 1 for state in core_state)


def request(*values):
    """(inputs, core_state): a column for each of the values."""
    x = torch.tensor([values])
    return {"x": x, "y": x.unsqueeze(-1).repeat(1, 1, 3)}, (x.view(1, -1, 1).repeat(2, 1, 2),)


@pytest.mark.parametrize("minimum, maximum", [(1, 3), (1, 64), (6, 12), (64, 64)])
def test_every_caller_gets_the_answers_to_its_own_columns(minimum, maximum):
    batcher = DynamicBatcher(minimum, maximum, 1.0)
    sizes = []

    def call(number):
        for i in range(60):
            values = [1000 * number + 10 * i + k for k in range(1 + (number + i) % 3)]
            inputs, state = request(*values)
            outputs, after = batcher.compute(inputs, state)
            assert outputs["twice"].tolist() == [[2 * v for v in values]]
            assert_same(after, (state[0] + 1,))

    with guarded(batcher):
        answering = [in_thread(answer, batcher, double, sizes) for _ in range(2)]
        for caller in [in_thread(call, number) for number in range(5)]:
            caller.result(GUARD_S)
        batcher.close()
        for thread in answering:
            thread.result(GUARD_S)
    assert sum(sizes) == sum(1 + (n + i) % 3 for n in range(5) for i in range(60))
    assert max(sizes) <= maximum


def calls(batcher, *groups):
    """Requests of the groups' values that wait in this order; one future for each."""
    futures, waiting = [], batcher.size()
    for values in groups:
        futures.append(in_thread(batcher.compute, *request(*values)))
        waiting += len(values)
        wait_for(lambda: batcher.size() == waiting)  # noqa: B023
    return futures


def test_a_batch_is_the_oldest_requests_side_by_side_never_split():
    batcher = DynamicBatcher(1, 5, 1e6)
    with guarded(batcher):
        futures = calls(batcher, [1, 2], [3], [4, 5, 6], [7])
        sizes = []
        for expected in ([1, 2, 3], [4, 5, 6, 7]):
            batch = next(batcher)
            sizes.append(len(batch))
            inputs, (state,) = batch.get_inputs()
            assert inputs["x"].tolist() == [expected]
            assert inputs["y"].tolist() == [[[v] * 3 for v in expected]]
            assert state.tolist() == [[[v] * 2 for v in expected]] * 2
            batch.set_outputs(double(inputs, (state,)))
        assert sizes == [3, 4]
        seen = [future.result(GUARD_S)[0]["twice"].tolist() for future in futures]
    assert seen == [[[2, 4]], [[6]], [[8, 10, 12]], [[14]]]


def test_a_batch_waits_for_the_minimum():
    """However long: the timeout is a quarter of an hour."""
    batcher = DynamicBatcher(4, 8, 1e6)
    with guarded(batcher):
        taking = in_thread(lambda: next(batcher))
        futures = calls(batcher, [1], [2, 3])
        assert not taking.done()
        futures += [in_thread(batcher.compute, *request(4))]
        batch = taking.result(GUARD_S)
        assert len(batch) == 4
        batch.set_outputs(double(*batch.get_inputs()))
        assert [future.result(GUARD_S)[0]["twice"].shape[1] for future in futures] == [1, 2, 1]


def test_a_batch_does_not_wait_longer_than_the_timeout():
    batcher = DynamicBatcher(1000, 1000, 20.0)
    with guarded(batcher):
        answering = in_thread(answer, batcher, double)
        assert batcher.compute(*request(7))[0]["twice"].tolist() == [[14]]
        batcher.close()
        answering.result(GUARD_S)


def test_a_request_alone_is_not_copied():
    batcher = DynamicBatcher(1, 8, 1e6)
    inputs, state = request(1, 2)
    with guarded(batcher):
        future = in_thread(batcher.compute, inputs, state)
        batch = next(batcher)
        seen, (seen_state,) = batch.get_inputs()
        assert seen["y"].data_ptr() == inputs["y"].data_ptr()
        assert seen_state.data_ptr() == state[0].data_ptr()
        batch.set_outputs(({"z": seen["y"]}, ()))
        outputs, after = future.result(GUARD_S)
        assert outputs["z"].data_ptr() == inputs["y"].data_ptr() and after == ()


@pytest.mark.parametrize("how", ["dropped", "the thread raised"])
def test_a_batch_without_an_answer_fails_its_callers_and_no_others(how):
    batcher = DynamicBatcher(2, 2, 1e6)

    def drop(inputs, core_state):
        raise ZeroDivisionError

    with guarded(batcher):
        futures = calls(batcher, [1], [2])
        if how == "dropped":
            batch = next(batcher)
            batch.get_inputs()
            del batch
        else:
            with pytest.raises(ZeroDivisionError):
                answer(batcher, drop)
        for future in futures:
            with pytest.raises(RuntimeError, match="the batch was dropped without an answer"):
                future.result(GUARD_S)
        answering = in_thread(answer, batcher, double)
        assert batcher.compute(*request(1, 2))[0]["twice"].tolist() == [[2, 4]]
        batcher.close()
        answering.result(GUARD_S)


def test_outputs_are_checked_and_may_then_be_given_again():
    batcher = DynamicBatcher(3, 3, 1e6)
    with guarded(batcher):
        futures = calls(batcher, [1], [2, 3])
        batch = next(batcher)
        good = double(*batch.get_inputs())
        with pytest.raises(
            ValueError, match=r"outputs, twice: expected 3 columns, seen int64\[1, 2\]"
        ):
            batch.set_outputs(({"twice": good[0]["twice"][:, :2]}, good[1]))
        with pytest.raises(ValueError, match=r"outputs, core_state: expected 3 columns, seen"):
            batch.set_outputs((good[0], (good[1][0][:, :1],)))
        with pytest.raises(ValueError, match=r"expected an array \[T, B, ...\], seen int64\[3\]"):
            batch.set_outputs(({"twice": good[0]["twice"][0]}, good[1]))
        batch.set_outputs(good)
        with pytest.raises(ValueError, match="the batch has its outputs already"):
            batch.set_outputs(good)
        assert [f.result(GUARD_S)[0]["twice"].tolist() for f in futures] == [[[2]], [[4, 6]]]


@pytest.mark.parametrize(
    "inputs, text",
    [
        (request(1, 2, 3, 4, 5), "a request of 5 columns: expected at most the maximum of 4"),
        (({}, ()), "expected at least one array, seen none"),
        ((request(1)[0], ()), "expected the arrays x, y, core_state; seen x, y"),
        (({"x": request(1)[0]["x"]}, request(1)[1]), "expected the arrays x, y, core_state; seen"),
        (
            (request(1)[0] | {"x": torch.zeros(1, 1)}, request(1)[1]),
            r"x: expected int64\[1, 1\] with any number of columns, seen float32\[1, 1\]",
        ),
        (
            (request(1)[0], request(1, 2)[1]),
            r"core_state: expected 1 columns, seen int64\[2, 2, 2\]",
        ),
    ],
)
def test_a_request_unlike_the_first_is_refused_and_harms_nothing(inputs, text):
    batcher = DynamicBatcher(1, 4, 1.0)
    with guarded(batcher):
        answering = in_thread(answer, batcher, double)
        batcher.compute(*request(1))
        with pytest.raises(ValueError, match=text):
            batcher.compute(*inputs)
        assert batcher.size() == 0
        batcher.compute(*request(1, 2, 3, 4))
        batcher.close()
        answering.result(GUARD_S)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((0, 4, 1.0), "expected 1 <= minimum <= maximum, seen minimum 0 and maximum 4"),
        ((5, 4, 1.0), "expected 1 <= minimum <= maximum, seen minimum 5 and maximum 4"),
        ((1, 4, -1.0), "timeout: expected at least 0, seen -1000 us"),
    ],
)
def test_sizes_of_a_batcher_are_checked(arguments, text):
    with pytest.raises(ValueError, match=text):
        DynamicBatcher(*arguments)


def test_closing_a_batcher_fails_callers_also_of_batches_handed_out():
    batcher = DynamicBatcher(1, 2, 1e6)
    with guarded(batcher):
        handed_out = calls(batcher, [1], [2])
        batch = next(batcher)
        waiting = calls(batcher, [3])
        batcher.close()
        batcher.close()  # twice is once
        for future in handed_out + waiting:
            with pytest.raises(ClosedBatchingQueue, match="the batcher is closed"):
                future.result(GUARD_S)
        batch.set_outputs(double(*batch.get_inputs()))  # too late, and harmless
        assert list(batcher) == [] and batcher.size() == 0
        with pytest.raises(ClosedBatchingQueue):
            batcher.compute(*request(1))


def test_closing_a_batcher_ends_loops():
    batcher = DynamicBatcher(1, 2, 1e6)
    with guarded(batcher):
        loops = [in_thread(lambda: list(batcher)) for _ in range(2)]
        batcher.close()
        assert [loop.result(GUARD_S) for loop in loops] == [[], []]


# In a process of its own: one that waits for the GIL for ever cannot be ended from inside.
WAITS = """
import sys, threading
import torch
from libtorchbeast._C import BatchingQueue, DynamicBatcher, ClosedBatchingQueue

x = {"x": torch.zeros(1, 1)}
queue, full, batcher = BatchingQueue(1, 1), BatchingQueue(1, 1), DynamicBatcher(1, 1, 1e6)
idle = DynamicBatcher(2, 2, 1e6)
full.enqueue(x)
waits = [queue.dequeue, lambda: next(queue), lambda: full.enqueue(x), lambda: next(idle),
         lambda: idle.compute(x), lambda: batcher.compute(x)]
ended = []

def run(wait):
    try:
        wait()
    except (ClosedBatchingQueue, StopIteration):
        ended.append(wait)

threads = [threading.Thread(target=run, args=(wait,)) for wait in waits]
for thread in threads:
    thread.start()
batch = next(batcher)  # so that one waits for an answer
for i in range(100_000):  # Python goes on, also in this thread
    queue.size(), full.size(), batcher.size()
assert not ended
for closable in (queue, full, batcher, idle):
    closable.close()
for thread in threads:
    thread.join()
assert len(ended) == len(waits)
print("ended")
"""


def test_whatever_waits_lets_other_threads_run():
    command = [sys.executable, "-c", WAITS]
    printed = subprocess.check_output(command, cwd=ROOT, text=True, timeout=GUARD_S)
    assert printed == "ended\n"


# ================================================================================= pool: rollouts
class Varied(Sampled):
    """Observations of every dtype, nested, without axes, without elements."""

    kinds = "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split()
    action_space = Discrete(A)

    def __init__(self):
        boxes = {kind: Box(0, 100, (2, 3), getattr(np, kind)) for kind in self.kinds}
        inner = {"x": Box(-9, 9, (), np.float64), "none": Box(0, 1, (0, 4), np.float32)}
        flags = Box(0, 1, (5,), bool)
        parts = {**boxes, "level": Discrete(7), "flags": flags, "inner": Dict(inner)}
        self.observation_space = Dict(parts)


class Numbered(Counting):
    """Shows its own number, which no other has, in its observation; has a random reward."""

    observation_space = Box(0, 1e6, (2,), np.float64)
    numbers = itertools.count()

    def __init__(self):
        super().__init__()
        self._number = next(self.numbers)

    def _show(self, action):
        return np.array([self._number, self._count], np.float64)


def make_cartpole():
    return gymnasium.make("CartPole-v1")


def by_rule(inputs, core_state=()):
    """Outputs that depend on the row only; [1, N] each."""
    number = 7 * inputs["episode_step"].long() + inputs["last_action"] + inputs["done"].long()
    outputs = {
        "action": number % 2,
        "policy_logits": number.unsqueeze(-1) * torch.tensor([0.1, -0.3]),
        "baseline": inputs["episode_return"] / 3,
    }
    return outputs, core_state


@contextlib.contextmanager
def serving(create_env, address, num_envs=2, seed=0, **options):
    make_environment = lambda: Environment(create_env, num_envs, "Test-v0")
    server = Server(make_environment, str(address), seed=seed, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path}/s"


@contextlib.contextmanager
def playing(addresses, net, queue, core_state=(), batcher=None, infer=answer, T=T, **options):
    """A pool, and a thread that runs `infer(batcher, net)`. If that fails, so does the test."""
    batcher = batcher or DynamicBatcher(1, 64, 20.0)

    def infer_and_close():
        try:
            infer(batcher, net)
        finally:
            queue.close()  # who waits there need not wait any more

    with guarded(batcher, queue):
        spec = describe(addresses[0])
        pool = ActorPool(T, queue, batcher, addresses, core_state, spec, **options)
        with guarded(pool):
            inference = in_thread(infer_and_close)
            try:
                yield pool
            finally:
                pool.close()
                inference.result(GUARD_S)


def expected_rollouts(create_env, num_envs, seed, count, net=by_rule):
    """What stepping the environments here gives, as `count` rollouts."""
    rows = []
    with contextlib.closing(Environment(create_env, num_envs)) as environment:
        row = environment.initial(seed)
        for t in range(count * T + 1):
            row = {name: torch.from_numpy(array.copy()) for name, array in row.items()}
            outputs, _ = net({name: tensor.unsqueeze(0) for name, tensor in row.items()})
            rows.append(row | {name: tensor.squeeze(0) for name, tensor in outputs.items()})
            row = environment.step(rows[t]["action"].numpy())
    return [
        {name: torch.stack([row[name] for row in rows[k * T : k * T + T + 1]]) for name in rows[0]}
        for k in range(count)
    ]


@pytest.mark.parametrize("create_env", [Catch, make_cartpole, Counting, Varied])
def test_rollouts_are_what_stepping_the_environments_gives(address, create_env):
    queue = BatchingQueue(3, 3)
    expected = expected_rollouts(create_env, 3, stream_seed(11, 0), 20)
    with serving(create_env, address, 3, seed=11), playing([address], by_rule, queue) as pool:
        for rollout in expected:
            assert_same(queue.dequeue(), rollout)
        assert pool.take_events() == []
        (status,) = pool.status()
        assert (status.address, status.connected, status.failures) == (address, True, 0)
        assert status.last_error == ""
    done = torch.stack([rollout["done"] for rollout in expected])
    assert done[1:, 0].any() and done[:, 1:].any()  # the interesting cases were there


def breakout(num_envs):
    return atari_wrappers.make_atari_vector("BreakoutNoFrameskip-v4", num_envs)


def pong(num_envs):
    return atari_wrappers.make_atari_vector("PongNoFrameskip-v4", num_envs, max_frames=400)


def classic_breakout(num_envs):
    return atari_wrappers.wrap_deepmind(atari_wrappers.make_atari("BreakoutNoFrameskip-v4"))


@pytest.mark.parametrize("make, count", [(breakout, 70), (pong, 45), (classic_breakout, 50)])
def test_stacks_of_frames_are_what_the_environments_stack_themselves(address, make, count):
    """Bit for bit, though only the newest frame travels: from game to game, and beyond a life."""
    queue, create_env = BatchingQueue(2, 2), lambda: make(2)
    expected = expected_rollouts(create_env, 2, stream_seed(11, 0), count)
    with serving(create_env, address, 2, seed=11), playing([address], by_rule, queue) as pool:
        description = describe(address)
        assert description.stacks == spec_of(description).stacks == {"frame": 4}
        assert description.observations == {"frame": ((4, 84, 84), "uint8")}
        for rollout in expected:
            assert_same(queue.dequeue(), rollout)
        assert pool.take_events() == []
    rows = {name: torch.cat([r[name][1:] for r in expected]) for name in expected[0]}
    new_game = rows["episode_step"] == 0
    new_life = rows["done"] & ~new_game
    assert new_game.any() and not rows["frame"][new_game][:, :3].any()
    assert new_life.any() == (make is not pong)
    assert rows["frame"][new_life][:, :3].flatten(1).any(1).all()  # the stack is kept


def test_streams_of_one_server_have_their_own_environments(address):
    queue = BatchingQueue(2, 2)
    expected = [expected_rollouts(Counting, 2, stream_seed(0, s), 10) for s in range(3)]
    with serving(Counting, address), playing([address] * 3, by_rule, queue):
        taken = [0] * 3
        while min(taken) < 10:
            rollout = queue.dequeue()
            stream = next((s for s in range(3) if same(rollout, expected[s], taken[s])), None)
            if stream is None:  # one of those that we have seen enough of
                assert max(taken) == 10
            else:
                taken[stream] += 1


def same(rollout, expected, index):
    if index == len(expected):
        return False
    return torch.equal(rollout["frame"], expected[index]["frame"])


def test_observations_of_5_mib(address):
    queue = BatchingQueue(1, 1)
    create_env = lambda: make_mock("Mock/5x1024x1024", 1)
    with serving(create_env, address, 1), playing([address], by_rule, queue, T=2):
        environment = Environment(create_env, 1)
        frames = [environment.initial(0)["frame"].copy()]
        frames += [environment.step(np.zeros(1, int))["frame"].copy() for _ in range(4)]
        for first in (0, 2):
            expected = torch.from_numpy(np.stack(frames[first : first + 3]))
            assert torch.equal(queue.dequeue()["frame"], expected)


class Slow(Catch):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


def test_where_the_time_goes_and_how_long_an_answer_takes(address):
    """Lower bounds: what else the machine does comes on top. And no second counts twice."""
    rows = 0

    def infer(batcher, net):
        nonlocal rows
        while True:
            time.sleep(0.01)  # rows wait to be taken
            try:
                batch = next(batcher)
            except StopIteration:
                return
            time.sleep(0.03)
            rows += 1
            batch.set_outputs(net(*batch.get_inputs()))

    queue, start = BatchingQueue(1, 1), time.perf_counter()
    with serving(Slow, address, 1), playing([address], by_rule, queue, infer=infer) as pool:
        for _ in range(3):
            time.sleep(0.1)
            queue.dequeue()
        pool.close()
        seconds, latencies = pool.seconds(), pool.latencies()
        lasted = time.perf_counter() - start
    names = dict(zip(polybeast.SHARES, seconds, strict=True))
    assert 15 <= rows <= 30 and sum(seconds) <= lasted
    assert names["environment"] >= (rows - 5) * 0.02  # resets take none
    assert names["inference"] >= (rows - 1) * 0.03
    assert names["batching"] > 0 and names["transport"] > 0
    assert len(latencies) == 240 and rows - 1 <= sum(latencies) <= rows
    place = lambda seconds: math.floor(8 * math.log2(seconds / 1e-6))
    assert not any(latencies[: place(0.03)])


# The initial state is not zeros, and has tensors of different kinds.
INITIAL = torch.full((1, 1, 1), 5), torch.arange(6.0).view(2, 1, 3)


def counting_net(inputs, core_state):
    """Counts the rows of each episode from 5 on, in the state; shows it, and what it was given."""
    reset = inputs["done"].view(1, -1, 1)
    after = tuple(
        torch.where(reset, initial, state) + 1
        for initial, state in zip(INITIAL, core_state, strict=True)
    )
    outputs, _ = by_rule(inputs)
    count, given = after[0].squeeze(-1), core_state[0].squeeze(-1)
    return outputs | {"count": count, "given": given}, after


def columns_of(batch):
    for b in range(batch["reward"].shape[1]):
        yield {name: tensor[:, b] for name, tensor in batch.items()}


def test_state_rows_and_rollouts_of_every_column_are_seamless(tmp_path):
    """Streams of 2, 3 and 3 environments, inference batches of several streams, learner batches of
    4 columns: for each column the state counts its episode's rows exactly, row T is row 0 of its
    next rollout bit for bit, and the rollout's state is the one given at row 0."""
    addresses = [f"unix:{tmp_path}/{i}" for i in range(2)]
    queue, sizes, mine = BatchingQueue(4, 8), [], {}
    with contextlib.ExitStack() as stack:
        for address, num_envs in zip(addresses, (2, 3), strict=True):
            stack.enter_context(serving(Numbered, address, num_envs))
        streams = [addresses[0], addresses[1], addresses[1]]
        infer = lambda batcher, net: answer(batcher, net, sizes)
        batcher = DynamicBatcher(8, 64, 20.0)
        play = playing(streams, counting_net, queue, INITIAL, batcher, infer)
        pool = stack.enter_context(play)
        while len(mine) < 8 or min(map(len, mine.values())) < 30:
            batch = queue.dequeue()
            assert batch["reward"].shape == (T + 1, 4)
            for column in columns_of(batch):
                assert column["frame"][:, 0].unique().numel() == 1  # one environment's
                mine.setdefault(int(column["frame"][0, 0]), []).append(column)
        assert pool.take_events() == []
    assert max(sizes) > 3
    for column in mine.values():
        before, given = None, int(INITIAL[0])
        for rollout in column:
            rows = {k: v for k, v in rollout.items() if not k.startswith("core_state/")}
            if before is not None:
                for name, tensor in rows.items():
                    assert bytes_of(tensor[0]) == bytes_of(before[name][-1]), name
            assert torch.equal(rollout["count"], 5 + 1 + rollout["episode_step"])
            assert torch.equal(rollout["frame"][:, 1], rollout["episode_step"].double())
            assert rollout["given"][0] == given
            assert torch.equal(rollout["given"][1:], rollout["count"][:-1])
            assert rollout["core_state/0"].tolist() == [[given]]
            expected = INITIAL[1][:, 0] + (given - 5)
            assert torch.equal(rollout["core_state/1"], expected)
            before, given = rows, int(rollout["count"][-2])
        assert any(rollout["done"][0] for rollout in column[1:])
        assert any(rollout["done"][-1] for rollout in column)


# ================================================================================= pool: failures
def test_a_server_that_ends_and_comes_back(address):
    """Whole rollouts of the old stream, then those of a new one; none of both, none in part."""
    queue = BatchingQueue(2, 2)
    expected = [expected_rollouts(Counting, 2, stream_seed(seed, 0), 100) for seed in (1, 2)]
    with serving(Counting, address, seed=1) as first, playing([address], by_rule, queue) as pool:
        seen = [queue.dequeue() for _ in range(3)]
        first.stop()
        with serving(Counting, address, seed=2):
            while not torch.equal(seen[-1]["frame"], expected[1][3]["frame"]):
                seen.append(queue.dequeue())
            of_first = len(seen) - 4
            assert_same(seen[:of_first], expected[0][:of_first])
            assert_same(seen[of_first:], expected[1][:4])
            assert seen[of_first]["done"][0].all()
            (status,) = pool.status()
            assert status.connected and status.failures >= 1
            events = pool.take_events()
            assert len(events) == status.failures and events[-1].endswith(status.last_error)
            for event in events:
                assert re.match(rf"actor 0, {address}: (UNAVAILABLE|CANCELLED): \w+", event)
            assert pool.take_events() == []
        wait_for(lambda: (queue.dequeue() if queue.size() else None, not connected(pool))[1])


def connected(pool):
    return sum(status.connected for status in pool.status())


def test_a_server_with_other_environments_is_refused_while_the_other_goes_on(tmp_path):
    addresses = [f"unix:{tmp_path}/{i}" for i in range(2)]
    queue = BatchingQueue(2, 2)
    expected = expected_rollouts(Catch, 2, stream_seed(0, 0), 20)
    with (
        serving(Catch, addresses[0]),
        serving(make_cartpole, addresses[1]),
        playing(addresses, by_rule, queue) as pool,
    ):
        for rollout in expected:
            assert_same(queue.dequeue(), rollout)
        events = []
        wait_for(lambda: events.extend(pool.take_events()) or events)
        assert events[0] == (
            f"actor 1, {addresses[1]}: FAILED_PRECONDITION: the server's environments: expected "
            "Test-v0: frame uint8[1, 10, 5], discrete actions 3, 1 frames per step; seen Test-v0: "
            "frame float32[4], discrete actions 2, 1 frames per step"
        )
        good, bad = pool.status()
        assert good.connected and good.failures == 0
        assert not bad.connected and bad.failures >= 1


def test_more_environments_than_an_inference_batch_holds_are_refused(address):
    queue = BatchingQueue(2, 2)
    batcher = DynamicBatcher(1, 4, 20.0)
    with serving(Catch, address, 5), playing([address], by_rule, queue, (), batcher) as pool:
        events = []
        wait_for(lambda: events.extend(pool.take_events()) or events)
        assert events[0] == (
            f"actor 0, {address}: FAILED_PRECONDITION: environments a stream: expected 1 to 4 (the "
            "largest inference batch), seen 5"
        )


def test_a_failing_environment_is_an_event_and_a_new_stream(address):
    queue = BatchingQueue(2, 2)
    with serving(BreakingCatch, address), playing([address], by_rule, queue) as pool:
        wait_for(lambda: queue.dequeue() and pool.status()[0].failures == 2)
        for event in pool.take_events():
            assert event.startswith(f"actor 0, {address}: INTERNAL: Traceback")
            assert "in lose_the_ball" in event
            assert event.endswith("RuntimeError: the ball has rolled under the sofa")


class Stuck(Catch):
    """The first of all stays in its third step until it may go on."""

    go_on = None
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 3 and not Stuck.stuck.is_set():
            Stuck.stuck.set()
            assert Stuck.go_on.wait(GUARD_S)
        return super().step(action)


def test_a_server_that_hangs_is_left_after_the_timeout(address):
    Stuck.stuck, Stuck.go_on = threading.Event(), threading.Event()
    queue = BatchingQueue(1, 1)
    with serving(Stuck, address, 1), playing([address], by_rule, queue, step_timeout=0.3) as pool:
        events = []
        try:
            wait_for(lambda: events.extend(pool.take_events()) or events)
            assert Stuck.stuck.is_set()
        finally:
            Stuck.go_on.set()
        late = "DEADLINE_EXCEEDED: the server took too long for one answer, more than 0.3 s"
        assert events == [f"actor 0, {address}: {late}"]
        assert queue.dequeue()["done"][0].all()


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(StreamError, match="^(UNAVAILABLE|DEADLINE_EXCEEDED): .+") as caught:
        describe(f"unix:{tmp_path}/nobody", timeout=0.5)
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize(
    "changes, state, text",
    [
        ({"action": None}, (), "expected action int64[1, 2], seen none"),
        ({"action": torch.zeros(1, 2)}, (), "expected action int64[1, 2], seen float32[1, 2]"),
        ({"action": torch.full((1, 2), 3)}, (), "expected actions from 0 to 2, seen 3"),
        ({"action": torch.full((1, 2), -1)}, (), "expected actions from 0 to 2, seen -1"),
        ({"reward": torch.zeros(1, 2)}, (), "output reward: expected a name that is not the env"),
        ({}, (torch.zeros(1, 2, 1),), "core_state: expected (), as it was before, seen (float32[1"),
    ],
)
def test_outputs_that_break_the_contract_end_the_pool(address, changes, state, text):
    """For nothing else would help. And nobody waits for ever."""
    queue = BatchingQueue(2, 2)

    def net(inputs, core_state):
        outputs = by_rule(inputs)[0] | changes
        return {k: v for k, v in outputs.items() if v is not None}, state

    with serving(Catch, address), playing([address], net, queue) as pool:
        with pytest.raises(ClosedBatchingQueue):
            queue.dequeue()
        with pytest.raises(RuntimeError, match=re.escape(text)):
            pool.take_events()


def test_outputs_that_change_their_names_or_shapes_end_the_pool(address):
    queue = BatchingQueue(2, 2)
    counter = itertools.count()

    def net(inputs, core_state):
        width = 2 if next(counter) < 3 else 4
        return by_rule(inputs)[0] | {"features": torch.zeros(1, 2, width)}, core_state

    with serving(Catch, address), playing([address], net, queue) as pool:
        with pytest.raises(ClosedBatchingQueue):
            queue.dequeue()
        with pytest.raises(RuntimeError, match=r"features float32\[1, 2, 2\]; seen .*\[1, 2, 4\]"):
            pool.take_events()


def test_a_dropped_batch_costs_its_streams_their_rollouts_and_no_more(address):
    queue, counter = BatchingQueue(2, 2), itertools.count()

    def infer(batcher, net):
        for batch in batcher:
            if next(counter) != 8:
                batch.set_outputs(net(*batch.get_inputs()))
            del batch  # or the loop would keep it until there is another

    expected = [expected_rollouts(Counting, 2, stream_seed(0, s), 3) for s in range(2)]
    with serving(Counting, address), playing([address], by_rule, queue, infer=infer) as pool:
        for rollout in [expected[0][0], *expected[1]]:
            assert_same(queue.dequeue(), rollout)
        assert pool.take_events() == [
            f"actor 0, {address}: ABORTED: the batch was dropped without an answer"
        ]


def test_a_pool_may_be_closed_twice_or_be_forgotten(address):
    spec_queue = BatchingQueue(2, 2)
    with serving(Catch, address):
        with playing([address] * 3, by_rule, spec_queue) as pool:
            spec_queue.dequeue()
            pool.close()
            pool.close()
            assert connected(pool) == 0 and pool.take_events() == []
        batcher, queue = DynamicBatcher(1, 64, 20.0), BatchingQueue(2, 2)
        inference = in_thread(answer, batcher, by_rule)
        pool = ActorPool(T, queue, batcher, [address], (), describe(address))
        queue.dequeue()
        del pool
        gc.collect()
        inference.result(GUARD_S)  # its batcher was closed


@pytest.mark.parametrize(
    "changes, text",
    [
        (dict(unroll_length=0), "unroll_length: expected at least 1, seen 0"),
        (dict(addresses=[]), "addresses: expected at least one"),
        (
            dict(initial_core_state=[torch.zeros(1, 2, 3)]),
            r"initial_core_state: expected one column, seen float32\[1, 2, 3\]",
        ),
    ],
)
def test_what_a_pool_is_made_of_is_checked(address, changes, text):
    with serving(Catch, address):
        arguments = dict(
            unroll_length=T,
            learner_queue=BatchingQueue(2, 2),
            inference_batcher=DynamicBatcher(1, 64, 20.0),
            addresses=[address],
            initial_core_state=(),
            spec=describe(address),
        )
        with pytest.raises(ValueError, match=text):
            ActorPool(**(arguments | changes))


# ============================================================================ both beasts, one loss
@pytest.mark.parametrize("lstm", [[], ["--use_lstm"]], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("batch_size", [2, 3, 4])
def test_the_same_rollouts_give_both_learners_the_same_update_bit_for_bit(lstm, batch_size):
    """MonoBeast's rollouts, through its own batches and through PolyBeast's queue."""
    actor = make_actor(OnesNet, *lstm)
    rollouts = make_rollouts(actor, 4)
    mono = batches([(rollout, lambda: None) for rollout in rollouts], batch_size)
    queue = BatchingQueue(batch_size, 100)
    for rollout in rollouts:
        queue.enqueue(rollout)
    actor.net.given = []
    flags = make_flags(*lstm)
    learners = [Learner(copy.deepcopy(actor.net), flags, torch.device("cpu"), None) for _ in "MP"]
    start = copy.deepcopy(dict(actor.net.state_dict()))
    for batch in mono:
        other = queue.dequeue()
        assert_same(other, batch)
        numbers = [
            learner.update(own, lambda weights, version: None)
            for learner, own in zip(learners, (batch, other), strict=True)
        ]
        assert_same(*numbers)
        assert numbers[0]["grad_norm"] > 0
        assert_same(*[[p.grad for p in learner.net.parameters()] for learner in learners])
        assert_same(*[learner.net.state_dict() for learner in learners])
        assert_same(*[learner.state_dict() for learner in learners])
    assert queue.size() == 12 % batch_size and learners[0].updates == 12 // batch_size
    assert not torch.equal(start["policy.weight"], learners[0].net.policy.weight)


# =========================================================================== PolyBeast's inference
class Deep(polybeast.Net):
    """Starts every episode from ones. Its weights are as large as after some training: what is
    wrong must show."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        with torch.no_grad():
            nn.init.orthogonal_(self.policy.weight, 2.0)

    def initial_state(self, batch_size):
        return tuple(torch.ones_like(state) for state in super().initial_state(batch_size))


class Flicker(Counting):
    """Counting, as images."""

    observation_space = Box(0, 255, (1, 9, 12), np.uint8)

    def _show(self, action):
        return self._rng.integers(0, 256, (1, 9, 12), np.uint8)


def poly_flags(*argv):
    flags = polybeast.make_parser().parse_args(["--env", "CartPole-v1", *argv])
    polybeast.check_flags(flags)
    return flags


@torch.no_grad()
@pytest.mark.parametrize("lstm", [[], ["--use_lstm"]], ids=["feed-forward", "lstm"])
def test_replaying_a_rollout_with_the_weights_that_made_it_reproduces_it(tmp_path, lstm):
    """Through the real inference, two streams, batches of both."""
    flags = poly_flags("--precision", "fp32", "--savedir", str(tmp_path), *lstm)
    addresses = [f"unix:{tmp_path}/{i}" for i in range(2)]
    queue, clock = BatchingQueue(2, 2), Clock(INFERENCE_ACTIVITIES)
    with contextlib.ExitStack() as stack:
        for address, num_envs in zip(addresses, (2, 4), strict=True):
            stack.enter_context(serving(Flicker, address, num_envs))
        torch.manual_seed(1)
        spec = spec_of(describe(addresses[0]))
        net, own = (models.make_net(Deep, spec, flags) for _ in range(2))
        run = Run(flags, spec, net, torch.device("cpu"))
        stack.callback(run.wakeup.close)
        weights = NewestWeights(net.state_dict(), 7, torch.device("cpu"))
        infer = lambda batcher, own: polybeast.infer(run, batcher, weights, own, clock)
        play = playing(addresses, own, queue, net.initial_state(1), infer=infer)
        pool = stack.enter_context(play)
        batches_ = [queue.dequeue() for _ in range(30)]
        assert pool.take_events() == []
    differs = 0
    for batch in batches_:
        rows = {k: v for k, v in batch.items() if not k.startswith("core_state/")}
        outputs, _ = net(rows, core_state_of(batch))
        for name in ("policy_logits", "baseline"):
            torch.testing.assert_close(batch[name], outputs[name], **CLOSE)
            assert batch[name].std() > 0.01  # else there would be nothing to compare
        assert batch["policy_version"].eq(7).all()
        assert batch["policy_version"].dtype == torch.int64
        if lstm:
            forgotten, _ = net(rows, net.initial_state(2))
            differs += not torch.allclose(forgotten["policy_logits"], batch["policy_logits"])
    assert differs > 0 or not lstm
    done = torch.cat([batch["done"] for batch in batches_], dim=1)
    assert done[0].any() and done[1:-1].any() and done[-1].any()
