# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The simulated device itself: it computes what the CPU does, and sees each kind of disorder."""

import gc
import threading

import pytest
import torch
from torch import nn

from tests.support import simulated_device as sim
from tests.support.simulated_device import DEVICE, OTHER

pytestmark = [sim.needs_simulated_device, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def installed():
    with sim.installed():
        yield


def pinned(*values):
    memory = torch.empty(len(values), pin_memory=True)
    return memory.copy_(torch.tensor(values))


def test_it_is_torchs_accelerator_only_while_it_is_installed():
    for _ in range(2):
        with sim.installed():
            assert torch.accelerator.is_available() and torch.accelerator.device_count() == 2
            assert str(torch.accelerator.current_accelerator()) == "sim"
        assert not torch.accelerator.is_available() and torch.accelerator.device_count() == 0
        assert torch.Stream is not sim.Stream


def test_gradients_and_updates_are_the_cpus(installed):
    """Of a convolution, an LSTM and Adam, in a stream of its own."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.core = nn.Conv2d(2, 3, 3), nn.LSTM(12, 5, num_layers=2)

        def forward(self, x):
            features = self.conv(x.flatten(0, 1)).relu().view(x.shape[0], x.shape[1], -1)
            return self.core(features)[0].square().mean()

    torch.manual_seed(0)
    images, net = torch.randn(4, 2, 2, 4, 4), Net()
    results = []
    for device in (torch.device("cpu"), DEVICE):
        own = Net().to(device)
        own.load_state_dict(net.state_dict())
        optimizer = torch.optim.Adam(own.parameters(), fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            own(images.to(device)).backward()
            nn.utils.clip_grad_norm_(own.parameters(), 0.1)
            optimizer.step()
        results.append([parameter.detach().cpu() for parameter in own.parameters()])
    torch.testing.assert_close(*results)


def write_and(then):
    """One stream writes a tensor, then another does something with it."""
    one, other = torch.Stream(device=DEVICE), torch.Stream(device=DEVICE)
    with one:
        tensor = torch.ones(2, device=DEVICE)
    with other:
        return then(one, other, tensor)


DISORDERS = {
    "reads what": lambda one, other, tensor: tensor + 1,
    "overwrites what": lambda one, other, tensor: tensor.zero_(),
}


@pytest.mark.parametrize("message", DISORDERS)
def test_two_streams_without_an_order_are_a_race(installed, message):
    with pytest.raises(sim.Race, match=message):
        write_and(DISORDERS[message])


def test_a_write_that_does_not_wait_for_a_read_is_a_race(installed):
    tensor = torch.ones(2, device=DEVICE)
    torch.accelerator.current_stream(DEVICE).synchronize()
    with torch.Stream(device=DEVICE) as stream:
        tensor.record_stream(stream)
        tensor + 1
    with pytest.raises(sim.Race, match=r"zero_.* overwrites what add"):
        tensor.zero_()


def by_event(one, other, tensor):
    event = torch.Event(device=DEVICE)
    event.record(one)
    event.wait(other)


def early_event(one, other, tensor):
    event = torch.Event(device=DEVICE)
    event.record(one)
    with one:
        tensor.add_(1)
    event.wait(other)


ORDERS = {
    "stream": lambda one, other, tensor: other.wait_stream(one),
    "event": by_event,
    "host": lambda one, other, tensor: one.synchronize(),
}


@pytest.mark.parametrize("order", ORDERS)
def test_streams_events_and_the_host_give_an_order(installed, order):
    def read(one, other, tensor):
        tensor.record_stream(other)
        ORDERS[order](one, other, tensor)
        return (tensor + 1).tolist()

    assert write_and(read) == [2, 2]


def test_an_event_does_not_cover_what_comes_after_it(installed):
    def read(one, other, tensor):
        early_event(one, other, tensor)
        return tensor + 1

    with pytest.raises(sim.Race, match=r"reads what add_"):
        write_and(read)


@pytest.mark.parametrize("lock", [threading.Lock, sim.Lock])
def test_a_thread_learns_what_another_has_waited_for_only_by_a_lock(installed, lock):
    lock, tensors, races = lock(), [], []

    def write():
        with lock, torch.Stream(device=DEVICE) as stream:
            tensors.append(torch.ones(2, device=DEVICE))
            stream.synchronize()

    def read():
        with lock, torch.Stream(device=DEVICE) as stream:
            tensors[0].record_stream(stream)
            try:
                tensors[0] + 1
            except sim.Race as race:
                races.append(race)

    for function in (write, read):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()
    assert len(races) == isinstance(lock, type(threading.Lock()))


def test_memory_that_another_stream_uses_must_be_recorded():
    def read(one, other, tensor):
        other.wait_stream(one)
        return tensor + 1  # and the tensor is given up

    with pytest.raises(sim.Race, match="memory freed while add"), sim.installed():
        write_and(read)
        gc.collect()


def test_a_copy_to_the_host_is_rubbish_until_it_is_waited_for(installed):
    there = torch.tensor([1.0, 2.0]).to(DEVICE)
    here = pinned(1.0, 2.0).copy_(there, non_blocking=True)
    assert here.tolist() != [1, 2]
    torch.accelerator.current_stream(DEVICE).synchronize()
    assert here.tolist() == [1, 2]
    assert there.cpu().tolist() == [1, 2]  # which waits by itself


def test_page_locked_memory_must_not_change_before_the_copy_has_ended(installed):
    here = pinned(1.0, 2.0)
    here.to(DEVICE, non_blocking=True)
    torch.accelerator.current_stream(DEVICE).synchronize()
    here.zero_()
    here.to(DEVICE, non_blocking=True)
    here.fill_(1)
    with pytest.raises(sim.Race, match="page-locked memory changed"):
        torch.accelerator.current_stream(DEVICE).synchronize()


def test_devices_do_not_mix(installed):
    there = torch.ones(2, device=DEVICE)
    for other in (torch.ones(2), torch.ones(2, device=OTHER)):
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            there + other
    with pytest.raises((sim.Race, RuntimeError, TypeError)):
        there.numpy()
    with pytest.raises(sim.Race, match="pointer"):
        there.data_ptr()
    assert (there + torch.tensor(1.0)).tolist() == [2, 2]  # a number of the host


def test_a_copy_between_devices_is_in_order_with_both(installed):
    with torch.Stream(device=OTHER):
        tensor = torch.ones(2, device=DEVICE).to(OTHER) + 1
        assert tensor.device == OTHER and tensor.tolist() == [2, 2]


def test_kernels_copies_and_waits_are_counted(installed):
    there = torch.ones(2, 3).to(DEVICE)  # from memory that is not page-locked
    assert sim.counts == {"to_device": 1, "waits": 1}
    sim.counts.clear()
    there.view(3, 2).t().mul(2).add_(1)
    assert sim.counts == {"kernels": 2}
    assert bool((there > 0).all())
    assert sim.counts["waits"] == 1
