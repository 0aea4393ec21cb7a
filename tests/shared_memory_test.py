# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Memory that processes share: written by one, seen by the other, given back in the end."""

import os
import re

import pytest
import torch

from libtorchbeast import shared_memory, workers
from libtorchbeast.flags import Flags, UserError
from libtorchbeast.shared_memory import SharedTensors
from tests.support.memory import GUARD, MOST, memories, receive
from tests.support.run_files import file_size_limit

SHAPES = {
    "frame": ((3, 2, 5), torch.uint8),
    "done": ((7,), torch.bool),
    "reward": ((3, 11), torch.float32),
    "half": ((5,), torch.bfloat16),
    "action": ((3, 2), torch.int64),
    "scalar": ((), torch.float64),
    "nothing": ((0, 4), torch.float32),
}


def fill(memory, number):
    for i, tensor in enumerate(memory.tensors.values()):
        tensor.fill_(number + i)


def assert_filled(memory, number):
    for i, (name, (shape, dtype)) in enumerate(SHAPES.items()):
        expected = torch.full(shape, number + i).to(dtype)
        assert memory[name].dtype == dtype and torch.equal(memory[name], expected), name


def test_shared_tensors_are_zero_separate_aligned_and_no_larger_than_was_said():
    memory = SharedTensors(SHAPES)
    for name, (shape, dtype) in SHAPES.items():
        tensor = memory[name]
        assert tuple(tensor.shape) == shape and tensor.dtype == dtype
        assert tensor.is_contiguous() and not tensor.any()
        assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0
    fill(memory, 3)
    assert_filled(memory, 3)  # none has overwritten another
    ends = [t.data_ptr() + t.nbytes for t in memory.tensors.values()]
    start = min(t.data_ptr() for t in memory.tensors.values() if t.numel())
    assert max(ends) - start <= shared_memory.required_bytes(SHAPES)
    memory.close()


def test_descriptors_are_few_whatever_the_number_of_tensors_and_are_given_back():
    before = memories()
    few = SharedTensors(SHAPES)
    assert 0 < memories() - before <= MOST
    many = SharedTensors({str(i): ((2,), torch.float32) for i in range(100)})
    assert memories() - before <= 2 * MOST
    kept = many["7"]
    for memory in (few, many, few, many):  # twice is once
        memory.close()
    kept.fill_(5)  # the memory lives as long as its last tensor
    assert kept.eq(5).all()
    del kept
    with file_size_limit(2**20), pytest.raises(OSError):  # of memory that cannot be had, too
        SharedTensors({"frame": ((2**21,), torch.uint8)})
    assert memories() == before


def other_side(inbox, outbox, memory):
    """Runs in a child. It checks what the parent wrote and overwrites it with an answer."""
    for message in inbox:
        number = int.from_bytes(message, "little")
        assert_filled(memory, number)
        fill(memory, number + 1)
        outbox.send_bytes(memories().to_bytes(4, "little"))


def test_writes_are_seen_across_a_spawned_process_in_both_directions():
    memory = SharedTensors(SHAPES)
    process = workers.Process(other_side, (memory,), name="other-side")
    try:
        for number in (1, 40):
            fill(memory, number)
            process.send(number.to_bytes(4, "little"))
            assert int.from_bytes(receive(process), "little") <= MOST  # descriptors over there
            assert_filled(memory, number + 1)
    finally:
        assert process.end(GUARD) == 0
        memory.close()


def test_open_files_are_counted():
    def left():
        with pytest.raises(UserError, match="^--num_actors 1000000000: .* are left") as error:
            shared_memory.require_descriptors(Flags(num_actors=10**9))
        return int(re.findall("[0-9]+", str(error.value))[-1])

    before = left()
    with open(os.devnull):
        assert left() == before - 1
