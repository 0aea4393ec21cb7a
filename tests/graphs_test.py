# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Graphs on the simulated device: the same numbers as without, and mistakes are seen."""

import contextlib
import types

import pytest
import torch
from torch import nn

from libtorchbeast import models
from libtorchbeast.accelerator import devices, graphs
from libtorchbeast.accelerator.devices import CPU, device_stream, to_host
from libtorchbeast.accelerator.graphs import CHECKED, WARM_UP, Forward, Graph
from libtorchbeast.net_check import keep_buffers
from tests.support import simulated_device as sim
from tests.support.compare import assert_same
from tests.support.simulated_device import DEVICE

pytestmark = sim.needs_simulated_device

CALLS = WARM_UP + CHECKED + 3


@pytest.fixture
def simulated():
    with sim.installed():
        yield


class Small(nn.Module):
    """A network with a buffer that each call changes. `first` is called before and `last` after
    that, with the network and its inputs, which `first` may replace."""

    def __init__(self, first=lambda net, x: x, last=lambda net, x: None):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.number, self.first, self.last = 0, first, last

    def forward(self, inputs, core_state=()):
        self.number += 1
        x = self.first(self, inputs["x"])
        self.calls += 1
        logits = self.layer(x) + self.calls
        self.last(self, x)
        state = tuple(x + logits[..., :1] for x in core_state)
        return {"policy_logits": logits, "baseline": logits.sum(-1)}, state


def inputs_of(number, device, B=3):
    x = ((torch.arange(2.0 * B).view(1, B, 2) + number) * (-1) ** number).to(device)
    return {"x": x, "reward": x[..., 0] / 7}, (x[..., :1] / 3,)


def called(function, device, calls=CALLS, sizes=(3,)):
    """What the function returns for one input after the other, on the host."""
    results = []
    with device_stream(device), torch.no_grad():
        for number in range(calls):
            given = inputs_of(number, device, sizes[number % len(sizes)])
            (result,) = to_host(function(*given))
            results.append(result)
    return results


def recorded(net):
    return Graph("it", net.forward, lambda: keep_buffers(net), DEVICE)


def test_a_graph_gives_the_functions_results_and_changes_the_same_buffers(simulated):
    """It takes new weights in the same memory; inputs of another shape are the function's."""
    net, own = Small().to(DEVICE), Small()
    function = recorded(net)
    assert_same(called(function, DEVICE), called(own, CPU))
    assert sim.counts["graphs"] == CALLS - WARM_UP
    assert net.calls.cpu() == CALLS
    for one in (net, own):
        with torch.no_grad():
            one.layer.weight.mul_(2)
    assert_same(called(function, DEVICE, 3, (2, 3)), called(own, CPU, 3, (2, 3)))
    assert sim.counts["graphs"] == CALLS - WARM_UP + 1


def test_inference_pads_to_a_few_sizes_and_returns_no_padding(simulated):
    assert graphs.sizes(9) == [3, 5, 9] and graphs.sizes(2) == [1, 2] and graphs.sizes(1) == [1]
    net, own = Small().to(DEVICE), Small()
    forward, sizes = Forward(net, DEVICE, 8), (3, 8, 5, 1, 2, 11)
    assert_same(called(forward, DEVICE, 36, sizes), called(own, CPU, 36, sizes))
    assert sim.counts["graphs"] == (6 - WARM_UP) + 2 * (12 - WARM_UP)  # of 4, 8 and 2 columns


# ================================================================= what has no graph, and mistakes
def in_the_default_stream(device, priority=0):
    stream = sim.default_stream(device)
    stream.wait_stream(sim.current_stream(device))
    return stream


reads = lambda net, x: x if x.sum().item() < 1e9 else None  # a number of the device
selects = lambda net, x: x if len((x > 0).nonzero()) < 100 else None  # a shape of the device
puts = lambda net, x: x.clone().index_put_((x > 0,), x.sum())  # as many as the device says
copies = lambda net, x: x + torch.zeros(2).to(x.device)  # what is made on the host in each call
counts = lambda net, x: x * net.number  # which depends on how often Python has run


def fails(net, x):  # its own code, where it is recorded, after it has changed its buffer
    if net.number == WARM_UP + 1 and x.device.type != "cpu":
        raise ValueError("its own error")


