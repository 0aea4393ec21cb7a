# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments that are written as tensor operations, N of them as one dict of tensors [N, ...].

A fork writes a `TensorEnv`. `TensorVector` turns it into a vector environment that every beast
accepts, and `TensorRows` turns that into rows on the network's device, for `warpbeast.py`.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from libtorchbeast.environment import told_in
from libtorchbeast.flags import UserError
from libtorchbeast.seeds import derive_seed
from libtorchbeast.spec import Actions, Spec, brief

State = dict[str, Tensor]
Row = dict[str, Tensor]


class TensorEnv:
    """What a fork writes: an environment as functions of a state, a dict of tensors [N, ...].

    The functions are pure: they return new tensors and leave those that they get as they are. They
    contain no loop over environments, no branch on a tensor's value and nothing that waits for the
    device, such as `item()` or `nonzero()`. So they can be compiled into one graph.

    Random numbers are an input. `draws` says how many an environment needs at most in a step or a
    reset. Whoever drives the environment puts new ones into `state["draws"]` before each call, and
    `drawn` reads them. So other programs can be given the same ones (examples/tensors/consistency).

    Class attributes or attributes of an instance:
        observations: {name: (shape, numpy dtype name)} of one environment, as in Spec.
        actions: as in Spec. Actions of a box arrive as the policy gave them.
        state: {name: (shape, dtype)} of one environment. The names draws and ended are taken.
        draws: {name: how many numbers}.
        frames_per_step: emulator frames per step.
    """

    observations: dict[str, tuple[tuple[int, ...], str]]
    actions: Actions
    state: dict[str, tuple[tuple[int, ...], torch.dtype]]
    draws: dict[str, int] = {}
    frames_per_step = 1
    own_discounts = False  # True: state["discount"], float32 [N], is the last transition's own

    def reset(self, state: State, mask: Tensor) -> State:
        """Begins a new episode where `mask` [N] is True. See `put`."""
        raise _lacks(self, "reset")

    def advance(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor, Tensor]:
        """Plays one step in each environment.

        Where `state["ended"]`, the result is not used, because the environment is reset.

        Args:
            actions: [N, *actions.shape], int64, or float32 for a box.

        Returns:
            The state, the reward float32 [N], and bool [N]: whether the episode terminated, and
            whether it was truncated.
        """
        raise _lacks(self, "advance")

    def observe(self, state: State) -> dict[str, Tensor]:
        """Returns the observations {name: [N, *shape]}."""
        raise _lacks(self, "observe")

    def picture(self, state: State) -> np.ndarray:
        """Returns a picture of environment 0, uint8 [H, W, 3], for test_render."""
        raise _lacks(self, "picture")

    # --------------------------------------------------------------- what a fork need not write
    def zeros(self, num_envs: int, device: torch.device | str = "cpu") -> State:
        """A state to begin with: all environments have ended, so that the first step resets them.
        It has no draws yet."""
        shapes = {name: ((num_envs, *shape), dtype) for name, (shape, dtype) in self.state.items()}
        state = {k: torch.zeros(shape, dtype=d, device=device) for k, (shape, d) in shapes.items()}
        return state | {"ended": torch.ones(num_envs, dtype=torch.bool, device=device)}

    def step(
        self, state: State, actions: Tensor
    ) -> tuple[State, dict[str, Tensor], Tensor, Tensor, Tensor]:
        """Plays one step, with next-step autoreset: an environment that ended in the step before is
        reset instead, and its action is not used.

        Returns:
            The state, the observations, the reward, terminated and truncated.
        """
        begins = state["ended"]
        state, reward, terminated, truncated = self.advance(state, actions)
        for name, x in dict(reward=reward, terminated=terminated, truncated=truncated).items():
            _check_result(name, x, begins.shape)
        state = self.reset(state, begins)
        terminated, truncated = terminated & ~begins, truncated & ~begins
        state = {**state, "ended": terminated | truncated}
        return state, self.observe(state), reward.masked_fill(begins, 0), terminated, truncated

    def put(self, state: State, mask: Tensor, **values: Any) -> State:
        """Returns the state with other values where `mask` [N] is True. A value is a number, or a
        tensor [N, ...] or [...], and gets the dtype of what it replaces."""
        new = dict(state)
        for name, value in values.items():
            old = state[name]
            where = mask.view(-1, *[1] * (old.dim() - 1))
            new[name] = torch.where(where, value, old).to(old.dtype)
        return new

    def drawn(self, state: State, name: str, sides: int | Tensor | None = None) -> Tensor:
        """The random numbers `name`, [N, k], or [N] if k is 1: float32 in [0, 1), or int64 from 0
        to `sides` - 1."""
        names = list(self.draws)
        if name not in names:
            raise UserError(f"drawn: expected one of the draws {names}, seen {name!r}")
        first = sum(list(self.draws.values())[: names.index(name)])
        numbers = state["draws"][:, first : first + self.draws[name]].squeeze(1)
        return numbers if sides is None else pick(numbers, sides)


def _lacks(env: TensorEnv, method: str) -> UserError:
    return UserError(f"{type(env).__name__}: expected a method {method!r}, seen none")


