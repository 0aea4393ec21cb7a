# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What every network needs: loading, precision, recurrence, and choosing actions with it."""

import importlib
import itertools
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from libtorchbeast.distributions import MASKED, make_distribution
from libtorchbeast.flags import Flags, UserError
from libtorchbeast.spec import Spec

CoreState = tuple[Tensor, ...]  # each [layers, B, H]; () for a feed-forward network


def make_net(own: type[nn.Module], spec: Spec, flags: Flags) -> nn.Module:
    """Builds the network: `own`, or the one that `--net MODULE.CLASS` names. Its attribute
    `distribution` says what its logits mean.

    Raises:
        UserError: `--net` names no class, or `--use_lstm` asks for a state that the network lacks.
    """
    net_class = own
    if flags.net:
        module, _, name = flags.net.rpartition(".")
        try:
            net_class = getattr(importlib.import_module(module), name)
            if not (isinstance(net_class, type) and issubclass(net_class, nn.Module)):
                raise TypeError(f"{name} is no torch.nn.Module class")
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise UserError(
                f"--net: expected MODULE.CLASS, for example monobeast.Net; seen {flags.net!r} "
                f"({error})"
            ) from error
    net = net_class(spec, flags)
    if flags.use_lstm and net.initial_state(1) == ():
        raise UserError(f"--use_lstm: {name_of(net)} has no recurrent core, its state is ()")
    net.distribution = make_distribution(spec.actions)
    if any(_channels_last(shape) for shape, _ in spec.observations.values()):
        net = net.to(memory_format=torch.channels_last)
    return net


def initial_state(net: nn.Module, batch_size: int) -> CoreState:
    """The network's, to act from: float32, as `act_on` returns it, and a constant even where it is
    learned."""
    return tuple(state.detach().float() for state in net.initial_state(batch_size))


