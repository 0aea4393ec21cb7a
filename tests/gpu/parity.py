# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The device computes what the CPU computes."""

import copy
import logging
import math

import torch

import monobeast
from libtorchbeast import models, transitions
from libtorchbeast.accelerator import devices
from libtorchbeast.accelerator.devices import to_device, to_host
from libtorchbeast.flags import replace
from libtorchbeast.rollouts import core_state_of
from tests.faults.harness import Figure
from tests.gpu import timing, work
from tests.gpu.stages import Answers

LIMITS = {"fp32": 1e-4, "bf16": 1e-2}  # of |device - CPU| / |CPU|
NUDGE = 1e-6  # of each weight, about what the rounding of a sum changes


def parity(device: str, quick: bool) -> Answers:
    """Outputs, gradients and three updates of both networks, with LSTM and without."""
    there = torch.device(device)
    T, B = (3, 2) if quick else (20, 8)
    for title, name, words in work.cases(quick):
        # On a GPU recurrent cores are float32 under bf16, and on a CPU they are not. The simulated
        # device has no bf16.
        for precision in ("fp32",) if words or there.type == "sim" else ("fp32", "bf16"):
            flags = work.flags_of(name, device, "--precision", precision, *words)
            net = work.make_net(name, flags)
            batch = work.make_batch(net, T, B)
            limit = LIMITS[precision]
            yield from compare(f"{title}, {precision}", net, batch, flags, there, limit)


def compare(what, net, batch, flags, device, limit) -> Answers:
    """A part may differ by more than `limit` if it is ill-conditioned: where a rounding decides
    which pixel of a max-pooling is the largest, the gradient of another one jumps. So it may differ
    four times as much as on the CPU alone after a small change of the weights."""
    here, there = (computed(net, batch, flags, on) for on in (devices.CPU, device))
    nudged = computed(nudge(net), batch, flags, devices.CPU)
    for part, expected in here.items():
        most = max(limit, float(f"{4 * relative(nudged[part], expected):.2g}"))
        yield Figure(f"{what}: {part}", relative(there[part], expected), "of its norm", most)


def nudge(net: torch.nn.Module) -> torch.nn.Module:
    """A copy whose weights differ by NUDGE of themselves, in random directions."""
    own, some = copy.deepcopy(net), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in own.parameters():
            weight.mul_(1 + NUDGE * torch.randn(weight.shape, generator=some))
    return own


def computed(net, batch, flags, device) -> dict[str, torch.Tensor]:
    """What the network and the loss give on a device, on the CPU and as vectors."""
    own = work.on(net, device)
    rows = to_device(batch, device)
    with models.autocast(own, flags.precision, device), torch.no_grad():
        outputs, _ = models.forward(own, rows, core_state_of(rows))
    both = monobeast.targets, monobeast.loss
    loss = transitions.learn_from(own, rows, None, *both, flags, 0.0)["total_loss"]
    loss.backward()
    found = dict(logits=outputs["policy_logits"], values=outputs["baseline"], loss=loss)
    found["gradient"] = work.flat(p.grad for p in own.parameters())
    if flags.precision == "fp32":
        learner, update = work.trainer(net, flags, device)
        for _ in range(3):
            assert update(batch) is not None
        found["weights after 3 updates"] = work.flat(learner.state_dict()["model"].values())
    return to_host({k: v.detach().flatten() for k, v in found.items()})[0]


def relative(seen: torch.Tensor, expected: torch.Tensor) -> float:
    """|seen - expected| / |expected|, or infinity where something is not a number."""
    error = float((seen.double() - expected.double()).norm() / expected.double().norm())
    return error if math.isfinite(error) else math.inf


def graphs(device: str, quick: bool) -> Answers:
    """Whole updates and inference by graphs against the eager path: equal numbers, and the time of
    both."""
    from libtorchbeast.accelerator import graphs

    there, given_up = torch.device(device), warnings_of(graphs.logger)
    T, B, seconds = (3, 2, 0.0) if quick else (20, 32, 1.0)
    falls = ["--learning_rate", "1e-5", "--total_steps", str(8 * T * B)]  # to 0 in eight updates
    for name in work.nets(quick):
        flags = work.flags_of(name, device, "--precision", "fp32", *falls)
        nets = [work.make_net(name, flags) for _ in range(2)]
        nets[0].has_graphs = False
        batches = [work.make_batch(nets[0], T, B, seed) for seed in range(2)]
        why = graphs.why_no_update(nets[1], there, flags), graphs.why_none(nets[1], there, flags)
        for what, reason in zip(("update", "inference"), why, strict=True):
            yield f"{name}: {what}: {f'no graph, because {reason}' if reason else 'a graph'}"
        if any(why):
            continue
        for optimizer in ("rmsprop", "adam")[: 1 if quick else None]:
            flags = replace(flags, optimizer=optimizer)
            pair = (updates(net, batches, flags, there, seconds) for net in nets)
            yield from both(f"{name}: update, {optimizer}, {T}x{B}", *pair)
        graphs.for_inference([nets[1].to(there)], B, flags)
        pair = (forwards(net.to(there), batches, there, seconds) for net in nets)
        yield from both(f"{name}: inference, {B} a batch", *pair)
    yield from given_up
    yield Figure("graphs given up", len(given_up), "", 0)


def warnings_of(logger: logging.Logger) -> list[str]:
    """A list that gets the warnings that are logged from now on."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    return said


def both(what: str, eager: tuple, replayed: tuple) -> Answers:
    yield Figure(f"{what}: difference", relative(replayed[0], eager[0]), "", LIMITS["fp32"])
    for kind, (_, seconds) in (("eager", eager), ("by graph", replayed)):
        yield Figure(f"{what}, {kind}", 1000 * seconds, "ms")


def updates(net, batches, flags, device, seconds) -> tuple[torch.Tensor, float]:
    """The weights after eight updates, by which a graph is recorded, and an update's time."""
    learner, update = work.trainer(net, flags, device)
    for batch in batches * 4:
        update(batch)
    weights = work.flat(learner.state_dict()["model"].values())
    return weights, timing.seconds_of(lambda: update(batches[0]), device, seconds)


def forwards(net, batches, device, seconds) -> tuple[torch.Tensor, float]:
    """The logits for whole and for smaller batches, and the time of a whole one."""
    found = []
    rows = [to_device(work.row_of(batch)[0], device) for batch in batches]
    act = lambda row: net(row, ())[0]["policy_logits"]
    with torch.no_grad():
        for _ in range(4):
            for row in rows:
                found += [act(row).clone(), act({k: v[:, 1:] for k, v in row.items()}).clone()]
        each = timing.seconds_of(lambda: act(rows[0]), device, seconds)
    return torch.cat(to_host([x.flatten() for x in found])[0]), each
