# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a `Net` knows of an environment: its observations, its actions, and their sizes."""

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from libtorchbeast.flags import UserError

# What a row says about each environment besides its observation: key -> dtype of an array [N].
# They are also the fields of a Step, in its order; rpcenv.proto says what each of them means.
ROW_FIELDS = {
    "reward": "float32",
    "done": "bool",
    "terminated": "bool",
    "truncated": "bool",
    "episode_over": "bool",
    "episode_step": "int32",
    "episode_return": "float32",
}

# The keys that a row has, or gets from the network's outputs. An observation may not use them, nor
# those that begin with `game/`.
OTHER_KEYS = "discount last_action action policy_logits baseline policy_version past".split()
ROW_KEYS = frozenset([*ROW_FIELDS, *OTHER_KEYS])

LARGE_IMAGE = 36  # pixels in a row and in a column, as the networks for Atari need
LONGEST_ONE_HOT = 4096  # numbers; more would cost too much memory

NOT_SEEN = ("loss/", "game/")  # how the keys of rows begin that networks do not get


@dataclasses.dataclass(frozen=True)
class Actions:
    """The kind and the sizes of an environment's actions.

    kind             sizes                      an action
    discrete         (A,)                       a number from 0 to A - 1
    multi_discrete   (A_1, ..., A_K)            K numbers, number k from 0 to A_k - 1
    box              (D,)                       D real numbers; see `to_space`
    """

    kind: str
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        """As Gymnasium names the space, without a Box's bounds."""
        names = {"discrete": "Discrete", "multi_discrete": "MultiDiscrete", "box": "Box"}
        return f"{names[self.kind]}{self.sizes}".replace(",)", ")")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one action."""
        return {"discrete": (), "multi_discrete": (len(self.sizes),), "box": self.sizes}[self.kind]

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32 if self.kind == "box" else np.int64)

    def zeros(self, num_envs: int) -> np.ndarray:
        return np.zeros((num_envs, *self.shape), self.dtype)

    def check(self, actions: np.ndarray, num_envs: int) -> None:
        """Raises ValueError unless there is one action for each environment, and all in range."""
        is_kind = actions.dtype.kind in ("f" if self.kind == "box" else "iu")
        if actions.shape != (num_envs, *self.shape) or not is_kind:
            expected = f"{self.dtype}{[num_envs, *self.shape]}"
            seen = f"{actions.dtype}{list(actions.shape)}"
            raise ValueError(f"Actions: expected {expected}, seen {seen}")
        if self.kind == "box":
            wrong, expected = ~np.isfinite(actions), "finite numbers"
        else:
            wrong = (actions < 0) | (actions >= np.array(self.sizes))
            expected = " and ".join(f"0 to {size - 1}" for size in self.sizes)
        if wrong.any():
            n = int(wrong.reshape(num_envs, -1).any(axis=1).argmax())
            seen = f"{actions[n].tolist()} for environment {n}"
            raise ValueError(f"Actions: expected {expected}, seen {seen}")


@dataclasses.dataclass(frozen=True)
class Spec:
    """What all environments of a run have in common."""

    name: str  # the environment's, for messages and checkpoints
    num_envs: int  # N environments are stepped as one batch
    observations: dict[str, tuple[tuple[int, ...], str]]  # name -> (shape, numpy dtype name)
    actions: Actions
    frames_per_step: int = 1  # emulator frames per agent step
    # Name -> k: the observation [k, ...] is a stack of the k newest frames, oldest first, zeros
    # before a game's first frame. It matters on the wire only: a network sees the whole stack.
    stacks: dict[str, int] = dataclasses.field(default_factory=dict)
    # Name -> n: the observation's integers, 0 to n - 1, each stand for one of n things without an
    # order. The networks of this repository see them one-hot.
    sets: dict[str, int] = dataclasses.field(default_factory=dict)
    # Further keys of rows, float32 [N], that networks do not get: `discount`, a transition's own,
    # and `game/NAME`, a number that the environment told at a game's end, else NaN.
    numbers: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """Returns what `from_json` reads, in another process of this program."""
        return json.dumps(dataclasses.asdict(self), default=int).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Spec":
        values = json.loads(text)
        shapes = values["observations"].items()
        values["observations"] = {k: (tuple(shape), dtype) for k, (shape, dtype) in shapes}
        sizes = tuple(values["actions"]["sizes"])
        values["actions"] = Actions(values["actions"]["kind"], sizes)
        return cls(**values | {"numbers": tuple(values["numbers"])})

    @property
    def leaves(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The observations and the numbers."""
        return self.observations | dict.fromkeys(self.numbers, ((), "float32"))

    @property
    def num_actions(self) -> int:
        """A, for discrete actions only. libtorchbeast.distributions handles all kinds. Raises
        UserError if the actions are of another kind."""
        if self.actions.kind != "discrete":
            raise UserError(f"{self.name}: expected discrete actions, seen {self.actions}")
        return self.actions.sizes[0]

    @property
    def for_nets(self) -> "Spec":
        """The spec as a network gets it, without the observations under a key `loss`."""
        seen = {k: x for k, x in self.observations.items() if not k.startswith(NOT_SEEN)}
        return dataclasses.replace(self, observations=seen)

    @property
    def groups(self) -> dict[str, int]:
        """Where several agents act at once (agents.py), the number of agents of each group."""
        parts = ((k.partition("/"), shape) for k, (shape, _) in self.observations.items())
        return {k[0]: shape[0] for k, shape in parts if k[2] == "reward" and len(shape) == 1}

    @property
    def of_one_agent(self) -> "Spec":
        """The spec with what one agent of each group sees, without their axis, rewards and ends."""
        if not self.groups:
            return self
        parts = self.observations.items()
        hidden = {*ROW_FIELDS, "loss"}  # as GROUP/reward and GROUP/loss/NAME
        own = {k: (s[1:], d) for k, (s, d) in parts if [*k.split("/"), ""][1] not in hidden}
        return dataclasses.replace(self, observations=own)

    @functools.cached_property
    def masks(self) -> dict[str, np.ndarray]:
        """The name of each action mask, and where the part of each of an agent's choices begins."""
        groups, sizes, starts, first = self.groups or {"": 1}, self.actions.sizes, {}, 0
        width = len(sizes) // (sum(groups.values()) or 1)
        for group, agents in groups.items():
            name, own = f"{group}/action_mask".lstrip("/"), sizes[first : first + width]
            if name in self.observations and self.observations[name][0][-1:] == (sum(own),):
                starts[name] = np.cumsum([0, *own[:-1]])
            first += agents * width
        return starts

    def parts_of(self, observation: Any) -> dict[str, Any]:
        """An observation as {name: part}. Raises UserError unless these are the spec's parts."""
        parts, expected = flatten_observation(observation), self.observations
        if parts.keys() != expected.keys():
            raise UserError(f"Observation: expected the parts {[*expected]}, seen {[*parts]}")
        return parts

    def check_sets(self, rows: dict[str, np.ndarray]) -> None:
        """Raises UserError for a number beyond its set, which would be no input at all."""
        for name, n in self.sets.items():
            x = rows[name]
            if x.min() < 0 or x.max() >= n:
                seen = x[(x < 0) | (x >= n)][0]
                raise UserError(f"Observation {name!r}: expected 0 to {n - 1}, seen {seen}")

    def check_masks(self, rows: dict[str, np.ndarray], ended: np.ndarray) -> None:
        """Raises UserError if a mask allows no action for a choice while the episode goes on: rows
        [..., N, ...], and `ended` [..., N], True in the last row of an episode."""
        for name, starts in self.masks.items():
            is_possible = np.logical_or.reduceat(rows[name] != 0, starts, axis=-1).all(axis=-1)
            over = ended.reshape(*ended.shape, *[1] * (is_possible.ndim - ended.ndim))
            if group := name.rpartition("/")[0]:
                for end in ("done", "terminated", "truncated"):  # of each agent, [..., N, A]
                    over = over | (rows.get(f"{group}/{end}", 0) != 0)
            if (stuck := ~is_possible & ~over).any():
                n = np.argwhere(stuck)[0, ended.ndim - 1]
                seen = f"Observation {name!r} of environment {n}"
                raise UserError(f"{seen}: expected an allowed action, as the episode goes on")

    @property
    def has_vectors(self) -> bool:
        """Whether what a network sees has floats and no image (see `is_image`)."""
        return bool(self.scalable) and not self.images

    @property
    def has_large_images(self) -> bool:
        return any(min(shape[-2:]) >= LARGE_IMAGE for shape in self.images.values())

    @property
    def images(self) -> dict[str, tuple[int, ...]]:
        """The shapes [C, H, W] of the images that a network sees."""
        shapes = {k: channels_first(*leaf) for k, leaf in self.for_nets.observations.items()}
        return {k: shape for k, shape in shapes.items() if is_image(shape)}

    @property
    def scalable(self) -> list[str]:
        """The observations that --observation_scaling moments scales: floats that are no image."""
        parts = self.for_nets.observations.items()
        return [k for k, (shape, dtype) in parts if "float" in dtype and not is_image(shape)]

    @property
    def codes(self) -> list[str]:
        """The observations of integers with more than 8 bits, which nothing scales."""
        parts = {k: np.dtype(dtype) for k, (_, dtype) in self.for_nets.observations.items()}
        integers = [k for k, dtype in parts.items() if dtype.kind in "iu" and dtype.itemsize > 1]
        others = {k for k in self.images if parts[k] == np.uint16} | {*self.masks, *self.sets}
        return [k for k in integers if k not in others | {"action_mask"}]

    def signature(self) -> dict[str, Any]:
        """Plain data that is equal for two environments if one network can serve both."""
        sets = {"sets": self.sets} if self.sets else {}
        return sets | {
            "observations": {k: [list(s), d] for k, (s, d) in self.observations.items()},
            "actions": [self.actions.kind, list(self.actions.sizes)],
        }

    def misfit(self, signature: dict[str, Any], whose: str = "") -> str:
        """Says how this differs from another signature, or "" if it does not. The order of groups
        is that of their actions."""
        own, parts = self.signature(), [*self.observations]
        if own == signature and not (self.groups and parts != [*signature["observations"]]):
            return ""
        return f"expected {whose}{_said(signature)}; seen {_said(own)}"


