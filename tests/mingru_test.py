# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""minGRU: its scan is its step, resets come at any row, and its gradient is that of a loop."""

import pytest
import torch

import monobeast
import polybeast
import r2d2
from libtorchbeast import mingru, models
from libtorchbeast.mingru import MinGRU
from libtorchbeast.models import unroll
from libtorchbeast.spec import Actions, Spec

T, B, H, LAYERS = 23, 4, 6, 2
CLOSE = dict(rtol=1e-5, atol=1e-5)


def made(share):
    """A core, and the arguments of `unroll` with resets in this share of the rows."""
    torch.manual_seed(0)
    core = MinGRU(H, LAYERS)
    x, done = torch.randn(T, B, H), torch.rand(T, B) < share
    state, initial = ((torch.randn(LAYERS, B, H),) for _ in range(2))
    return core, x, done, state, initial


def stepped(core, x, done, state, initial):
    outputs = []
    for t in range(len(x)):
        output, state = unroll(core, x[t : t + 1], done[t : t + 1], state, initial)
        outputs.append(output)
    return torch.cat(outputs), state


@pytest.fixture(params=["row after row", "scan"])
def solver(request, monkeypatch):
    """Either way in which the recurrence is solved. Devices other than a CPU take the scan."""
    if request.param == "scan":
        monkeypatch.setattr(mingru, "_solve", mingru._solve_by_scan)


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_all_rows_at_once_give_what_single_steps_give(solver, share):
    seen, seen_state = unroll(*made(share))
    expected, state = stepped(*made(share))
    torch.testing.assert_close(seen, expected, **CLOSE)
    torch.testing.assert_close(seen_state, state, **CLOSE)


def test_the_gradient_is_that_of_single_steps(solver):
    gradients = []
    for run in (unroll, stepped):
        core, x, done, state, initial = made(0.2)
        leaves = [x, *state, *initial]
        for leaf in leaves:
            leaf.requires_grad_()
        outputs, after = run(core, x, done, state, initial)
        weights = torch.randn(T, B, H, generator=torch.Generator().manual_seed(1))
        ((outputs * weights).sum() + after[0].square().sum()).backward()
        gradients.append([leaf.grad for leaf in (*core.parameters(), *leaves)])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_gates_that_are_shut_or_open_for_long_overflow_nothing(solver):
    core, _, _, state, initial = made(0)
    x = 1e3 * torch.randn(2000, B, H)
    for bias in (-100.0, 100.0):
        for layer in core.layers:
            layer.bias.data[:H] = bias
        done = torch.zeros(2000, B, dtype=torch.bool)
        outputs, after = unroll(core, x.requires_grad_(), done, state, initial)
        outputs.sum().backward()
        assert outputs.isfinite().all() and after[0].isfinite().all() and x.grad.isfinite().all()


def test_a_state_is_float32_in_any_precision():
    core, *inputs = made(0.2)
    expected, state = unroll(core, *inputs)
    with torch.autocast("cpu", torch.bfloat16):
        seen, after = unroll(core, *inputs)
    assert seen.dtype == after[0].dtype == torch.float32
    torch.testing.assert_close(seen, expected, rtol=0.1, atol=0.1)


# ================================================================================ in the programs
IMAGE = Spec("some", 1, {"frame": ((4, 10, 10), "uint8")}, Actions("discrete", (3,)))


@pytest.mark.parametrize("program", [monobeast, polybeast, r2d2])
def test_every_program_has_the_core_that_is_asked_for(program):
    for core, expected in (("mingru", MinGRU), ("lstm", torch.nn.LSTM)):
        flags = program.parse(["--env", "CartPole-v1", "--core", core])
        net = models.make_net(program.Net, IMAGE, flags)
        assert isinstance(net.core, expected)
        assert net.initial_state(5)[0].shape == (net.core.num_layers, 5, net.core.hidden_size)
