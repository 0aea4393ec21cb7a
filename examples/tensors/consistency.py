# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Compares an environment written as tensor operations with a plain one, step by step.

    python -m examples.tensors.consistency examples.tensors.reference:breakout --episodes 1000

MODULE:NAME is a function without arguments that returns a `TensorEnv`, and a function that makes
one plain environment with the methods of `Reference`. Both get the same actions and random draws.
At each step the observations, rewards and episode ends must agree: integers and bools exactly,
floats to 1e-5. The first difference is reported, with what led to it.
"""

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from libtorchbeast.accelerator import devices
from libtorchbeast.flags import Parser, UserError, require, whole
from libtorchbeast.tensors import TensorEnv

TOLERANCE = 1e-5


class Draws:
    """The draws of one environment in one step, which a `Reference` reads by their names."""

    def __init__(self, env: TensorEnv, numbers: np.ndarray):
        cuts = np.cumsum(list(env.draws.values()))[:-1]
        parts = np.split(numbers, cuts) if env.draws else []
        self._left = {name: list(part) for name, part in zip(env.draws, parts, strict=True)}

    def take(self, name: str) -> np.float32:
        """The next number of this name, in [0, 1)."""
        return self._left[name].pop(0)

    def pick(self, name: str, sides: int) -> int:
        """The next number as a whole one from 0 to `sides` - 1, as `tensors.pick` makes it."""
        return int(self.take(name) * np.float32(sides))


class Reference(Protocol):
    """A plain environment. One that also has `revive()` plays on after its end for a while, so that
    late states are compared too. One that has `choose(random)` chooses the actions of games that go
    on, because random actions may lose too early."""

    def reset(self, draws: Draws) -> dict[str, Any]:
        """Begins an episode and returns the observation."""

    def step(self, action: Any, draws: Draws) -> tuple[dict[str, Any], float, bool, bool]:
        """Returns the observation, the reward, terminated and truncated."""


class Difference(AssertionError):
    """The two environments gave different values."""


class Counts(NamedTuple):
    episodes: int
    steps: int
    longest: int  # of the episodes, in steps
    rewards: int  # how many of the rewards were not 0


class Comparison:
    """Plays `num_envs` pairs of environments side by side. If the reference can `revive`, an ended
    game goes on with the probability `revived`."""

    def __init__(
        self,
        env: TensorEnv,
        make_reference: Callable[[], Reference],
        num_envs: int = 64,
        seed: int = 0,
        device: torch.device | str = "cpu",
        revived: float = 0.99,
    ):
        self._env, self._device = env, device
        self._references = [make_reference() for _ in range(num_envs)]
        self._random, self._revived = np.random.default_rng(seed), revived
        self._state = env.zeros(num_envs, device)
        self._ended = np.ones(num_envs, bool)
        self._ages = np.zeros(num_envs, np.int64)
        self._steps = self._episodes = self._longest = self._rewards = 0

    def run(self, episodes: int) -> Counts:
        """Plays until so many episodes have ended.

        Raises:
            Difference: the first one.
        """
        while self._episodes < episodes:
            self._one_step()
        return Counts(self._episodes, self._steps, self._longest, self._rewards)

    def _one_step(self) -> None:
        numbers, actions = self._draw(), self._choose()
        as_tensor = lambda x: torch.as_tensor(x, device=self._device)
        self._state["draws"] = as_tensor(numbers)
        self._state, observation, *rest = self._env.step(self._state, as_tensor(actions))
        seen = {k: v.cpu().numpy() for k, v in _parts(observation, *rest).items()}
        ended = self._ended
        self._ages = np.where(ended, 0, self._ages + 1)
        expected = []
        for i, reference in enumerate(self._references):
            draws = Draws(self._env, numbers[i])
            begun = (reference.reset(draws), 0.0, False, False) if ended[i] else None
            expected.append(_parts(*(begun or reference.step(actions[i], draws))))
        self._compare(actions, expected, seen)
        self._steps += len(ended)
        self._longest = max(self._longest, int(self._ages.max()))
        self._rewards += int((seen["reward"] != 0).sum())
        self._ended = self._revive(seen["terminated"] | seen["truncated"])
        self._episodes += int(self._ended.sum())

    def _draw(self) -> np.ndarray:
        """Draws float32 [N, k], odd multiples of 2**-24: no test of the kind u < 0.5 can depend on
        how a number is rounded."""
        size = (len(self._references), sum(self._env.draws.values()))
        return ((2 * self._random.integers(2**23, size=size) + 1) / 2**24).astype(np.float32)

    def _choose(self) -> np.ndarray:
        N, actions = len(self._references), self._env.actions
        if actions.kind == "box":
            return self._random.normal(0, 1, (N, *actions.sizes)).astype(np.float32)
        size = (N, *actions.shape)
        sizes = actions.sizes[0] if actions.kind == "discrete" else actions.sizes
        chosen = self._random.integers(0, sizes, size)
        for i, reference in enumerate(self._references):
            if hasattr(reference, "choose") and not self._ended[i]:
                chosen[i] = reference.choose(self._random)
        return chosen

    def _revive(self, ended: np.ndarray) -> np.ndarray:
        """Lets some of the ended games go on, in both. Returns which have ended."""
        if not hasattr(self._references[0], "revive"):
            return ended
        goes_on = ended & (self._random.random(len(ended)) < self._revived)
        for i in np.flatnonzero(goes_on):
            self._references[i].revive()  # type: ignore[attr-defined]
        ended = ended & ~goes_on
        self._state["ended"] = torch.as_tensor(ended, device=self._device)
        return ended

    def _compare(
        self, actions: np.ndarray, expected: list[dict[str, Any]], seen: dict[str, np.ndarray]
    ) -> None:
        for wanted in expected:
            if seen.keys() != wanted.keys():
                raise Difference(f"The parts are {sorted(seen)}, expected {sorted(wanted)}")
        for name, got in seen.items():
            values = np.stack([wanted[name] for wanted in expected])
            if got.shape != values.shape:
                shapes = f"the shape {list(got.shape[1:])}, expected {list(values.shape[1:])}"
                raise Difference(f"{name} has {shapes}")
            is_float = got.dtype.kind == "f"
            same = np.isclose(got, values, TOLERANCE, TOLERANCE) if is_float else got == values
            if not same.all():
                i, *place = where = tuple(np.argwhere(~same)[0].tolist())
                action = "a reset" if self._ended[i] else f"action {actions[i].tolist()}"
                raise Difference(
                    f"Environment {i}, step {self._ages[i]} of its episode, {action}: "
                    f"{name}{place or ''} is {got[where]}, expected {values[where]} "
                    f"({(~same[i]).sum()} of {same[i].size} differ)"
                )


def _parts(
    observation: dict[str, Any], reward: Any, terminated: Any, truncated: Any
) -> dict[str, Any]:
    return {"reward": reward, "terminated": terminated, "truncated": truncated} | observation


def load(path: str) -> tuple[TensorEnv, Callable[[], Reference]]:
    """Calls the function that MODULE:NAME names. Raises UserError if there is none."""
    module, _, name = path.partition(":")
    try:
        env, make_reference = getattr(importlib.import_module(module), name)()
        return env, make_reference
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        example = "examples.tensors.reference:breakout"
        said = f"expected MODULE:NAME, for example {example}; seen {path!r} ({error})"
        raise UserError(said) from error


def make_parser() -> Parser:
    parser = Parser("consistency", __doc__)
    add = parser.add_argument
    add("pair", metavar="MODULE:NAME", help="The pair to compare.")
    add("--episodes", type=whole(1), default=1000, help="Number of whole episodes to play.")
    add("--num_envs", type=whole(1), default=64, help="Number of environments.")
    add("--seed", type=whole(0), default=0, help="Seed of actions and draws.")
    add("--device", default="cpu", help="Device of the tensors, for example cuda.")
    return parser


def main(argv: list[str] | None = None) -> None:
    try:
        flags = make_parser().parse_args(argv)
        found = f"cpu or an accelerator, and {devices.accelerators()}"
        require(flags, "device", devices.exists(flags.device), found)
        pair = load(flags.pair)
        start = time.monotonic()
        comparison = Comparison(*pair, flags.num_envs, flags.seed, flags.device)
        counts = comparison.run(flags.episodes)
    except UserError as error:
        sys.exit(f"consistency: error: {error}")
    except Difference as difference:
        sys.exit(f"consistency: {difference}")
    print(
        f"{flags.pair}: no difference in {counts.episodes:,} whole episodes, "
        f"{counts.steps:,} steps (the longest episode {counts.longest:,}, "
        f"{counts.rewards:,} rewards that are not 0), "
        f"{time.monotonic() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
