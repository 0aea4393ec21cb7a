# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What every network needs: construction, precision, a recurrent unroll, and acting."""

import importlib
import itertools
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from libtorchbeast.accelerator.devices import drawing, has_bf16, to_host
from libtorchbeast.distributions import MASKED, Distribution, Gaussian, make_distribution
from libtorchbeast.errors import described, place_of
from libtorchbeast.flags import Flags, UserError
from libtorchbeast.mingru import MinGRU
from libtorchbeast.moments import Moments, laid_out
from libtorchbeast.net_check import call_own, check_finite, check_net
from libtorchbeast.spec import NOT_SEEN, Spec, channels_first, is_image, prefers_channels_last

CoreState = tuple[Tensor, ...]  # each [layers, B, H]; () for a feed-forward network


def make_net(own: type[nn.Module], spec: Spec, flags: Flags) -> nn.Module:
    """Builds the network of class `own`, or of the class that --net MODULE.CLASS names. If `own`
    has an attribute `for_vectors`, a feed-forward network for floats without an image is of that
    class.

    Returns:
        The network on the CPU, float32. Its attribute `distribution` says what its logits mean. Its
        module `moments` scales observations and rewards, if the flags ask for that.

    Raises:
        UserError: --net does not name a network class, --core is given and the network has no
            recurrent state, or the network raises an error or does not keep the contract of
            docs/fork.md.
    """
    whole, spec, net_class, why = spec, spec.for_nets, own, ""
    if flags.net:
        net_class, why = _imported(flags.net), ", which --net names"
    elif spec.has_vectors and not flags.core and "for_vectors" in vars(own):
        net_class = own.for_vectors  # type: ignore[attr-defined]  # a subclass does not inherit it
        why = f", by {own.__name__}.for_vectors (without that line it is {own.__name__})"
    net: Any = call_own("__init__", net_class, spec, flags)
    net.chosen = why
    if flags.core and call_own("initial_state", lambda: net.initial_state(1)) == ():
        raise UserError(f"{name_of(net)} has no recurrent state, which --core and R2D2 ask for")
    net.distribution = make_distribution(spec.actions)
    with autocast(net, flags.precision, torch.device("cpu")):  # on leaving, its cache is emptied
        check_net(net, whole)
    moments = Moments(spec, flags, pixels=isinstance(getattr(net, "parts", None), Parts))
    if moments.names or moments.scales_rewards or flags.observation_scaling == "moments":
        net.moments = moments
    if hasattr(net, "moments") or "action_mask" in spec.observations:
        net.register_forward_pre_hook(refuse_others)
    if any(prefers_channels_last(shape) for shape, _ in spec.observations.values()):
        net = net.to(memory_format=torch.channels_last)
    return net


def add_for_loss(net: Any, spec: Spec, flags: Flags) -> nn.ModuleDict:
    """Gives a network what only its loss needs: the modules {name: module} that its method
    `for_loss(spec, flags)` returns become its attributes. They are not among its submodules, so
    that they are not in its `state_dict`, which travels to actors, and is exported. The learner
    trains them, and saves them in its checkpoints. Returns them."""
    make: Any = getattr(net, "for_loss", None) or (lambda spec, flags: {})
    modules = call_own("for_loss", lambda: nn.ModuleDict(dict(make(spec, flags))))
    own = {*map(id, net.parameters())}
    for name, module in modules.items():
        if hasattr(net, name):
            raise UserError(f"{name_of(net)}.for_loss: expected new names, seen {name}")
        if own & {*map(id, module.parameters())}:
            said = f"expected new networks, seen {name}, which has parameters of the network's own"
            raise UserError(f"{name_of(net)}.for_loss: {said}")
    net.__dict__["_of_learner"] = modules
    net.__dict__.update(modules)
    return of_learner(net)


def said_of(net: Any) -> str:
    """What is trained, and why: the network's name and the numbers of its weights."""
    count = lambda module: sum(p.numel() for p in module.parameters())
    own = {name: count(module) for name, module in of_learner(net).items()}
    alone = ", ".join(f"{weights:,} in {name}" for name, weights in own.items() if weights)
    also = ", pixels scaled" * any(isinstance(m, Moments) and m.pixels for m in net.modules())
    also += f", and for the learner alone {alone}" if alone else ""
    return f"{name_of(net)}{getattr(net, 'chosen', '')}, {count(net):,} weights{also}"


