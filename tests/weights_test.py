# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Weights on their way to actors and inference threads: whole, of one version, never torn."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from libtorchbeast import workers
from libtorchbeast.weights import NewestWeights, SharedWeights
from tests.support.memory import GUARD, MOST, memories, receive


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
    """It may even have the name of the memory's own counter."""
    net = nn.Module()
    net.register_buffer("version", torch.arange(3.0))
    weights = SharedWeights(net.state_dict(), 5)
    net.version.zero_()
    assert weights.copy_to(net) == 5
    assert net.version.tolist() == [0, 1, 2]
    weights.close()


def test_no_thread_ever_copies_a_torn_version():
    """Two threads copy while another publishes as fast as it can."""
    net, wanted = Weights(), 100
    weights = NewestWeights(net.fill(0), 0, torch.device("cpu"))
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read_versions, weights, wanted) for _ in range(2)]
        for version in itertools.count(1):
            weights.publish(net.fill(version), version)
            if all(reader.done() for reader in readers):
                break
        assert [reader.result() for reader in readers] == [wanted, wanted]
    assert weights.version == version == weights.copy_to(net.requires_grad_())
    assert_whole(net, version)
