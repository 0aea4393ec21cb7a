# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Rollouts cut into batches lose nothing; memory shared by processes is whole and never torn."""

import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from libtorchbeast import shared_memory, workers
from libtorchbeast.rollouts import batches, core_state_of, rollout_shapes
from libtorchbeast.shared_memory import SharedTensors
from libtorchbeast.weights import SharedWeights

T, LAYERS, H = 3, 2, 4
GUARD = 200.0  # seconds; against a hang only

# ===================================================================================== rollouts


def column(number):
    """What column `number` of all holds: {name: [T+1, ...] or [layers, H]}; no two are alike."""
    row = torch.arange(T + 1)
    return {
        "reward": number + row / 8,
        "frame": ((number + row)[:, None] + torch.tensor([0, 7])).to(torch.uint8),
        "done": (number + row) % 3 == 0,
        "action": 1000 * number + row,
        "core_state/0": torch.full((LAYERS, H), float(number)),
        "core_state/1": -number - torch.arange(LAYERS * H).view(LAYERS, H) / 16,
    }


def columns(numbers):
    parts = [column(number) for number in numbers]
    return {name: torch.stack([part[name] for part in parts], dim=1) for name in parts[0]}


def assert_equal(seen, expected):
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        assert seen[name].dtype == value.dtype and torch.equal(seen[name], value), name


class Source:
    """Rollouts of the given widths, whose memory is overwritten as soon as it is released."""

    def __init__(self, widths):
        self.ends = np.cumsum(widths)
        self.taken, self.released = 0, []

    def __iter__(self):
        for index, end in enumerate(self.ends):
            start = self.ends[index - 1] if index else 0
            rollout = columns(range(start, end))
            self.taken += 1
            yield rollout, lambda rollout=rollout, index=index: self._release(rollout, index)

    def _release(self, rollout, index):
        self.released.append(index)
        for tensor in rollout.values():
            tensor.fill_(1)


@pytest.mark.parametrize("seed", range(12))
def test_batches_are_the_columns_in_order_each_once(seed):
    """Also: a rollout is released once, in order, right after its last column was copied, and the
    next one is asked for only when it is needed."""
    rng = np.random.default_rng(seed)
    highest, batch_size = rng.integers(1, 9, size=2)
    widths = rng.integers(1, highest + 1, size=40)
    if seed % 3 == 0:
        widths[:] = highest  # as MonoBeast's actors have them
    source = Source(widths)
    start = 0
    for batch in batches(source, int(batch_size)):
        assert_equal(batch, columns(range(start, start + batch_size)))
        start += batch_size
        assert source.released == list(range(sum(source.ends <= start)))
        assert source.taken == 1 + sum(source.ends < start)
    assert sum(widths) - start < batch_size  # what is left does not fill a batch
    assert source.released == list(range(len(widths)))


@pytest.mark.parametrize("width, batch_size", [(1, 1), (1, 5), (7, 1), (4, 4), (4, 8), (8, 4)])
def test_batches_of_even_sizes(width, batch_size):
    source = Source([width] * 16)
    seen = [{k: v.clone() for k, v in b.items()} for b in batches(source, batch_size)]
    assert len(seen) == 16 * width // batch_size
    together = {name: torch.cat([batch[name] for batch in seen], dim=1) for name in seen[0]}
    assert_equal(together, columns(range(len(seen) * batch_size)))


def test_no_rollouts_no_batches():
    assert list(batches([], 4)) == []


def test_columns_of_a_core_state_travel_with_their_rows():
    for batch in batches(Source([3, 5, 2, 6]), 4):
        number = batch["reward"][0]
        first, second = core_state_of(batch)
        assert torch.equal(first, number.view(1, 4, 1).expand(LAYERS, 4, H))
        assert torch.equal(second[0, :, 0], -number)


@pytest.mark.parametrize("count", [0, 1, 2, 12])
def test_core_state_keeps_its_order(count):
    states = tuple(torch.full((LAYERS, 5, H), float(i)) for i in range(count))
    row = {"reward": torch.zeros(5)}
    shapes = rollout_shapes(row, states, T)
    rollout = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
    for i, state in enumerate(states):
        rollout[f"core_state/{i}"].copy_(state)
    seen = core_state_of(rollout)
    assert isinstance(seen, tuple)
    assert [int(state[0, 0, 0]) for state in seen] == list(range(count))


def test_rollout_shapes_are_of_T_plus_1_rows_and_one_state():
    row = {"frame": torch.zeros(5, 4, 8, 8, dtype=torch.uint8), "done": torch.zeros(5).bool()}
    assert rollout_shapes(row, (torch.zeros(LAYERS, 5, H),), T) == {
        "frame": ((T + 1, 5, 4, 8, 8), torch.uint8),
        "done": ((T + 1, 5), torch.bool),
        "core_state/0": ((LAYERS, 5, H), torch.float32),
    }


# ================================================================================ shared memory

SHAPES = {
    "frame": ((3, 2, 5), torch.uint8),
    "done": ((7,), torch.bool),
    "reward": ((3, 11), torch.float32),
    "half": ((5,), torch.bfloat16),
    "action": ((3, 2), torch.int64),
    "scalar": ((), torch.float64),
    "nothing": ((0, 4), torch.float32),
}


MOST = 2  # descriptors of one memory: its own, and the one that Python's mmap keeps for itself