OTHERS = {
    "a host read": (dict(first=reads), None, "aten._local_scalar_dense.default is between the"),
    "a shape of the host": (dict(first=selects), None, "aten.nonzero.default is between the host"),
    "a shape that CUDA asks for": (dict(first=puts), None, "aten.index_put_.default is between"),
    "a copy": (dict(first=copies), None, "aten._to_copy.default is between the host and the dev"),
    "an error of its own": (dict(last=fails), None, "its own error"),
    "a host read that nobody has seen coming": (
        dict(first=reads), (graphs, "_Watch", contextlib.nullcontext),
        "not permitted when stream is capturing",
    ),
    "a number of Python": (dict(first=counts), None, "its results are not those of the same calls"),
    "the default stream": (
        {}, (graphs, "device_stream", in_the_default_stream), "cannot be recorded in the default"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_what_has_no_graph_is_called_without_one_which_is_said_once(
    simulated, monkeypatch, caplog, what
):
    parts, mistake, why = OTHERS[what]
    if mistake:
        monkeypatch.setattr(*mistake)
    net, own = Small(**parts).to(DEVICE), Small(**parts)
    seen, expected = called(recorded(net), DEVICE), called(own, CPU)
    if parts.get("first") is not counts:  # recording calls it, too
        assert_same(seen, expected)
    assert caplog.text.count("graphs: it no (") == 1 and why in caplog.text
    assert sim.counts["graphs"] <= CHECKED


MAKE = {
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "as_tensor": lambda x: torch.as_tensor(0.5, device=x.device),
    "new_tensor": lambda x: x.new_tensor([1.0]),
}


@pytest.mark.parametrize("make", MAKE)
def test_new_tensors_of_pythons_numbers_are_seen_on_the_way(make):
    """Here on a device of torch that is no memory, because the simulated one cannot copy so."""
    x = torch.zeros(3, device="meta")
    with pytest.raises(RuntimeError, match=f"{make} is between the host and the device"):
        with graphs._Watch(), graphs._WatchNew():
            MAKE[make](x)
    with graphs._Watch(), graphs._WatchNew():
        assert (x * torch.tensor(2.0)).device == x.device


def test_random_numbers_are_drawn_and_graphs_recorded_under_one_lock(simulated):
    """CUDA's generator would raise an error in a thread that draws while another records."""
    held = {"drawing": [], "recording": []}
    note = lambda what: held[what].append(devices._drawing.locked())

    def first(net, x):
        if sim._thread.graph:
            note("recording")
        return x

    acting, row = Small().to(DEVICE), {"x": torch.ones(1, 3, 2, device=DEVICE)}
    sample = lambda logits: note("drawing") or logits.argmax(dim=-1)
    acting.distribution = types.SimpleNamespace(sample=sample)
    with device_stream(DEVICE):
        to_host(models.choose_actions(acting, row, (), greedy=False))
    called(recorded(Small(first).to(DEVICE)), DEVICE)
    assert held == {"drawing": [True], "recording": [True]} and not devices._drawing.locked()


def test_why_there_is_none(simulated, monkeypatch):
    flags = lambda compiles=False: types.SimpleNamespace(compile=compiles)
    make = lambda state: type("Own", (nn.Module,), {"initial_state": lambda net, size: state})()
    net, recurrent = make(()), make((torch.zeros(1, 1, 2),))
    assert graphs.why_no_update(net, DEVICE, flags()) == ""
    assert "the network is recurrent" in graphs.why_no_update(recurrent, DEVICE, flags())
    assert graphs.why_no_update(net, DEVICE, flags(True)) == "--compile is given"
    refuses = make(())
    refuses.has_graphs = False
    for one in (refuses, nn.ModuleDict({"group": refuses})):  # as in Agents
        assert graphs.why_none(one, DEVICE, flags()) == "the network has has_graphs = False"
    assert graphs.why_none(net, torch.device("mps"), flags()) == "torch has none for mps"
    monkeypatch.delattr(torch.accelerator, "Graph")  # an older torch
    assert graphs.why_none(net, DEVICE, flags()) == "torch has none for sim"