def _said(signature: dict[str, Any]) -> str:
    """A signature in words, for example `frame uint8[4, 84, 84] and Discrete(6)`."""
    kind, sizes = signature["actions"]
    leaves, sets = signature["observations"].items(), signature.get("sets", {})
    below = {name: f" below {n}" for name, n in sets.items()}
    frames = [f"{k} {dtype}{list(shape)}{below.get(k, '')}" for k, (shape, dtype) in leaves]
    return f"{', '.join(frames)} and {Actions(kind, tuple(sizes))}"


def is_row_key(name: str) -> bool:
    return name in ROW_KEYS or name.startswith(("core_state/", "column/", "game/"))


def is_number(name: str) -> bool:
    """Whether a row's key is one of `Spec.numbers`."""
    return name == "discount" or name.startswith("game/")


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether an observation of this shape, [C, H, W] or [H, W], is an image for the networks here.
    A small [H, W] is rather a table of numbers."""
    least = LARGE_IMAGE if len(shape) == 2 else 3
    return len(shape) >= 2 and min(shape[-2:]) >= least


def channels_first(shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """The shape of an observation as the networks here read it: [C, H, W] for what is beyond doubt
    an image [H, W, C] of bytes."""
    is_last = dtype == "uint8" and shape[-1:] in ((1,), (3,), (4,)) and min((0, *shape)[-3:-1]) > 4
    return (*shape[:-3], shape[-1], *shape[-3:-1]) if is_last else shape


def prefers_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether convolutions over images of this shape [C, H, W] are faster if the channels are last
    in memory, on CPUs and on tensor cores. For small images the copy before the linear layer costs
    more than that gains: on MinAtar the other layout gives 1.17 times the updates per second."""
    return len(shape) == 3 and min(shape[1:]) >= LARGE_IMAGE