def of_learner(net: nn.Module) -> nn.ModuleDict:
    """What `add_for_loss` has given to the network."""
    return net.__dict__.get("_of_learner", nn.ModuleDict())


def trained(net: nn.Module) -> list[nn.Parameter]:
    """All parameters that require a gradient, those of `for_loss` last."""
    both = [*net.parameters(), *of_learner(net).parameters()]
    return [parameter for parameter in both if parameter.requires_grad]


def _imported(path: str) -> type[nn.Module]:
    """The class that --net MODULE.CLASS names."""
    module, _, name = path.rpartition(".")
    try:
        net_class = getattr(importlib.import_module(module), name)
        if not (isinstance(net_class, type) and issubclass(net_class, nn.Module)):
            raise TypeError(f"{name} is not a subclass of torch.nn.Module")
        return net_class
    except (Exception, SystemExit) as error:
        if (place := place_of(error)) or isinstance(error, SyntaxError):  # the module exists
            raise UserError(f"--net {path}: its module raised {described(error)}{place}") from error
        said = f"expected MODULE.CLASS, for example monobeast.Net; seen {path!r} ({error})"
        raise UserError(f"--net: {said}") from error


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


def name_of(net: nn.Module) -> str:
    """The network's name as --net takes it, MODULE.CLASS, even if MODULE is the running program."""
    module, main = type(net).__module__, sys.modules["__main__"]
    if module in ("__main__", "__mp_main__"):  # of `python -m monobeast` or of its actors
        module = main.__spec__.name if main.__spec__ else Path(main.__file__ or "").stem
    return f"{module}.{type(net).__qualname__}"


def autocast(net: nn.Module, precision: str, device: torch.device) -> torch.autocast:
    """A context in which `net` runs in the precision that --precision and its distribution ask for.
    It caches casts of weights, so weights must not change inside it. "auto" chooses bfloat16 if the
    hardware has instructions for it, else float32.

    A network that reads numbers of more than 8 bits with `Parts` always runs in float32, because
    bfloat16 merges 256 and 257. With "auto" one with a Gaussian policy does so, too. Actors on a
    CPU may compute in another precision than a learner on a GPU. This gives log(pi/mu) a noise,
    whose standard deviation is at most 0.02 for a softmax, but up to 0.5 for a narrow Gaussian.
    """
    is_auto = precision == "auto" and not isinstance(net.distribution, Gaussian)
    is_bf16 = precision == "bf16" or (is_auto and has_bf16(device))
    fits = getattr(getattr(net, "parts", None), "fits_bf16", True)
    return torch.autocast(device.type, torch.bfloat16, enabled=is_bf16 and fits)


class VectorNet(nn.Module):
    """The network of PPO for vectors (Schulman et al. 2017, https://arxiv.org/abs/1707.06347): two
    hidden layers of 64 tanh for the policy, and two of their own for the value. A Gaussian's
    standard deviations are parameters that do not depend on the observation. They begin at 0.4:
    with 1 a third of the actions were beyond the bounds of -1 and 1, and robots learned slowly
    (Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990, advise 0.5). The last action and
    reward are not read."""

    def __init__(self, spec: Spec, flags: Flags):
        super().__init__()
        self.parts = Parts(spec)
        self.distribution = make_distribution(spec.actions)
        outputs = self.distribution.num_logits
        self.log_std = None
        if isinstance(self.distribution, Gaussian):
            outputs //= 2
            self.log_std = nn.Parameter(torch.full((outputs,), -1.0))
        self.policy = _tanh_layers(self.parts.width, outputs, gain=0.01)
        self.baseline = _tanh_layers(self.parts.width, 1, gain=1.0)

    def initial_state(self, batch_size: int) -> CoreState:
        return ()

    def forward(self, inputs: dict[str, Tensor], core_state: CoreState = ()):
        T, B = inputs["reward"].shape
        with torch.autocast(inputs["reward"].device.type, enabled=False):
            _, x = self.parts(inputs)  # [T * B, F]
            logits, baseline = self.policy(x).view(T, B, -1), self.baseline(x).view(T, B)
        if self.log_std is not None:
            logits = torch.cat([logits, self.log_std.expand_as(logits)], dim=-1)
        return dict(policy_logits=logits, baseline=baseline), core_state


