# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What an environment looks like from outside: all that a `Net` may know of it."""

import dataclasses
from typing import Any

import numpy as np

# The keys of a row (README, "The picture") that an observation may not use.
ROW_KEYS = frozenset(
    "reward done terminated truncated episode_over episode_step episode_return last_action "
    "action policy_logits baseline policy_version".split()
)


@dataclasses.dataclass(frozen=True)
class Actions:
    kind: str  # "discrete"
    sizes: tuple[int, ...]  # discrete: (number of actions,)


@dataclasses.dataclass(frozen=True)
class Spec:
    name: str  # the environment's, for messages and checkpoints
    num_envs: int  # N, stepped as one batch
    observations: dict[str, tuple[tuple[int, ...], str]]  # name -> (shape, numpy dtype name)
    actions: Actions
    frames_per_step: int = 1  # emulator frames per agent step
    # Name -> k: an observation [k, ...] that is a stack of the k newest frames, oldest first, zeros
    # before a game's first. On the wire only; a network sees the whole stack.
    stacks: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def num_actions(self) -> int:
        return self.actions.sizes[0]

    def signature(self) -> dict[str, Any]:
        """What two environments must share for one network to serve both, as plain data."""
        return {
            "observations": {k: [list(s), d] for k, (s, d) in self.observations.items()},
            "actions": [self.actions.kind, list(self.actions.sizes)],
        }


def flatten_space(space: Any, prefix: str = "") -> dict[str, tuple[tuple[int, ...], str]]:
    """{name: (shape, dtype name)} of a space's leaves, in the space's own order.

    A space without parts is called `frame`; the parts of a Dict or Tuple keep their keys, nested
    ones joined by "/".

    Raises:
        ValueError: a leaf has no shape or a non-numeric dtype, or its name is a row's.
    """
    parts = getattr(space, "spaces", None)
    if parts is not None:
        items = parts.items() if hasattr(parts, "items") else enumerate(parts)
        leaves = {}
        for key, part in items:
            more = flatten_space(part, f"{prefix}{key}/")
            if twice := sorted(leaves.keys() & more.keys()):
                raise ValueError(f"Observation keys: expected each once, seen {twice} twice")
            leaves.update(more)
        return leaves
    name = prefix[:-1] or "frame"
    if name in ROW_KEYS or name.startswith("core_state/"):
        raise ValueError(f"The observation key {name!r} is also a row's key; please rename it")
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None or np.dtype(dtype).kind not in "biuf":
        raise ValueError(f"Observation {name!r}: expected a numeric array space, seen {space}")
    return {name: (tuple(shape), np.dtype(dtype).name)}


def flatten_observation(observation: Any, prefix: str = "") -> dict[str, Any]:
    """{name: leaf} of one observation, named as in `flatten_space`."""
    if isinstance(observation, (dict, tuple)):
        items = observation.items() if isinstance(observation, dict) else enumerate(observation)
        leaves = {}
        for key, part in items:
            leaves.update(flatten_observation(part, f"{prefix}{key}/"))
        return leaves
    return {prefix[:-1] or "frame": observation}


def describe_actions(space: Any) -> Actions:
    """Raises ValueError for action spaces that the agent does not know."""
    n = getattr(space, "n", None)
    if n is None or getattr(space, "shape", ()) != () or getattr(space, "start", 0) != 0:
        raise ValueError(f"Action space: expected Discrete(n) starting at 0, seen {space}")
    return Actions("discrete", (int(n),))