def memories():
    """How many descriptors of shared memory this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:torchbeast" in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own descriptor
            pass
    return count


def fill(memory, number):
    for i, tensor in enumerate(memory.tensors.values()):
        tensor.fill_(number + i)


def assert_filled(memory, number):
    for i, (name, (shape, dtype)) in enumerate(SHAPES.items()):
        expected = torch.full(shape, number + i).to(dtype)
        assert memory[name].dtype == dtype and torch.equal(memory[name], expected), name


def test_shared_tensors_are_zero_separate_and_aligned():
    memory = SharedTensors(SHAPES)
    for name, (shape, dtype) in SHAPES.items():
        tensor = memory[name]
        assert tuple(tensor.shape) == shape and tensor.dtype == dtype
        assert tensor.is_contiguous() and not tensor.any()
        assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0
    fill(memory, 3)
    assert_filled(memory, 3)  # none has overwritten another
    memory.close()


def test_descriptors_are_few_whatever_the_number_of_tensors_and_are_given_back():
    before = memories()
    few, many = SharedTensors(SHAPES), None
    assert 0 < memories() - before <= MOST
    many = SharedTensors({str(i): ((2,), torch.float32) for i in range(100)})
    assert memories() - before <= 2 * MOST
    kept = many["7"]
    for memory in (few, many, few, many):  # twice is once
        memory.close()
    kept.fill_(5)  # the memory lives as long as its last tensor
    assert kept.eq(5).all()
    del kept
    assert memories() == before


def other_side(inbox, outbox, memory):
    """In a child: finds what the parent wrote, answers in the same place."""
    for message in inbox:
        number = int.from_bytes(message, "little")
        assert_filled(memory, number)
        fill(memory, number + 1)
        outbox.send_bytes(memories().to_bytes(4, "little"))


def receive(process):
    assert process.from_child.poll(GUARD), f"{process.name} says nothing"
    message = process.receive()
    assert message is not None, f"{process.name} is dead"
    assert not message.startswith(process.FAILURE), message.decode()
    return message


def test_writes_are_seen_across_a_spawned_process_in_both_directions():
    memory = SharedTensors(SHAPES)
    process = workers.Process(other_side, (memory,), name="other-side")
    try:
        for number in (1, 40, 80):
            fill(memory, number)
            process.send(number.to_bytes(4, "little"))
            assert int.from_bytes(receive(process), "little") <= MOST  # descriptors over there
            assert_filled(memory, number + 1)
    finally:
        assert process.end(GUARD) == 0
        memory.close()


def test_memory_that_cannot_be_had_is_an_error_and_leaks_no_descriptor():
    before = memories()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(OSError):
            SharedTensors({"frame": ((2**21,), torch.uint8)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert memories() == before


def test_required_bytes_cover_every_block():
    memory = SharedTensors(SHAPES)
    ends = [t.data_ptr() + t.nbytes for t in memory.tensors.values()]
    start = min(t.data_ptr() for t in memory.tensors.values() if t.numel())
    assert max(ends) - start <= shared_memory.required_bytes(SHAPES)
    memory.close()


def test_what_is_left_is_counted():
    available = shared_memory.available_bytes()
    assert available is None or available > 2**20
    before = shared_memory.descriptors_left()
    with open(os.devnull):
        assert shared_memory.descriptors_left() == before - 1


# ====================================================================================== weights


class Weights(nn.Module):
    """Parameters and buffers of several dtypes; large enough that a copy takes its time."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(250, 400) for _ in range(4)])
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(3, dtype=torch.float64))

    @torch.no_grad()
    def fill(self, number):
        for tensor in self.state_dict().values():
            tensor.fill_(number)
        return self.state_dict()


def assert_whole(net, version):
    """All tensors equal the version number."""
    for name, tensor in net.state_dict().items():
        low, high = torch.aminmax(tensor)
        assert low == high == version, f"{name} of version {version} holds {low} to {high}"


def read_versions(weights, wanted):
    """Copies until `wanted` different versions were seen; each must be whole, none older."""
    net, seen, before = Weights(), 0, -1
    deadline = time.monotonic() + GUARD
    while seen < wanted:
        version = weights.copy_to(net)
        assert version >= before
        assert_whole(net, version)
        seen += version > before
        before = version
        assert time.monotonic() < deadline, f"only {seen} versions seen"
    return seen


def reader(inbox, outbox, weights, wanted):
    outbox.send_bytes(b"ready")
    outbox.send_bytes(read_versions(weights, wanted).to_bytes(4, "little"))


def test_no_reader_ever_copies_a_torn_version():
    """A process and a thread copy while another thread publishes as fast as it can."""
    wanted = 80
    net = Weights()
    weights = SharedWeights(net.fill(0), 0)
    process = workers.Process(reader, (weights, wanted), name="reader")
    try:
        assert receive(process) == b"ready"
        with ThreadPoolExecutor(1) as pool:
            thread = pool.submit(read_versions, weights, wanted)
            version = 0
            while not (thread.done() and process.has_message()):
                version += 1
                for _ in range(3):  # some work between two updates, as a learner has
                    state_dict = net.fill(version)
                weights.publish(state_dict, version)
            assert thread.result() == wanted
        assert int.from_bytes(receive(process), "little") == wanted
        assert weights.version == version
        assert weights.copy_to(net.requires_grad_()) == version
        assert_whole(net, version)
    finally:
        process.kill()
        process.end(GUARD)
        weights.close()


def test_weights_start_with_their_version_and_give_their_memory_back():
    before = memories()
    weights = SharedWeights(Weights().fill(9), 9)
    assert memories() - before <= MOST
    net = Weights()
    assert weights.version == weights.copy_to(net) == 9
    assert_whole(net, 9)
    weights.close()
    del weights
    assert memories() == before


def test_a_networks_tensor_may_have_any_name():
    """Also that of the memory's own counter."""
    net = nn.Module()
    net.register_buffer("version", torch.arange(3.0))
    weights = SharedWeights(net.state_dict(), 5)
    net.version.zero_()
    assert weights.copy_to(net) == 5
    assert net.version.tolist() == [0, 1, 2]
    weights.close()