def _tanh_layers(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers, initialised orthogonally; the last layer's weights have the `gain`."""
    layers = nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    make_orthogonal(layers[:2], 2**0.5)
    make_orthogonal(layers[2:], gain)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def make_orthogonal(layers: Iterable[nn.Module], gain: float) -> None:
    """Gives linear layers and convolutions orthogonal weights of this gain, and biases of zero."""
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(cast(Tensor, layer.bias))


class Parts:
    """The parts of an observation as the networks here read them: the images become the channels of
    one image, and all other parts become one vector. An `action_mask` is read only if it is alone.
    Numbers of a set (see `Spec.sets`) are one-hot in the vector.

    An image is a part [C, H, W], or bytes [H, W, C] (`spec.channels_first`), or one with more axes
    in front, such as a stack [S, C, H, W]. A part [H, W] is a grey image if it is at least 36 x 36.
    Images are enlarged to the largest H and W among them.

    Attributes:
        image_shape: (C, H, W), or None if no part is an image.
        width: F, how many numbers the vector has.
        fits_bf16: whether bfloat16 tells apart all that the parts may contain, bytes and bools.

    Raises:
        UserError: the channels of another image are its last axis.
    """

    def __init__(self, spec: Spec):
        shapes = {name: channels_first(*leaf) for name, leaf in spec.observations.items()}
        self._last = {k for k, shape in shapes.items() if shape != spec.observations[k][0]}
        if len(shapes) > 1:
            shapes.pop("action_mask", None)
        for name, shape in shapes.items():
            check_image(shape, name)
        images = {k: shape for k, shape in shapes.items() if is_image(shape)}
        C = sum(math.prod(shape[:-2]) for shape in images.values())
        H, W = (max((shape[axis] for shape in images.values()), default=0) for axis in (-2, -1))
        self._size = (H, W)
        self.image_shape = (C, H, W) if images else None
        self._images = {k: shape[-2:] for k, shape in images.items()}
        self._vectors = {k: spec.sets.get(k, 0) for k in shapes if k not in images}
        self.width = sum(math.prod(shapes[k]) * (n or 1) for k, n in self._vectors.items())
        as_given = [k for k in shapes if k in images or not self._vectors[k]]
        self.fits_bf16 = all(np.dtype(spec.observations[k][1]).itemsize == 1 for k in as_given)

    def __call__(self, inputs: dict[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Returns the image [T * B, C, H, W] and the vector [T * B, F] of the rows [T, B, ...], as
        `as_floats` converts them, or None for one that no part belongs to."""
        N = inputs["reward"].numel()
        first = lambda k: inputs[k].movedim(-1, -3) if k in self._last else inputs[k]
        images = [as_floats(first(k).reshape(N, -1, *s)) for k, s in self._images.items()]
        if any(x.shape[-2:] != self._size for x in images):
            images = [nn.functional.interpolate(x, self._size) for x in images]
        parts = [(inputs[k].reshape(N, -1), n) for k, n in self._vectors.items()]
        vectors = [as_floats(_one_hot(x, n) if n else x) for x, n in parts]
        return _joined(images), _joined(vectors)

    def zeros(self) -> tuple[Tensor | None, Tensor | None]:
        """An image [1, C, H, W] and a vector [1, F] of zeros, to find out a layer's size."""
        image, F = self.image_shape, self.width
        return torch.zeros(1, *image) if image else None, torch.zeros(1, F) if F else None


def _one_hot(numbers: Tensor, n: int) -> Tensor:
    """[N, K] of 0 to n - 1 -> bool [N, K * n]. Any other number has zeros only."""
    numbers = numbers.long()[..., None]  # torch compares no uint16
    return (numbers == torch.arange(n, device=numbers.device)).flatten(1)


def _joined(parts: list[Tensor]) -> Tensor | None:
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0] if parts else None


def check_image(shape: tuple[int, ...], name: str = "frame") -> None:
    """Raises UserError if an observation of this shape looks like an image [H, W, C]: C is less
    than H and W, and besides C is 1, 3 or 4, or H equals W, or H and W are at least 16 and at least
    3 C."""
    if len(shape) < 3:
        return
    H, W, C = shape[-3:]
    is_much_less = min(H, W) >= max(16, 3 * C)
    if C < min(H, W) and (C in (1, 3, 4) or H == W or is_much_less):
        raise UserError(
            f"Observation {name} {list(shape)}: expected an image [C, H, W], but this looks like "
            f"[H, W, C]; transpose it, and its space, in create_env of monobeast.py, or for "
            f"servers of polybeast_env.py (docs/fork.md)"
        )


def as_floats(frame: Tensor) -> Tensor:
    """Converts observations [N, ...] of any dtype to float32, or those of at most 8 bits to the
    dtype that convolutions compute in, and to the memory layout of the weights that `make_net`
    makes. Bytes, and images of 16 bits, are divided by their largest number. The layout is changed
    first: bytes are the cheapest to move."""
    if prefers_channels_last(tuple(frame.shape[1:])):
        frame = laid_out(frame)
    device = frame.device.type
    in_autocast = torch.is_autocast_enabled(device) and frame.element_size() == 1
    floats = frame.to(torch.get_autocast_dtype(device) if in_autocast else torch.float32)
    is_scaled = frame.dtype == torch.uint8 or (frame.dtype == torch.uint16 and frame.dim() > 2)
    return floats.mul_(1 / torch.iinfo(frame.dtype).max) if is_scaled else floats


def make_core(flags: Flags, inputs: int, outputs: int, num_layers: int = 1) -> Any:
    """The recurrent core that --core asks for, for `unroll`, or None if it asks for none. An LSTM
    reads vectors of width `inputs` and returns vectors of width `outputs`. A minGRU returns vectors
    of width `inputs`, too. The core's attribute `hidden_size` is the width that it returns."""
    if flags.core == "mingru":
        return MinGRU(inputs, num_layers)
    return nn.LSTM(inputs, outputs, num_layers) if flags.core else None


def zero_state(core: Any, batch_size: int) -> CoreState:
    """Zeros as the state of a core of `make_core`: two tensors [layers, B, H] for an LSTM, one for
    a minGRU, () for None."""
    if core is None:
        return ()
    shape, device = (core.num_layers, batch_size, core.hidden_size), next(core.parameters()).device
    count = 2 if isinstance(core, nn.LSTM) else 1
    return tuple(torch.zeros(shape, device=device) for _ in range(count))


def remember_beginnings(done: Tensor, on_host: Tensor) -> None:
    """Tells `unroll` in which rows episodes begin, so that an update without --passes need not wait
    for the device. `done` [T, B] bool has to be the object on the device that `unroll` gets, not a
    view of it; `on_host` is the same on the CPU."""
    done.begins = on_host.any(dim=1).tolist()  # type: ignore[attr-defined]


def unroll(
    core: Any, inputs: Tensor, done: Tensor, state: CoreState, initial_state: CoreState
) -> tuple[Tensor, CoreState]:
    """Runs a recurrent core over T rows. It restarts from `initial_state` where an episode begins.

    Args:
        core: nn.LSTM, nn.GRU, nn.RNN, `MinGRU`, or a module ([T, B, F], state) -> ([T, B, H],
            state) whose state is a tuple. Without one (None) the outputs are the inputs.
        inputs: [T, B, F] float.
        done: [T, B] bool, True where the row is the first of its episode.
        state: the state before row 0, a tuple of [layers, B, H].
        initial_state: the state at the start of an episode, a tuple of [layers, B, H].

    Returns:
        The core's outputs [T, B, H], and its state after the last row.
    """
    if core is None:
        return inputs, state
    if isinstance(core, MinGRU):  # it needs no cuts at resets
        return core(inputs, done, state, initial_state)
    device = inputs.device
    # oneDNN has no bf16 LSTM for processors without bf16. cuDNN's LSTM computes in float16 even
    # where autocast asks for bf16, and gradients in float16 would have to be scaled.
    lacks_bf16 = device.type != "cpu" or not has_bf16(device)
    if torch.is_autocast_enabled(device.type) and lacks_bf16:
        with torch.autocast(device.type, enabled=False):
            return unroll(core, inputs.float(), done, state, initial_state)
    T = inputs.shape[0]
    if T == 1 or torch.compiler.is_exporting():  # an export cannot branch on values
        begins = [True] * T
    else:
        begins = getattr(done, "begins", None) or done.any(dim=1).tolist()
    is_single = isinstance(core, nn.GRU | nn.RNN)  # their state is one tensor
    # The core runs over all rows between two resets in one call.
    cuts = [0] + [t for t in range(1, T) if begins[t]] + [T]
    outputs = []
    for start, stop in itertools.pairwise(cuts):
        if begins[start]:
            reset = done[start].view(1, -1, 1)
            both = zip(initial_state, state, strict=True)
            state = tuple(torch.where(reset, initial, current) for initial, current in both)
        output, after = core(inputs[start:stop], state[0] if is_single else state)
        state = (after,) if is_single else tuple(after)
        outputs.append(output)
    return torch.cat(outputs), state


def seen_by_nets(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: x for k, x in rows.items() if k != "discount" and not k.startswith(NOT_SEEN)}


class Prepared(dict):
    """The rows that `forward` gives to a network."""


def refuse_others(net: nn.Module, inputs: tuple) -> None:
    """The hook of a network that would play wrongly if it were called without `forward`."""
    if not isinstance(inputs[0], Prepared):
        said = "expected a call of models.act_on or models.forward, which scale its inputs and mask"
        raise UserError(f"{name_of(net)}: {said} its actions; seen a call of the network itself")


def forward(
    net: nn.Module, rows: dict[str, Tensor], core_state: CoreState
) -> tuple[dict[str, Tensor], CoreState]:
    """Calls `net(rows, core_state)`, for acting and for learning. If the network has moments, they
    scale the observations first.

    Args:
        rows: [T, B, ...] tensors, on the network's device.
        core_state: tuple of [layers, B, H].

    Returns:
        The network's outputs [T, B, ...] and its next core state.

    Raises:
        UserError: the network raised an error. The text has its line.
    """
    rows = seen_by_nets(rows)
    moments = getattr(net, "moments", None)
    scaled = Prepared(rows if moments is None else moments.scaled(rows))
    outputs, core_state = call_own("forward", net, scaled, core_state)
    return {**outputs, "policy_logits": masked(outputs["policy_logits"], rows)}, core_state


def masked(logits: Tensor, rows: dict[str, Tensor]) -> Tensor:
    """The logits [..., A], but MASKED for the actions whose entry in the observation `action_mask`
    [..., A] is 0 or False, if there is one, so that these actions are never chosen."""
    return logits.masked_fill(rows["action_mask"] == 0, MASKED) if "action_mask" in rows else logits


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
        state, on the CPU. Floating-point tensors are float32. If the network returns an `action`
        itself, that one is taken.

    Raises:
        UserError: the network raised an error, or its logits are not finite.
    """
    outputs, core_state = to_host(*choose_actions(net, row, core_state, greedy))
    check_finite(net, row, outputs)
    return outputs, core_state


@torch.no_grad()
def choose_actions(
    net: nn.Module, row: dict[str, Tensor], core_state: CoreState, greedy: bool
) -> tuple[dict[str, Tensor], CoreState]:
    """Does what `act_on` does, but its results stay on the network's device and are not checked."""
    outputs, core_state = forward(net, row, core_state)
    outputs = {k: _float32(v) for k, v in outputs.items() if not k.startswith("loss/")}
    if "action" not in outputs:
        distribution = cast(Distribution, net.distribution)
        logits = outputs["policy_logits"]
        with drawing(logits.device):
            outputs["action"] = (distribution.mode if greedy else distribution.sample)(logits)
    return outputs, tuple(_float32(state) for state in core_state)


def _float32(tensor: Tensor) -> Tensor:
    """Converts a floating-point tensor to float32, which holds bf16 values without rounding."""
    return tensor.float() if tensor.is_floating_point() else tensor