def _check_result(name: str, x: Any, shape: torch.Size) -> None:
    """Raises UserError if this result of `advance` has another shape (one number would be taken for
    all environments), or if it says how an episode ended and is not bool."""
    is_tensor, is_end = isinstance(x, Tensor), name != "reward"
    if is_tensor and x.shape == shape and not (is_end and x.dtype != torch.bool):
        return
    expected = f"{'bool' if is_end else 'float32'}{list(shape)}"
    seen = f"{str(x.dtype)[6:]}{list(x.shape)}" if is_tensor else brief(x)
    raise UserError(f"advance: expected {expected} as {name}, seen {seen}")


def pick(numbers: Tensor, sides: int | Tensor) -> Tensor:
    """Turns float32 in [0, 1) into int64 from 0 to `sides` - 1. With fewer than 2**23 sides,
    rounding never gives `sides`."""
    return (numbers * sides).long()


class TensorVector:
    """N environments as a vector environment of Gymnasium with next-step autoreset. It takes
    actions [N, ...] as tensors or arrays, and gives tensors on `device`.

    Args:
        env: is shared by all vectors, because it has no state of its own.
        seed: of the random numbers. `reset(seed=...)` sets another.
        compiled: turns `env.step` into a faster function.
    """

    def __init__(
        self,
        env: TensorEnv,
        num_envs: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda step: step,
    ):
        self.env, self.num_envs, self.device = env, num_envs, torch.device(device)
        self.metadata = {
            "autoreset_mode": "NextStep",
            "frames_per_step": env.frames_per_step,
            "own_discounts": env.own_discounts,
            "render_modes": ["rgb_array"],
        }
        parts = {name: _box(shape, dtype) for name, (shape, dtype) in env.observations.items()}
        # Gymnasium would sort the parts of a plain dict.
        self.single_observation_space = spaces.Dict(OrderedDict(parts))
        self.single_action_space = _action_space(env.actions)
        self._step = compiled(env.step)
        self._draws = sum(env.draws.values())
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._actions = torch.as_tensor(env.actions.zeros(num_envs), device=self.device)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        if seed is not None:
            # Another stream than that of the actions, whose generator may have the same seed.
            self._generator.manual_seed(derive_seed(seed, 1))
        self.state = self.env.zeros(self.num_envs, self.device)
        return self.step(self._actions)[0], {}

    def step(self, actions: Any) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict]:
        size = (self.num_envs, self._draws)
        self.state["draws"] = torch.rand(size, generator=self._generator, device=self.device)
        actions = torch.as_tensor(actions, device=self.device)
        # It may have a network of its own, and another network's autocast context is around it.
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            self.state, *result = self._step(self.state, actions)
        observation, reward, terminated, truncated = result
        own = {"discount": self.state["discount"]} if self.env.own_discounts else {}
        return observation, reward, terminated, truncated, {"torchbeast": own} if own else {}

    def render(self) -> np.ndarray:
        return self.env.picture(self.state)

    def close(self) -> None:
        pass


def _box(shape: tuple[int, ...], dtype: Any) -> Any:
    kind = np.dtype(dtype).kind
    low, high = {"f": (-math.inf, math.inf), "b": (0, 1)}.get(kind, (0, 0))
    if kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return spaces.Box(low, high, shape, np.dtype(dtype).type)


def _action_space(actions: Actions) -> Any:
    if not isinstance(actions, Actions) or not isinstance(actions.sizes, tuple):
        raise UserError(f"expected such actions as Actions('discrete', (3,)), seen {actions!r}")
    if actions.kind == "discrete":
        return spaces.Discrete(actions.sizes[0])
    if actions.kind == "multi_discrete":
        return spaces.MultiDiscrete(list(actions.sizes))
    return _box(actions.sizes, "float32")


