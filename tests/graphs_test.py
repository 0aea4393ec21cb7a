# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Graphs on the simulated device: the same numbers as without, and mistakes are seen."""

import contextlib
import threading
import types

import pytest
import torch
from torch import nn

from libtorchbeast import models
from libtorchbeast.accelerator import devices, graphs
from libtorchbeast.accelerator.devices import CPU, own_stream, to_host
from libtorchbeast.accelerator.graphs import CHECKED, WARM_UP, Forward, Graph
from libtorchbeast.net_check import keep_buffers
from tests.support import simulated_device as sim
from tests.support.compare import assert_same
from tests.support.processes import GUARD_S
from tests.support.simulated_device import DEVICE

pytestmark = [sim.needs_simulated_device, pytest.mark.usefixtures("one_thread")]

CALLS = WARM_UP + CHECKED + 3


@pytest.fixture
def simulated():
    with sim.installed():
        yield


class Small(nn.Module):
    """A network with a buffer that each call changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs, core_state=()):
        self.calls += 1
        logits = self.layer(inputs["x"]) + self.calls
        state = tuple(x + logits[..., :1] for x in core_state)
        return {"policy_logits": logits, "baseline": logits.sum(-1)}, state


def inputs_of(number, B=3):
    x = (torch.arange(2.0 * B).view(1, B, 2) + number) * (-1) ** number
    return {"x": x, "reward": x[..., 0] / 7}, (x[..., :1] / 3,)


def called(function, device, calls=CALLS, sizes=(3,)):
    """What the function returns for one input after the other, on the host."""
    results = []
    with own_stream(device), torch.no_grad():
        for number in range(calls):
            given = inputs_of(number, sizes[number % len(sizes)])
            (result,) = to_host(function(*there_of(given, device)))
            results.append(result)
    return results


def there_of(given, device):
    rows, state = given
    return {k: v.to(device) for k, v in rows.items()}, tuple(x.to(device) for x in state)


@pytest.fixture(scope="module")
def on_the_cpu():
    """What the network returns without a graph."""
    net = Small()
    return called(net, CPU)


def recorded(net):
    return Graph("it", net.forward, lambda: keep_buffers(net), DEVICE)


def test_a_graph_gives_the_functions_results_and_changes_the_same_buffers(simulated, on_the_cpu):
    net = Small().to(DEVICE)
    assert_same(called(recorded(net), DEVICE), on_the_cpu)
    assert sim.counts["graphs"] == CALLS - WARM_UP
    assert net.calls.cpu() == CALLS


def test_a_graph_takes_new_weights_in_the_same_memory(simulated):
    net, own = Small().to(DEVICE), Small()
    function = recorded(net)
    called(function, DEVICE)
    called(own, CPU)
    for one in (net, own):
        with torch.no_grad():
            one.layer.weight.mul_(2)
    assert_same(called(function, DEVICE, 2), called(own, CPU, 2))


def test_inputs_of_another_shape_are_the_functions(simulated):
    net, own = Small().to(DEVICE), Small()
    sizes = [3] * CALLS + [2, 3]
    calls = len(sizes)
    assert_same(called(recorded(net), DEVICE, calls, sizes), called(own, CPU, calls, sizes))
    assert sim.counts["graphs"] == calls - WARM_UP - 1


def test_inference_pads_to_a_few_sizes_and_returns_no_padding(simulated):
    assert graphs.sizes(9) == [3, 5, 9] and graphs.sizes(2) == [1, 2] and graphs.sizes(1) == [1]
    net, own = Small().to(DEVICE), Small()
    forward, sizes = Forward(net, DEVICE, 8), (3, 8, 5, 1, 2, 11)
    assert_same(called(forward, DEVICE, 36, sizes), called(own, CPU, 36, sizes))
    assert sim.counts["graphs"] == (6 - WARM_UP) + 2 * (12 - WARM_UP)  # of 4, 8 and 2 columns


def test_the_backward_pass_can_be_recorded(simulated):
    def learned(net, function, device):
        results = []
        with own_stream(device):
            for number in range(CALLS):
                x = inputs_of(number)[0]["x"].to(device)
                results += to_host(function(x))
        return results

    def make(device):
        net = Small().to(device)

        def gradients(x):
            net.zero_grad(set_to_none=True)
            net.layer(x).square().sum().backward()
            return [parameter.grad for parameter in net.layer.parameters()]

        return net, gradients

    net, function = make(DEVICE)
    graph = Graph("it", function, lambda: keep_buffers(net), DEVICE)
    assert_same(learned(net, graph, DEVICE), learned(*make(CPU), CPU))
    assert sim.counts["graphs"] == CALLS - WARM_UP


# ================================================================= what has no graph, and mistakes
class Reads(Small):
    """It waits for a number of the device."""

    def forward(self, inputs, core_state=()):
        return super().forward(inputs, core_state) if inputs["x"].sum().item() < 1e9 else None


class Selects(Small):
    """Its results have a shape that only the device knows."""

    def forward(self, inputs, core_state=()):
        assert len((inputs["x"] > 0).nonzero()) < 100
        return super().forward(inputs, core_state)


class Copies(Small):
    """It makes a tensor on the host in each call."""

    def forward(self, inputs, core_state=()):
        inputs = inputs | {"x": inputs["x"] + torch.zeros(2).to(inputs["x"].device)}
        return super().forward(inputs, core_state)


class Fails(Small):
    """Its own code raises an error where it is recorded, after it has changed its buffer."""

    number = 0

    def forward(self, inputs, core_state=()):
        self.number += 1
        results = super().forward(inputs, core_state)
        if self.number == WARM_UP + 1 and inputs["x"].device.type != "cpu":
            raise ValueError("its own error")
        return results


class Counts(Small):
    """Its numbers depend on how often Python has run."""

    number = 0

    def forward(self, inputs, core_state=()):
        self.number += 1
        return super().forward({"x": inputs["x"] * self.number}, core_state)


def in_the_default_stream(device, priority=0):
    stream = sim.default_stream(device)
    stream.wait_stream(sim.current_stream(device))
    return stream


OTHERS = {
    "a host read": (Reads, None, "aten._local_scalar_dense.default is between the host and the"),
    "a shape of the host": (Selects, None, "aten.nonzero.default is between the host and the"),
    "a copy": (Copies, None, "aten._to_copy.default is between the host and the device"),
    "an error of its own": (Fails, None, "its own error"),
    "a host read that nobody has seen coming": (
        Reads, (graphs, "_Watch", contextlib.nullcontext), "not permitted when stream is capturing"
    ),
    "a number of Python": (Counts, None, "its results are not those of the same calls without one"),
    "the default stream": (
        Small, (graphs, "own_stream", in_the_default_stream), "cannot be recorded in the default"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_what_has_no_graph_is_called_without_one_which_is_said_once(
    simulated, monkeypatch, caplog, what
):
    kind, mistake, why = OTHERS[what]
    if mistake:
        monkeypatch.setattr(*mistake)
    net, own = kind().to(DEVICE), kind()
    seen, expected = called(recorded(net), DEVICE), called(own, CPU)
    if kind is not Counts:  # recording calls it, too
        assert_same(seen, expected)
    assert caplog.text.count("graphs: it no (") == 1 and why in caplog.text
    assert sim.counts["graphs"] <= CHECKED


def test_new_tensors_of_pythons_numbers_are_seen_on_the_way():
    """Here on a device of torch that is no memory, because the simulated one cannot copy so."""
    x, made = torch.zeros(3, device="meta"), "is between the host and the device"
    for make in (
        lambda: torch.tensor([1.0, 2.0], device="meta"),
        lambda: torch.as_tensor(0.5, device="meta"),
        lambda: x.new_tensor([1.0]),
    ):
        with pytest.raises(RuntimeError, match=made), graphs._Watch(), graphs._WatchNew():
            make()
    with graphs._Watch(), graphs._WatchNew():
        assert (x * torch.tensor(2.0)).device == x.device


def test_no_thread_draws_random_numbers_while_another_records(simulated, monkeypatch):
    """CUDA's generator would raise an error in the thread that draws."""
    begun, errors = threading.Event(), []

    class Lock:  # says when the other thread is waiting for it, or has it
        own = threading.Lock()

        def __enter__(self):
            if threading.current_thread() is drawer:
                begun.set()
            self.own.acquire()

        def __exit__(self, *error):
            self.own.release()

    def draw():
        with own_stream(DEVICE):
            row = {"x": torch.ones(1, 3, 2, device=DEVICE)}
            to_host(models.choose_actions(acting, row, (), greedy=False))

    def sample(logits):
        errors.extend(["drawn while a graph is recorded"] * (not lock.own.locked()))
        begun.set()
        return logits.argmax(dim=-1)

    class Waits(Small):
        def forward(self, inputs, core_state=()):
            if sim._thread.graph:
                errors.extend(["recorded without the lock"] * (not lock.own.locked()))
                drawer.start()
                assert begun.wait(GUARD_S)
            return super().forward(inputs, core_state)

    drawer, lock, acting = threading.Thread(target=draw), Lock(), Small().to(DEVICE)
    acting.distribution = types.SimpleNamespace(sample=sample)
    monkeypatch.setattr(devices, "_drawing", lock)
    called(recorded(Waits().to(DEVICE)), DEVICE)
    drawer.join()
    assert begun.is_set() and not errors


def test_why_there_is_none(simulated, monkeypatch):
    flags = lambda compiles=False: types.SimpleNamespace(compile=compiles)
    make = lambda state, **own: types.SimpleNamespace(initial_state=lambda batch_size: state, **own)
    net, recurrent = make(()), make((torch.zeros(1, 1, 2),))
    assert graphs.why_no_update(net, DEVICE, flags()) == ""
    assert "the network is recurrent" in graphs.why_no_update(recurrent, DEVICE, flags())
    assert graphs.why_no_update(net, DEVICE, flags(True)) == "--compile is given"
    refuses = make((), has_graphs=False)
    assert graphs.why_none(refuses, DEVICE, flags()) == "the network has has_graphs = False"
    assert graphs.why_none(net, torch.device("mps"), flags()) == "torch has none for mps"
    monkeypatch.delattr(torch.accelerator, "Graph")  # an older torch
    assert graphs.why_none(net, DEVICE, flags()) == "torch has none for sim"
