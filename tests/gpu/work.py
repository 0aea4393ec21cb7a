# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What the stages work with: networks and random batches."""

import copy
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

import monobeast
import polybeast
from libtorchbeast import models
from libtorchbeast.accelerator import devices
from libtorchbeast.flags import Flags
from libtorchbeast.learner import Learner
from libtorchbeast.spec import Actions, Spec
from tests.support.actors import make_learner

A = 6  # actions, as in Pong
FRAME = (4, 84, 84)
BEASTS = {"shallow": monobeast, "deep": polybeast}  # the programs whose networks these are


def nets(quick: bool) -> list[str]:
    """The networks that a stage takes: the deep one is too slow for --quick."""
    return [*BEASTS][: 1 if quick else None]


def cases(quick: bool) -> Iterator[tuple[str, str, list[str]]]:
    """Each of them without and with an LSTM: its title, its name, and the flags."""
    for name in nets(quick):
        yield name, name, []
        yield f"{name}, LSTM", name, ["--use_lstm"]


def flags_of(net: str, device: str, *words: str) -> Flags:
    """The flags of the program whose own network `net` is, on Pong, without moments, which random
    frames lack. As the program does, this says whether the GPU computes in TF32."""
    both = ["--learner_device", device, "--inference_device", device]
    both += ["--observation_scaling", "none"]
    flags = BEASTS[net].parse([*both, *words])
    devices.set_precision(flags.precision)
    return flags


def make_net(net: str, flags: Flags) -> nn.Module:
    """The network "shallow" or "deep" on the CPU, with weights as large as after some training."""
    torch.manual_seed(1)
    spec = Spec("Pong", 1, {"frame": (FRAME, "uint8")}, Actions("discrete", (A,)))
    made = models.make_net(BEASTS[net].Net, spec, flags)
    with torch.no_grad():
        nn.init.orthogonal_(made.policy.weight, 1.0)
    return made


def make_batch(net: nn.Module, T: int, B: int, seed: int = 2) -> dict[str, torch.Tensor]:
    """A random batch of rollouts on the CPU, rows [T+1, B, ...], in which episodes end."""
    some = torch.Generator().manual_seed(seed)
    shape = (T + 1, B)
    done = torch.rand(shape, generator=some) < 0.02
    ended = torch.cat([done[1:], torch.zeros(1, B, dtype=torch.bool)])
    state = models.initial_state(net, B)
    frames = torch.randint(0, 256, (*shape, *FRAME), dtype=torch.uint8, generator=some)
    return {
        "frame": frames,
        "reward": torch.randn(shape, generator=some).masked_fill(done, 0.0),
        "done": done,
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "last_action": torch.randint(0, A, shape, generator=some).masked_fill(done, 0),
        "action": torch.randint(0, A, shape, generator=some),
        "policy_logits": torch.randn(*shape, A, generator=some),
        "policy_version": torch.zeros(shape, dtype=torch.int64),
    } | {f"core_state/{i}": torch.randn(s.shape, generator=some) for i, s in enumerate(state)}


def row_of(batch: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], models.CoreState]:
    """Row 0 of a batch, [1, B, ...], and its core state, as an inference batch has them."""
    learned = ("action", "policy_logits", "policy_version")
    names = [name for name in batch if name not in learned and not name.startswith("core_state/")]
    state = tuple(value for name, value in batch.items() if name.startswith("core_state/"))
    return {name: batch[name][:1].contiguous() for name in names}, state


def on(net: nn.Module, device: torch.device) -> nn.Module:
    return copy.deepcopy(net).to(device)


def trainer(net: nn.Module, flags: Flags, device: torch.device) -> tuple[Learner, Callable]:
    """A learner, and a function that makes an update from a batch."""
    one = make_learner(on(net, device), flags, device)
    return one, lambda batch: one.update(batch, lambda state_dict, version: None)


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([x.float().flatten() for x in tensors])