class TensorRows:
    """Makes rows, as `environment.Environment` does, of a vector environment that gives tensors.
    The rows lie on the vector's device, and nothing waits for it.

    Args:
        vector: a `TensorVector`, or another vector environment with next-step autoreset whose
            `reset` and `step` give tensors on `device`.
        spec: the one that Environment found in it.

    Raises:
        UserError: from `initial` and `step`, if the vector gives anything but tensors on `device`,
            or others than its spaces say.
    """

    def __init__(self, vector: Any, spec: Spec, device: torch.device):
        self._vector, self.spec, self._device = vector, spec, device
        self._has_discounts = "discount" in spec.numbers
        if of_games := [name for name in spec.numbers if name != "discount"]:
            expected = "no game_numbers in its metadata, which WarpBeast cannot read"
            raise UserError(f"Vector environment: expected {expected}, seen {', '.join(of_games)}")
        self._space = vector.single_action_space
        start = np.asarray(getattr(self._space, "start", 0))
        self._start = torch.as_tensor(start, device=device) if start.any() else 0
        if spec.actions.kind == "box":
            bounds = np.asarray(self._space.low), np.asarray(self._space.high)
            self._low, self._high = (torch.as_tensor(x, device=device) for x in bounds)
            self._bounded = self._low.isfinite() & self._high.isfinite()

    @torch.no_grad()  # a simulator may be differentiable
    def initial(self, seed: int) -> Row:
        """Resets all environments and returns the first row."""
        observation = self._checked_parts(self._vector.reset(seed=seed)[0])
        N = self.spec.num_envs
        zeros = lambda dtype: torch.zeros(N, dtype=dtype, device=self._device)
        self._ended, never = ~zeros(torch.bool), zeros(torch.bool)
        self._steps, self._return = zeros(torch.int32), zeros(torch.float64)
        self._sign = torch.ones_like(self._return)  # -1: the next reward is the opponent's
        none = torch.as_tensor(self.spec.actions.zeros(N), device=self._device)
        return self._row(observation, zeros(torch.float32), never, never, none, {})

    @torch.no_grad()
    def step(self, actions: Tensor) -> Row:
        """Steps all environments with `actions` [N, *Actions.shape]."""
        observation, reward, *ends, info = self._vector.step(self._to_space(actions))
        ends = [self._checked("end", x) for x in ends]
        if any(x.is_floating_point() for x in ends):  # NaN would be True
            raise UserError("Vector environment: expected bools as the ends, seen floats")
        terminated, truncated = (x.bool() for x in ends)
        reward = self._checked("reward", reward).float()
        parts = self._checked_parts(observation)
        return self._row(parts, reward, terminated, truncated, actions, info)

    def _own_discount(self, info: dict[str, Any], done: Tensor) -> Row:
        """The transition's own discount, with which the sign of the next reward may change. It is
        as told: whoever reads the rows on the host has to refuse one beyond [-1, 1]."""
        own = told_in(info)
        if unread := sorted(own.keys() - {"discount"}):
            said = f"{unread[0]}, which WarpBeast cannot read"
            raise UserError(f'info["torchbeast"] tells {said}')
        told = own.get("discount")
        if not self._has_discounts and told is None:
            return {}
        if not self._has_discounts:
            said = 'expected metadata["own_discounts"] = True, seen none'
            raise UserError(f'info["torchbeast"] tells discount: {said}')
        none = torch.ones_like(self._sign)
        discount = none if told is None else self._checked("discount", told).masked_fill(done, 1)
        self._sign = torch.where(done, none, self._sign * torch.where(discount < 0, -none, none))
        return {"discount": discount.float()}

    def _checked_parts(self, observation: Any) -> Row:
        parts, expected = self.spec.parts_of(observation), self.spec.observations
        return {k: self._checked(f"observation {k!r}", parts[k], *expected[k]) for k in expected}

    def _checked(self, name: str, x: Any, shape: tuple[int, ...] = (), dtype: str = "") -> Tensor:
        """Returns `x` if it is a tensor [N, *shape] on the device, and of the dtype if one is
        given. This waits for nothing."""
        expected = [self.spec.num_envs, *shape]
        if not isinstance(x, Tensor) or x.device.type != self._device.type:
            seen = f"a {type(x).__name__}" + (f" on {x.device}" if isinstance(x, Tensor) else "")
            said = f"tensors on {self._device}, where the network is, seen {seen} as the {name}"
        elif list(x.shape) != expected or dtype not in ("", str(x.dtype)[6:]):
            said = f"{dtype}{expected} as the {name}, seen {str(x.dtype)[6:]}{list(x.shape)}"
        else:
            return x
        raise UserError(f"Vector environment: expected {said}")

    def _to_space(self, actions: Tensor) -> Tensor:
        """Does on the device what `spec.to_space` does."""
        actions = actions.reshape(-1, *self._space.shape)
        if self.spec.actions.kind != "box":
            return actions + self._start
        share = (actions.clamp(-1, 1) + 1) / 2
        low = torch.where(self._bounded, self._low, -1.0)
        high = torch.where(self._bounded, self._high, 1.0)
        actions = torch.where(self._bounded, low * (1 - share) + high * share, actions)
        return actions.clamp(self._low, self._high)

    def _row(self, observation, reward, terminated, truncated, actions, info) -> Row:
        done = self._ended
        self._ended = terminated | truncated
        self._steps = (self._steps + 1).masked_fill(done, 0)
        self._return = (self._return + self._sign * reward).masked_fill(done, 0)
        first = done.view(-1, *[1] * (actions.dim() - 1))
        return {
            **observation,
            "reward": reward.masked_fill(done, 0),
            "done": done,
            "terminated": terminated,
            "truncated": truncated,
            "episode_over": self._ended,
            "episode_step": self._steps,
            "episode_return": self._return.float(),
            "last_action": actions.masked_fill(first, 0),
            **self._own_discount(info, done),
        }


class FromArrays:
    """Wraps a vector environment that takes tensors, so that `Environment` can give it arrays."""

    def __init__(self, vector: Any):
        self._vector = vector

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vector, name)

    @torch.no_grad()
    def reset(self, **options: Any) -> Any:
        return self._vector.reset(**options)

    @torch.no_grad()
    def step(self, actions: np.ndarray) -> Any:
        return self._vector.step(torch.as_tensor(actions))
