# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Copies to a GPU and back: nothing at all on a CPU; on a GPU, where there is one, in order."""

from argparse import Namespace

import pytest
import torch

from libtorchbeast import models
from libtorchbeast.accelerator import devices
from libtorchbeast.accelerator.devices import CPU, copy_to_host, device_stream, to_device, to_host
from libtorchbeast.flags import UserError
from tests.support.actors import make_flags
from tests.support.gpu import GPU

DEVICES = [CPU, GPU]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_there_and_back_nothing_is_copied_on_a_cpu(device):
    rows = {"frame": torch.arange(6, dtype=torch.uint8).view(2, 3), "done": torch.tensor([True])}
    with device_stream(device):
        there, state = to_device((rows, (torch.ones(3),)), device)
        assert all(tensor.device.type == device.type for tensor in there.values())
        back, after = to_host(there, state)
    assert type(after) is tuple and after[0].tolist() == [1, 1, 1]
    for name, tensor in rows.items():
        assert torch.equal(back[name], tensor) and (back[name] is tensor) == (device == CPU)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "auto"])
def test_float32_is_rounded_to_tf32_only_if_the_flag_says_so(precision):
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    try:
        devices.set_precision(precision)
        assert [backend.allow_tf32 for backend in backends] == [precision == "tf32"] * 2
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.allow_tf32 = value
    assert not models.autocast(torch.nn.Identity(), "tf32", CPU)._enabled


def test_which_devices_exist():
    exists = devices.exists
    assert exists("cpu") and not exists("nothing") and not exists("meta")
    count = torch.cuda.device_count()
    assert exists("cuda") == (count > 0) and not exists(f"cuda:{count}")


def test_the_start_says_which_devices_are_used_and_which_there_are(caplog, as_before):
    with caplog.at_level("INFO"):
        devices.open_each(make_flags())
    seen = f"torch {torch.__version__} finds "
    assert f"Devices: learner cpu, inference cpu; {seen}" in caplog.text


def test_compile_without_a_compiler_is_one_line(monkeypatch, as_before):
    def compile(function):
        raise RuntimeError("No working C++ compiler found\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(torch, "compile", compile)
    said = r"^--compile: torch cannot compile for cpu \(No working C\+\+ compiler found\)$"
    with pytest.raises(UserError, match=said):
        devices.open_each(make_flags("--compile", "--learner_device", "cpu"))


@pytest.mark.parametrize("asked, chosen", [
    ((None, None), ("cuda:1", "cuda:1")), (("cpu", None), ("cpu", "cpu")),
    (("cuda", "cpu"), ("cuda:1", "cpu")), ((None, "cuda"), ("cuda:1", "cuda:1")),
])  # fmt: skip
def test_each_rank_has_the_accelerator_of_its_number(monkeypatch, asked, chosen):
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "1")
    cuda = lambda check_available=True: torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", cuda)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    own = dict(zip(("learner_device", "inference_device"), asked, strict=True))
    draft = Namespace(**own, num_actors=4, num_learner_threads=None)
    devices.choose(draft)
    devices.choose(draft)  # once more, when the flags are settled
    assert (draft.learner_device, draft.inference_device) == chosen
    monkeypatch.setenv("LOCAL_RANK", "2")
    draft.learner_device = "cuda"
    with pytest.raises(UserError, match="cuda:2: expected .* finds cuda:0, cuda:1$"):
        devices.choose(draft)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_copy_on_the_host_shares_nothing(device):
    net = torch.nn.Linear(2, 2).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2, device=device)).sum().backward()
    optimizer.step()
    copy, before = copy_to_host(optimizer.state_dict()), net.weight.detach().clone()
    averages = copy["state"][0]["exp_avg"].clone()
    assert copy["state"][0]["exp_avg"].device.type == "cpu"
    optimizer.step()
    assert torch.equal(copy["state"][0]["exp_avg"], averages)
    optimizer.load_state_dict(copy)
    assert not torch.equal(net.weight, before)
    assert optimizer.state_dict()["state"][0]["exp_avg"].device.type == device.type
