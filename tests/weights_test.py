# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Weights on their way to actors and inference threads: whole, of one version, never torn."""

import ctypes
import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from libtorchbeast import workers
from libtorchbeast.accelerator.devices import CPU
from libtorchbeast.flags import UserError
from libtorchbeast.weights import NewestWeights, SharedWeights, memory_fence, shapes_of_versions
from tests.support.memory import GUARD, MOST, memories, receive

try:
    LIBATOMIC = ctypes.CDLL("libatomic.so.1")
except OSError:
    LIBATOMIC = None
needs_libatomic = pytest.mark.skipif(LIBATOMIC is None, reason="libatomic.so.1 is not installed")


class Weights(nn.Module):
    """Parameters and buffers of several dtypes; large enough that a copy takes its time."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(250, 400) for _ in range(4)])
        # It may have any name, even that of the memory's own counter.
        self.register_buffer("version", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(3, dtype=torch.float64))

    @torch.no_grad()
    def fill(self, number):
        for tensor in self.state_dict().values():
            tensor.fill_(number)
        return self.state_dict()


def assert_whole(net, version):
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
    wanted = 15
    net = Weights()
    weights = SharedWeights().begin(net.fill(0), 0)
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


def test_a_process_that_knows_the_weights_shapes_maps_them_in_any_order():
    state_dict = Weights().fill(4)
    there, here = SharedWeights().begin(state_dict, 5), SharedWeights()
    os.dup2(there._fd, here._fd)  # as a process has it that started before
    here.map(shapes_of_versions(dict(reversed(state_dict.items()))))
    net = Weights()
    assert here.copy_to(net) == 5
    assert_whole(net, 4)
    for weights in (there, here):
        weights.close()


def test_weights_start_with_their_version_and_give_their_memory_back():
    before = memories()
    weights = SharedWeights().begin(Weights().fill(9), 9)
    assert memories() - before <= MOST
    net = Weights()
    assert weights.version == weights.copy_to(net) == 9
    assert_whole(net, 9)
    weights.close()
    del weights
    assert memories() == before


@needs_libatomic
def test_the_fence_of_a_processor_that_reorders_stores_is_libatomics(monkeypatch):
    calls = []

    def fence(order):
        calls.append(order)
        LIBATOMIC.atomic_thread_fence(order)

    libraries = {"libatomic.so.1": SimpleNamespace(atomic_thread_fence=fence)}
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(ctypes, "CDLL", libraries.__getitem__)
    monkeypatch.setattr("libtorchbeast.weights.memory_fence", memory_fence.__wrapped__)
    memory_order_seq_cst = 5
    weights = SharedWeights().begin({}, 1)
    calls.clear()
    weights.publish({}, 2)
    assert calls == [memory_order_seq_cst] * 2  # after the weights, and after their number
    calls.clear()
    assert weights.copy_to(nn.Module()) == 2
    assert calls == [memory_order_seq_cst] * 2  # before the weights, and after them
    weights.close()


def test_without_a_fence_weights_are_refused_with_the_package_to_install(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(sys, "platform", "linux")
    for library in (missing, lambda name: object()):  # or the function is not in it
        monkeypatch.setattr(ctypes, "CDLL", library)
        with pytest.raises(UserError, match=r"on riscv64 weights .*apt-get install libatomic1\)"):
            memory_fence("riscv64")
    for machine in ("x86_64", "AMD64", "i686"):  # they keep the order
        assert memory_fence(machine)() is None


@pytest.mark.parametrize("first", [6, 7])
@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_weights_that_are_published_once_are_in_every_version(kind, first):
    """As those of a frozen part, which later versions leave out."""
    own = {k: v.clone() for k, v in Weights().fill(1).items()}
    shared = SharedWeights().begin
    own_kind = {"processes": shared, "threads": partial(NewestWeights, device=CPU)}[kind]
    weights = own_kind(own, first)
    moving = [name for name in own if not name.startswith("layers.0.")]
    for version in (first + 1, first + 2, first + 3):
        weights.publish({name: own[name].fill_(version) for name in moving}, version)
        for name in moving:
            own[name].fill_(-1)  # the copy does not change afterwards
        net = Weights()
        assert weights.copy_to(net) == version
        for name, tensor in net.state_dict().items():
            assert tensor.eq(version if name in moving else 1).all(), name
    if kind == "processes":
        weights.close()
