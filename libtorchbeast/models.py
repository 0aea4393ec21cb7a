# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What every network needs: construction, precision, a recurrent unroll, and acting."""

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map

from libtorchbeast.distributions import MASKED, Distribution, Gaussian, make_distribution
from libtorchbeast.flags import Flags, UserError
from libtorchbeast.spec import Spec

CoreState = tuple[Tensor, ...]  # each [layers, B, H]; () for a feed-forward network


def make_net(own: type[nn.Module], spec: Spec, flags: Flags) -> nn.Module:
    """Builds the network of class `own`, or of the class that --net MODULE.CLASS names.

    Returns:
        The network on the CPU, float32. Its attribute `distribution` says what its logits mean.

    Raises:
        UserError: --net does not name a network class, or --use_lstm is given and the network has
            no recurrent state.
    """
    net_class = own
    if flags.net:
        module, _, name = flags.net.rpartition(".")
        try:
            net_class = getattr(importlib.import_module(module), name)
            if not (isinstance(net_class, type) and issubclass(net_class, nn.Module)):
                raise TypeError(f"{name} is not a subclass of torch.nn.Module")
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise UserError(
                f"--net: expected MODULE.CLASS, for example monobeast.Net; seen {flags.net!r} "
                f"({error})"
            ) from error
    net: Any = net_class(spec, flags)
    if flags.use_lstm and net.initial_state(1) == ():
        raise UserError(f"--use_lstm: {name_of(net)} has no recurrent state")
    net.distribution = make_distribution(spec.actions)
    if any(_channels_last(shape) for shape, _ in spec.observations.values()):
        net = net.to(memory_format=torch.channels_last)
    return net


def initial_state(net: nn.Module, batch_size: int) -> CoreState:
    """The core state of an actor's first row: tensors [layers, B, H], float32 like those that
    `act_on` returns. It has no gradient, even if the network learns its initial state."""
    return tuple(state.detach().float() for state in cast(Any, net).initial_state(batch_size))


def compile_if_asked(net: nn.Module, flags: Flags) -> nn.Module:
    """Returns `net` itself. With --compile it is compiled at its first call; its parameters keep
    their names."""
    if flags.compile:
        net.compile()
    return net


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether convolutions over images of this shape [C, H, W] are faster if the channels are last
    in memory, on CPUs and on tensor cores. For small images the copy before the linear layer costs
    more than that gains: on MinAtar the other layout gives 1.17 times the updates per second."""
    return len(shape) == 3 and min(shape[1:]) >= 36


def name_of(net: nn.Module) -> str:
    """The network's name as --net takes it, MODULE.CLASS, even if MODULE is the running program."""
    module, main = type(net).__module__, sys.modules["__main__"]
    if module == "__main__":  # the module of `python -m monobeast` or of `python monobeast.py`
        module = main.__spec__.name if main.__spec__ else Path(main.__file__ or "").stem
    return f"{module}.{type(net).__qualname__}"