def flatten_space(space: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns {name: (shape, dtype name)} of a space's `leaves_of`."""
    leaves = leaves_of(space).items()
    return {name: (tuple(leaf.shape), np.dtype(leaf.dtype).name) for name, leaf in leaves}


def sets_of(space: Any) -> dict[str, int]:
    """Returns `Spec.sets` of a space: {name: n} of its leaves that are Discrete or MultiDiscrete,
    with the largest n of a leaf. Images, negative numbers, and what would be longer than
    LONGEST_ONE_HOT are left out."""
    return {name: n for name, leaf in leaves_of(space).items() if (n := _set_size(leaf))}


def _set_size(leaf: Any) -> int:
    if hasattr(leaf, "set_size"):  # that of one of several agents, which parallel.py has found
        return leaf.set_size
    sizes = getattr(leaf, "nvec", 0 if leaf.shape else getattr(leaf, "n", 0))
    start = np.asarray(getattr(leaf, "start", 0))
    n = int(np.max(sizes + start, initial=0))
    return n if np.all(start >= 0) and is_set(n, leaf.shape) else 0


def is_set(n: int, shape: tuple[int, ...]) -> bool:
    """Whether numbers below n of this shape are few enough to be one-hot, and no image."""
    return 0 < n * math.prod(shape) <= LONGEST_ONE_HOT and not is_image(shape)


def leaves_of(space: Any, prefix: str = "") -> dict[str, Any]:
    """Returns {name: space} of a space's parts that have no parts, in the space's own order.

    A space without parts is called `frame`. The parts of a Dict or Tuple are called by their keys;
    the keys of nested parts are joined by "/". Raises UserError if a leaf has no shape, a dtype
    that torch does not know, or a row's key."""
    parts = getattr(space, "spaces", None)
    if parts is not None and type(space).__name__ != "OneOf":  # which gives one of its parts only
        items = parts.items() if hasattr(parts, "items") else enumerate(parts)
        leaves: dict[str, Any] = {}
        for key, part in items:
            more = leaves_of(part, f"{prefix}{key}/")
            if twice := sorted(leaves.keys() & more.keys()):
                raise UserError(f"Observation keys: expected each once, seen {twice} twice")
            leaves.update(more)
        return leaves
    name = prefix[:-1] or "frame"
    if is_row_key(name):
        raise UserError(f"The observation key {name!r} is also a row's key; please rename it")
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None or np.dtype(dtype).kind not in "biuf":
        raise UserError(f"Observation {name!r}: expected an array of numbers, seen {brief(space)}")
    dtype = np.dtype(dtype)
    if dtype.itemsize > 8:  # np.longdouble, which torch does not know
        said = f"expected numbers of at most 64 bits, seen {dtype.name}"
        raise UserError(f"Observation {name!r}: {said}")
    return {name: space}


def brief(value: Any) -> str:
    """What an environment gave, in one line of at most 100 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else text[:97] + "..."


def is_end(x: Any) -> Any:
    """Whether a number, or each of an array, is a bool. Of other values than bools, such as
    "False", [False] or NaN, Python would take most for True."""
    return (x == 0) | (x == 1)


def checked_number(what: str, value: Any, fits: Callable, expected: str, source: str) -> float:
    """Returns a number that `source` gave as `what`, if it fits. Else raises UserError."""
    with contextlib.suppress(TypeError, ValueError):
        if np.ndim(value) == 0 and fits(np.asarray(value)):  # it may be a tensor
            return float(value)
    seen = brief(value.tolist() if hasattr(value, "tolist") else value)
    kind = type(value).__name__
    raise UserError(f"{what}: expected {expected}, seen {seen} (a {kind}) from {source}")


def flatten_observation(observation: Any, prefix: str = "") -> dict[str, Any]:
    """Returns {name: leaf} of one observation, with the names of `leaves_of`."""
    if isinstance(observation, (dict, tuple)):
        items = observation.items() if isinstance(observation, dict) else enumerate(observation)
        leaves = {}
        for key, part in items:
            leaves.update(flatten_observation(part, f"{prefix}{key}/"))
        return leaves
    return {prefix[:-1] or "frame": observation}


def spec_of_spaces(
    name: str, num_envs: int, space: Any, action_space: Any, metadata: dict[str, Any]
) -> Spec:
    """Returns the Spec of environments with these spaces and this metadata. Raises UserError if one
    of them is not as docs/fork.md says."""
    observations, actions = flatten_space(space), describe_actions(action_space)
    shapes = [s for name, (s, _) in observations.items() if not name.startswith(NOT_SEEN)]
    if not any(math.prod(shape) for shape in shapes):
        raise UserError(f"Observation: expected at least one number, seen the shapes {shapes}")
    check_action_mask(observations, actions)
    told = _declared(metadata, observations)
    return Spec(name, num_envs, observations, actions, sets=sets_of(space), **told)


def _declared(metadata: dict[str, Any], observations: dict) -> dict[str, Any]:
    """Returns the fields of a Spec that an environment declares in its metadata."""
    frames, stacks = metadata.get("frames_per_step", 1), metadata.get("frame_stacks", {})
    if not isinstance(frames, int | np.integer) or frames < 1:
        said = f"expected a whole number of at least 1, seen {brief(frames)}"
        raise UserError(f'metadata["frames_per_step"]: {said}')
    if not isinstance(stacks, dict):
        said = f"expected {{NAME: number of frames}}, seen {brief(stacks)}"
        raise UserError(f'metadata["frame_stacks"]: {said}')
    for name, k in stacks.items():
        if name not in observations:
            expected = f"names of {sorted(observations)}, seen {name!r}"
            raise UserError(f'metadata["frame_stacks"]: expected {expected}')
        shape, _ = observations[name]
        if not isinstance(k, int | np.integer) or k < 2 or shape[:1] != (k,):
            expected = f"{name!r} [{k}, ...], at least 2 frames, seen {list(shape)}"
            raise UserError(f'metadata["frame_stacks"] {stacks}: expected {expected}')
    names = metadata.get("game_numbers", [])
    is_plain = lambda x: isinstance(x, str) and x.isidentifier() and x.isascii() and x[0] != "_"
    if not isinstance(names, list | tuple) or not all(map(is_plain, names)):
        said = f"expected a list of plain identifiers, seen {brief(names)}"
        raise UserError(f'metadata["game_numbers"]: {said}')
    if taken := sorted({"return", "length", "past"} & {*names}):
        said = f"expected names of which the log has no column game_NAME yet, seen {taken}"
        raise UserError(f'metadata["game_numbers"]: {said}')
    own = ["discount"] if metadata.get("own_discounts") else []
    numbers = *own, *(f"game/{name}" for name in names)
    return dict(frames_per_step=int(frames), stacks=dict(stacks), numbers=numbers)


def describe_actions(space: Any) -> Actions:
    """Returns the Actions of an action space. Raises UserError for a space of another kind."""
    shape = getattr(space, "shape", ())
    if hasattr(space, "n") and shape == ():
        return Actions("discrete", (int(space.n),))
    if hasattr(space, "nvec"):
        return Actions("multi_discrete", tuple(int(n) for n in np.ravel(space.nvec)))
    if hasattr(space, "low") and np.dtype(space.dtype).kind == "f" and math.prod(shape) > 0:
        return Actions("box", (math.prod(shape),))
    expected = "Discrete, MultiDiscrete, or a Box of floats (at least one)"
    raise UserError(f"Action space: expected {expected}, seen {brief(space)}")


def to_space(actions: np.ndarray, space: Any) -> np.ndarray:
    """Turns actions [N, *Actions.shape] into those of a space, [N, *space.shape].

    The first action of a Discrete or MultiDiscrete space is its `start`, which often is 0.
    A Box's actions are clipped to its bounds. Where both are finite, -1 and 1 from the policy
    mean the bounds, so that the policy's first actions reach the whole space, whatever its units.
    """
    actions = actions.reshape(len(actions), *getattr(space, "shape", ()))
    if not hasattr(space, "low"):
        first = getattr(space, "start", 0)
        return (actions + first).astype(getattr(space, "dtype", actions.dtype), copy=False)
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
    share = (np.clip(actions, -1, 1) + 1) / 2
    actions = np.where(bounded, low * (1 - share) + high * share, actions)  # never overflows
    return np.clip(actions, space.low, space.high).astype(space.dtype)


def check_action_mask(observations: dict, actions: Actions) -> None:
    """Checks the observation `action_mask`, if there is one.

    A mask [A] is nonzero where an action is allowed; for MultiDiscrete actions it has the masks of
    the parts one after the other, [A_1 + ... + A_K]. Raises UserError if the mask has another shape
    or dtype, or the actions are a Box."""
    if "action_mask" not in observations:
        return
    shape, dtype = observations["action_mask"]
    if actions.kind == "box" or shape != (sum(actions.sizes),) or np.dtype(dtype).kind not in "biu":
        each = f"for each action, {[sum(actions.sizes)]}, and no Box of actions"
        seen = f"{dtype}{list(shape)} and {actions.kind} actions"
        raise UserError(f"action_mask: expected a bool or integer {each}; seen {seen}")