def compile_if_asked(net: nn.Module, flags: Flags) -> nn.Module:
    """With --compile: the same network, compiled at its first call; its parameters keep their
    names."""
    if flags.compile:
        net.compile()
    return net


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether convolutions over such images [C, H, W] run faster with the channels last in memory,
    on a CPU or on tensor cores. Small ones lose more by the copy before a linear layer: MinAtar's
    learner makes 1.17 x the updates without."""
    return len(shape) == 3 and min(shape[1:]) >= 36


def name_of(net: nn.Module) -> str:
    """MODULE.CLASS, also where the module is the program itself."""
    module, main = type(net).__module__, sys.modules["__main__"]
    if module == "__main__":  # of `python -m monobeast`, or `python monobeast.py`
        module = main.__spec__.name if main.__spec__ else Path(main.__file__).stem
    return f"{module}.{type(net).__qualname__}"


def choose_precision(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of convolutions and matrix products: bfloat16 or float32 ("auto": the former where
    the hardware computes with it)."""
    if precision != "auto":
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Runs a network in the precision chosen. While it lasts, each weight is cast once only: so
    weights may not change inside."""
    dtype = choose_precision(precision, device)
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


def check_image(shape: tuple[int, ...]) -> None:
    """Raises UserError if an observation of this shape looks like an image [H, W, C]."""
    if len(shape) == 3 and shape[2] in (1, 3, 4) and shape[2] < min(shape[:2]):
        raise UserError(
            f"Observation frame {list(shape)}: expected an image [C, H, W], this looks like "
            f"[H, W, C]; atari_wrappers.wrap_pytorch transposes those of bytes"
        )


def as_floats(frame: Tensor) -> Tensor:
    """Observations [N, ...] in the dtype that convolutions compute in and the layout that
    `make_net` gives weights; bytes are divided by 255. In this order, because bytes are the
    cheapest to move."""
    if _channels_last(tuple(frame.shape[1:])):
        frame = frame.contiguous(memory_format=torch.channels_last)
    device = frame.device.type
    in_autocast = torch.is_autocast_enabled(device)
    floats = frame.to(torch.get_autocast_dtype(device) if in_autocast else torch.float32)
    return floats.mul_(1 / 255) if frame.dtype == torch.uint8 else floats


def unroll(
    core: nn.Module, inputs: Tensor, done: Tensor, state: CoreState, initial_state: CoreState
) -> tuple[Tensor, CoreState]:
    """Runs a recurrent core over T rows, from `initial_state` again wherever an episode begins.

    Args:
        core: like nn.LSTM: ([T, B, F], state) -> ([T, B, H], state).
        inputs: [T, B, F].
        done: [T, B] bool, the row is the first of its episode.
        state, initial_state: tuples of [layers, B, H].

    Returns:
        [T, B, H] and the state after the last row.
    """
    device = inputs.device
    # oneDNN has no bf16 LSTM for processors without bf16; cuDNN's takes float16 whatever autocast
    # asks for, and its gradients would need a scale.
    lacks_bf16 = device.type == "cuda" or choose_precision("auto", device) == torch.float32
    if torch.is_autocast_enabled(device.type) and lacks_bf16:
        with torch.autocast(device.type, enabled=False):
            return unroll(core, inputs.float(), done, state, initial_state)
    T = inputs.shape[0]
    begins = done.any(dim=1).tolist()
    # Between two resets nothing interrupts the core: it runs over a whole stretch of rows at once.
    cuts = [0] + [t for t in range(1, T) if begins[t]] + [T]
    outputs = []
    for start, stop in itertools.pairwise(cuts):
        if begins[start]:
            reset = done[start].view(1, -1, 1)
            state = tuple(
                torch.where(reset, initial, current)
                for initial, current in zip(initial_state, state, strict=True)
            )
        output, state = core(inputs[start:stop], state)
        outputs.append(output)
    return torch.cat(outputs), tuple(state)


def forward(
    net: nn.Module, rows: dict[str, Tensor], core_state: CoreState
) -> tuple[dict[str, Tensor], CoreState]:
    """`net(rows, core_state)`, with the logits of actions that the observation `action_mask`
    [..., A] forbids (0, False) at MASKED. Acting and learning both see the policy through this."""
    outputs, core_state = net(rows, core_state)
    if "action_mask" in rows:
        forbidden = rows["action_mask"] == 0
        logits = outputs["policy_logits"].masked_fill(forbidden, MASKED)
        outputs = {**outputs, "policy_logits": logits}
    return outputs, core_state


@torch.no_grad()
def act_on(
    net: nn.Module, row: dict[str, Tensor], core_state: CoreState, greedy: bool = False
) -> tuple[dict[str, Tensor], CoreState]:
    """One forward pass and one action per column.

    Args:
        net: of `models.make_net`, which gives it its `distribution`.
        row: [1, N, ...] tensors, on the network's device.
        core_state: tuple of [layers, N, H].
        greedy: take the most probable action instead of sampling one.

    Returns:
        the network's outputs [1, N, ...], floating ones as float32, and `action` [1, N, ...] (the
        network's own, where it returns one); the next core state, float32.

    Raises:
        ValueError: an output has the name of one of the environment's keys.
    """
    outputs, core_state = forward(net, row, core_state)
    if outputs.keys() & row.keys():
        raise ValueError(
            f"forward returned {sorted(outputs.keys() & row.keys())}: expected names that are not "
            f"the environment's"
        )
    outputs = {k: _float32(v) for k, v in outputs.items()}
    if "action" not in outputs:
        choose = net.distribution.mode if greedy else net.distribution.sample
        outputs["action"] = choose(outputs["policy_logits"])
    return outputs, tuple(_float32(state) for state in core_state)


def _float32(tensor: Tensor) -> Tensor:
    """The behaviour's numbers are kept as they were used, not in a rounding of their own."""
    return tensor.float() if tensor.is_floating_point() else tensor