def choose_precision(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of convolutions and matrix products for --precision. "auto" chooses bfloat16 if the
    hardware has instructions for it, else float32."""
    if precision != "auto":
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


def autocast(net: nn.Module, precision: str, device: torch.device) -> torch.autocast:
    """A context in which `net` runs in the precision that --precision and its policy ask for. It
    caches casts of weights, so weights must not change inside it.

    With "auto" a network with a Gaussian policy runs in float32. Actors on a CPU may compute in
    another precision than a learner on a GPU. This gives log(pi/mu) a noise, whose standard
    deviation is at most 0.02 for a softmax, but up to 0.5 for a narrow Gaussian.
    """
    if precision == "auto" and isinstance(cast(Distribution, net.distribution), Gaussian):
        precision = "fp32"
    dtype = choose_precision(precision, device)
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


@torch.no_grad()
def keep_casts(net: nn.Module, row: dict[str, Tensor], core_state: CoreState) -> None:
    """Makes the layers of `net` that run in autocast keep their weights in its dtype. From then on
    copying weights into `net` casts them once, and computing does not. Autocast's own cache cannot
    be relied on: it belongs to the process, and any thread that leaves autocast empties it.

    It must be called inside the autocast context, and calls the network once to see which layers
    run in it.

    Args:
        net: a network that is not trained itself.
        row: [1, N, ...] tensors, on the network's device.
        core_state: tuple of [layers, N, H].
    """
    device = next(iter(row.values())).device.type
    if not torch.is_autocast_enabled(device):
        return
    uses: dict[nn.Module, set[bool]] = {}

    def note(layer: nn.Module, _: Any) -> None:
        uses.setdefault(layer, set()).add(torch.is_autocast_enabled(device))

    kinds = (nn.Linear, _ConvNd, nn.LSTM)
    layers = [layer for layer in net.modules() if isinstance(layer, kinds)]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    net.forward(row, core_state)  # even if the network will be compiled
    for hook in hooks:
        hook.remove()
    dtype = torch.get_autocast_dtype(device)
    for layer, in_autocast in uses.items():
        if in_autocast == {True}:
            layer.to(dtype)
            if isinstance(layer, nn.LSTM):  # refuses inputs of another dtype than its weights
                layer.register_forward_pre_hook(
                    lambda _, inputs: tree_map(lambda x: x.to(dtype), inputs)
                )


def check_image(shape: tuple[int, ...]) -> None:
    """Raises UserError if an observation of this shape looks like an image [H, W, C]."""
    if len(shape) == 3 and shape[2] in (1, 3, 4) and shape[2] < min(shape[:2]):
        raise UserError(
            f"Observation frame {list(shape)}: expected an image [C, H, W], but this looks like "
            f"[H, W, C]; atari_wrappers.wrap_pytorch transposes images of bytes"
        )


def as_floats(frame: Tensor) -> Tensor:
    """Converts observations [N, ...] of any dtype to the dtype that convolutions compute in, and to
    the memory layout of the weights that `make_net` makes. Bytes are divided by 255. The layout is
    changed first, because bytes are the cheapest to move."""
    if _channels_last(tuple(frame.shape[1:])):
        frame = frame.contiguous(memory_format=torch.channels_last)
    device = frame.device.type
    in_autocast = torch.is_autocast_enabled(device)
    floats = frame.to(torch.get_autocast_dtype(device) if in_autocast else torch.float32)
    return floats.mul_(1 / 255) if frame.dtype == torch.uint8 else floats


def unroll(
    core: nn.Module, inputs: Tensor, done: Tensor, state: CoreState, initial_state: CoreState
) -> tuple[Tensor, CoreState]:
    """Runs a recurrent core over T rows. It restarts from `initial_state` where an episode begins.

    Args:
        core: a module like nn.LSTM: ([T, B, F], state) -> ([T, B, H], state).
        inputs: [T, B, F] float.
        done: [T, B] bool, True where the row is the first of its episode.
        state: the state before row 0, a tuple of [layers, B, H].
        initial_state: the state at the start of an episode, a tuple of [layers, B, H].

    Returns:
        The core's outputs [T, B, H], and its state after the last row.
    """
    device = inputs.device
    # oneDNN has no bf16 LSTM for processors without bf16. cuDNN's LSTM computes in float16 even
    # where autocast asks for bf16, and gradients in float16 would have to be scaled.
    lacks_bf16 = device.type == "cuda" or choose_precision("auto", device) == torch.float32
    if torch.is_autocast_enabled(device.type) and lacks_bf16:
        with torch.autocast(device.type, enabled=False):
            return unroll(core, inputs.float(), done, state, initial_state)
    T = inputs.shape[0]
    begins = done.any(dim=1).tolist()
    # The core runs over all rows between two resets in one call.
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
    """Calls `net(rows, core_state)`, for acting and for learning.

    If the environment gives an observation `action_mask` [T, B, A], the logits of the actions whose
    entry is 0 or False are set to MASKED, so that these actions are never chosen.

    Args:
        rows: [T, B, ...] tensors, on the network's device.
        core_state: tuple of [layers, B, H].

    Returns:
        The network's outputs [T, B, ...] and its next core state.
    """
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
    """Chooses an action for each column of one row, with one forward pass and without gradients.

    Args:
        net: a network from `make_net`.
        row: [1, N, ...] tensors, on the network's device.
        core_state: tuple of [layers, N, H].
        greedy: whether to take the most probable action instead of sampling one.

    Returns:
        The network's outputs [1, N, ...], with `action` [1, N, ...] among them, and the next core
        state. Floating-point tensors are float32. If the network returns an `action` itself, that
        one is taken.

    Raises:
        ValueError: an output has the name of one of the environment's keys.
    """
    outputs, core_state = forward(net, row, core_state)
    if outputs.keys() & row.keys():
        raise ValueError(
            f"forward returned {sorted(outputs.keys() & row.keys())}: expected names that the "
            f"environment's rows do not have"
        )
    outputs = {k: _float32(v) for k, v in outputs.items()}
    if "action" not in outputs:
        distribution = cast(Distribution, net.distribution)
        choose = distribution.mode if greedy else distribution.sample
        outputs["action"] = choose(outputs["policy_logits"])
    return outputs, tuple(_float32(state) for state in core_state)


def _float32(tensor: Tensor) -> Tensor:
    """Converts a floating-point tensor to float32, which holds bf16 values without rounding."""
    return tensor.float() if tensor.is_floating_point() else tensor
