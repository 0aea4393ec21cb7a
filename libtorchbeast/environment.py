# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The adapter that turns environments of every accepted kind into rows.

docs/fork.md says what `create_env` may return, and what an environment may declare. After
`info["torchbeast"]["life_lost"]` the game goes on: the next `reset()` without a seed of a single
environment makes one step of it, and its `info["torchbeast"]` may say what that step gave:
`reward`, `terminated`, `truncated`, `life_lost`. (`atari_wrappers.py` does both.)

This module needs numpy only, neither torch nor gymnasium.
"""

import contextlib
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from libtorchbeast.flags import UserError
from libtorchbeast.parallel import grouped
from libtorchbeast.seeds import first_seed
from libtorchbeast.spec import Spec, brief, checked_number, is_end, spec_of_spaces, to_space

ENDS = "terminated", "truncated", "life_lost"
TOLD = {*ENDS, "reward", "discount", "game_numbers"}  # what info["torchbeast"] may have
LARGEST = float(np.finfo(np.float32).max)  # networks compute in float32

Row = dict[str, np.ndarray]
Stepped = tuple[Row, Any, Any]  # observations of a step, rewards [N], and ENDS [N]


class Environment:
    """N environments, stepped as one batch.

    Every result is a row: a dict of arrays [N, ...] that stay valid until the next call of `step`.
    Its keys are the observation's own, those of `Spec.numbers` and spec.ROW_FIELDS, and
    `last_action`.

    When an episode ends, its true last observation is a row (`terminated` or `truncated`). The next
    row has the reset observation (`done`); the action given between the two is not used.

    Args:
        create_env: See docs/fork.md.
        num_envs: N.
        name: The environment's, for messages and checkpoints.

    Raises:
        UserError: from the constructor for an environment that is not accepted; from `initial` and
            `step` for a number that is not finite in float32, or an observation that differs from
            the spec.
        ValueError: from `step` for an action out of range.
    """

    def __init__(self, create_env: Callable[[], Any], num_envs: int, name: str = ""):
        create_env = grouped(_unchanging(create_env))
        first = self.first = create_env()  # the vector, or environment 0; videos render it
        prefix = "single_" if is_vector(first) else ""
        _check_parts(first, prefix)
        metadata = getattr(first, "metadata", None) or {}
        if prefix:
            _check_vector(first, num_envs)
        space = getattr(first, f"{prefix}observation_space")
        action_space = getattr(first, f"{prefix}action_space")
        self.spec = spec_of_spaces(name, num_envs, space, action_space, metadata)
        self._numbers = _Numbers(self.spec.numbers, num_envs)
        # Gymnasium's SyncVectorEnv loses what a reset after a lost life gives, so its environments
        # are stepped here.
        name_of_class = f"{type(first).__module__}.{type(first).__name__}"
        if name_of_class == "gymnasium.vector.sync_vector_env.SyncVectorEnv":
            first, *others = first.envs
            create_env = iter(others).__next__
        self._source = (
            _VectorSource(first, self.spec, self._numbers)
            if is_vector(first)
            else _SingleSource(first, create_env, self.spec, self._numbers)
        )
        # The steps and the return of the whole game so far, and whether the next reward counts in
        # it as it is (1) or is the opponent's (-1).
        self._steps = np.zeros(num_envs, np.int32)
        self._return = np.zeros(num_envs, np.float64)
        self._sign = np.ones(num_envs, np.float64)
        self.has_players = bool(self.spec.groups)  # or if a discount has passed the turn

    @classmethod
    def of_first(cls, create_env: Callable[[], Any], num_envs: int, name: str) -> "Environment":
        """Opens a single environment only, to learn the spec. A vector of `num_envs` cannot be
        opened in part."""
        first = _unchanging(create_env)()
        return cls(lambda: first, num_envs if is_vector(first) else 1, name)

    def initial(self, seed: int, on_open: Callable[[int], None] = lambda count: None) -> Row:
        """Opens the environments that are not open yet, resets all of them, environment i with
        `seed` + i, and returns the first row. The constructor opens only the first, which gives the
        spec.

        Args:
            on_open: `on_open(k)` is called as soon as k environments are open and reset.
        """
        # Whether the last row ended an episode (or a game), so that the next row begins another.
        self._episode_ended = self._game_ended = np.ones(self.spec.num_envs, bool)
        self._numbers.clear()
        with _outside_autocast():
            observations = self._source.reset(first_seed(seed, self.spec.num_envs), on_open)
        never = np.zeros(self.spec.num_envs, bool)
        zero = np.zeros(self.spec.num_envs, np.float32)
        none = self.spec.actions.zeros(self.spec.num_envs)
        return self._row(observations, zero, none, never, never, never)

    def step(self, actions: np.ndarray) -> Row:
        """Steps all environments with `actions` [N, *Actions.shape] of the Spec's dtype."""
        self.spec.actions.check(actions, self.spec.num_envs)
        self._numbers.clear()
        with _outside_autocast():
            observations, rewards, ends = self._source.step(actions, self._episode_ended)
        ends = map(_checked_ends, ENDS, ends)
        return self._row(observations, checked_rewards(rewards), actions, *ends)

    def close(self) -> None:
        self._source.close()

    def _row(self, observations, reward, actions, terminated, truncated, life_lost) -> Row:
        self.spec.check_sets(observations)
        done, new_game = self._episode_ended, self._game_ended
        self._episode_ended = terminated | truncated
        self.spec.check_masks(observations, self._episode_ended)
        self._game_ended = truncated | (terminated & ~life_lost)
        self._steps = np.where(new_game, np.int32(0), self._steps + np.int32(1))
        self._return = np.where(new_game, 0.0, self._return + self._sign * reward)
        return {
            **observations,
            **self._numbers_of_row(done, new_game),
            "reward": np.where(done, np.float32(0), reward).astype(np.float32, copy=False),
            "done": done,
            "terminated": terminated,
            "truncated": truncated,
            "episode_over": self._game_ended,
            "episode_step": self._steps,
            "episode_return": self._return.astype(np.float32),
            "last_action": np.where(done.reshape(-1, *[1] * (actions.ndim - 1)), 0, actions),
        }

    def _numbers_of_row(self, done: np.ndarray, new_game: np.ndarray) -> Row:
        row = {k: np.where(self._game_ended, x, np.nan) for k, x in self._numbers.values.items()}
        if "discount" in row:
            discount = self._numbers.values["discount"]
            self._sign = np.where(new_game, 1.0, np.where(discount < 0, -self._sign, self._sign))
            self.has_players |= bool((discount < 0).any())
            row["discount"] = np.where(done, 1.0, discount)
        return {k: x.astype(np.float32) for k, x in row.items()}


def _unchanging(create_env: Callable[[], Any]) -> Callable[[], Any]:
    """Returns `create_env`, but what it makes does not change how this process computes: NumPy's
    error state and torch's default dtype."""

    def create() -> Any:
        torch = _imported_torch()
        dtype = torch and torch.get_default_dtype()
        with np.errstate():
            env = create_env()
        if torch:
            torch.set_default_dtype(dtype)
        return env

    return create


def _imported_torch() -> Any:
    """None in a server, which does not import torch, or while another thread is importing it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "autocast") else None


def _outside_autocast() -> contextlib.AbstractContextManager[Any]:
    """For an environment with a network of its own, which has the precision that it asks for. The
    environment may be stepped between the calls of another network, in its autocast context."""
    if (torch := _imported_torch()) is None:
        return contextlib.nullcontext()
    device = next(filter(torch.is_autocast_enabled, ("cuda", "xpu", "mps")), "cpu")
    return torch.autocast(device, enabled=False)


def _check_parts(env: Any, prefix: str) -> None:
    for part in ("reset", "step", f"{prefix}observation_space", f"{prefix}action_space"):
        if not hasattr(env, part) or isinstance(env, type):
            said = f"which has no {part}; expected an environment (does create_env lack a return?)"
            raise UserError(f"create_env returned {brief(env)}, {said}")


def _check_vector(env: Any, num_envs: int) -> None:
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if getattr(mode, "value", mode) != "NextStep":
        expected = "autoreset_mode AutoresetMode.NEXT_STEP in its metadata"
        raise UserError(f"Vector environment: expected {expected}, seen {mode}")
    if env.num_envs != num_envs:
        raise UserError(
            f"Vector environment: expected num_envs {num_envs} (--envs_per_actor, "
            f"--envs_per_server or --num_envs; in the test modes not more than --num_episodes), "
            f"seen {env.num_envs}"
        )


class _VectorSource:
    """A vector environment, which resets its environments itself."""

    def __init__(self, env: Any, spec: Spec, numbers: "_Numbers"):
        self._env, self._spec, self._numbers = env, spec, numbers
        self._never = np.zeros(env.num_envs, bool)
        self.close = env.close

    def reset(self, seed: int, on_open: Callable[[int], None]) -> Row:
        observation = self._checked(self._env.reset(seed=seed)[0])
        on_open(len(self._never))
        return observation

    def step(self, actions: np.ndarray, ended: np.ndarray) -> Stepped:
        actions = to_space(actions, self._env.single_action_space)
        observation, reward, terminated, truncated, info = _step(self._env, actions)
        own = told_in(info)
        if "reward" in own:  # of a reset that was a step, whose ends the vector has not noticed
            raise UserError(
                "Vector environment: after a lost life, a reset of one of its environments was a "
                "step, which a vector cannot report; let create_env return single environments"
            )
        if own.keys() & {"discount", "game_numbers"}:
            for i in range(len(self._never)):
                self._numbers.add(i, _told_by(own, i))
        ends = terminated, truncated, own.get("life_lost", self._never)
        reward = self._array("Reward", reward)
        return self._checked(observation), reward, [*map(self._array, ENDS, ends)]

    def _array(self, name: str, values: Any) -> np.ndarray:
        array = np.asarray(values)  # values may be a tensor
        if array.shape != self._never.shape:
            raise UserError(f"{name}: expected {len(self._never)} values, seen {list(array.shape)}")
        return array

    def _checked(self, observation: Any) -> Row:
        N, leaves = len(self._never), self._spec.parts_of(observation)
        return {
            # torch takes only what is contiguous, and warns of what cannot be written to
            name: np.require(checked_leaf(name, leaves[name], (N, *shape), dtype), None, ["C", "W"])
            for name, (shape, dtype) in self._spec.observations.items()
        }


class _SingleSource:
    """Single environments, reset here in the step after an episode's last observation."""

    def __init__(self, first: Any, create_env: Callable[[], Any], spec: Spec, numbers: "_Numbers"):
        self._envs, self._create_env, self._spec, self._numbers = [first], create_env, spec, numbers
        # With dtype objects, because comparing them is several times faster than comparing names.
        self._leaves = [(k, shape, np.dtype(d)) for k, (shape, d) in spec.observations.items()]
        self._is_array = spec.observations.keys() == {"frame"}
        self._out = {k: np.zeros((spec.num_envs, *shape), d) for k, shape, d in self._leaves}

    def reset(self, seed: int, on_open: Callable[[int], None]) -> Row:
        for i in range(self._spec.num_envs):
            if i == len(self._envs):
                self._envs.append(env := self._create_env())
                if any(env is other for other in self._envs[:i]):
                    raise UserError("create_env returned an environment twice; expected new ones")
                first, own = self._envs[0].action_space, self._envs[i].action_space
                if repr(own) != repr(first):  # of several agents they are in an array
                    raise UserError(f"Environment {i}: expected {first}, as the first, seen {own}")
            observation, *_, info = _reset(self._envs[i], seed=seed + i)
            if (told := told_in(info)) and ("reward" in told or any(map(told.get, ENDS))):
                said = f"expected a new game of reset(seed), seen {brief(told)} of a step"
                raise UserError(f"Environment {i}: {said}")
            self._write(i, observation)
            on_open(i + 1)
        return self._out

    def step(self, actions: np.ndarray, ended: np.ndarray) -> Stepped:
        N = len(self._envs)
        reward: list[Any] = [0.0] * N
        terminated, truncated, life_lost = ([False] * N for _ in range(3))
        each_action = to_space(actions, self._envs[0].action_space)
        if self._spec.actions.kind == "discrete":
            each_action = each_action.tolist()  # Python's own numbers
        each = zip(self._envs, each_action, ended.tolist(), strict=True)
        for i, (env, action, reset) in enumerate(each):
            result = _reset(env) if reset else _step(env, action)
            observation, reward[i], terminated[i], truncated[i], info = result
            self._write(i, observation)
            if own := told_in(info):
                life_lost[i] = own.get("life_lost", False)
                self._numbers.add(i, own)
        return self._out, reward, (terminated, truncated, life_lost)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # closes the others, too, if one raises
            for env in self._envs:
                stack.callback(env.close)

    def _write(self, i: int, observation: Any) -> None:
        short = self._is_array and type(observation) is np.ndarray  # takes a tenth less time
        leaves = {"frame": observation} if short else self._spec.parts_of(observation)
        for name, shape, dtype in self._leaves:
            leaf = leaves[name]
            plain = type(leaf) is np.ndarray and leaf.shape == shape and leaf.dtype is dtype
            if not plain or dtype.kind == "f":  # floats may be infinite or NaN
                leaf = checked_leaf(name, leaf, shape, dtype, i)
            self._out[name][i] = leaf


class _Numbers:
    """The numbers that environments tell with a step, under the keys of `Spec.numbers`.

    Attributes:
        values: [N] for each key: 1 where no discount was told, NaN where no number of a game was.
    """

    def __init__(self, names: tuple[str, ...], num_envs: int):
        self.values = {name: np.zeros(num_envs) for name in names}

    def clear(self) -> None:
        for name, array in self.values.items():
            array.fill(1.0 if name == "discount" else np.nan)

    def add(self, i: int, own: dict[str, Any]) -> None:
        """Adds what is in `info["torchbeast"]` of environment i."""
        if "discount" in own:
            said = 'metadata["own_discounts"] = True, seen none'
            self._set("discount", i, own["discount"], said, 1.0, "a number from -1 to 1")
        for name, value in own.get("game_numbers", {}).items():
            declared = [key.removeprefix("game/") for key in self.values if key != "discount"]
            said = f'the name in metadata["game_numbers"], seen {declared}'
            self._set(f"game/{name}", i, value, said, LARGEST, "a finite number")

    def _set(self, name: str, i: int, value: Any, declared: str, limit: float, expected: str):
        fits = lambda x: np.abs(x) <= np.float64(limit)
        what = f'info["torchbeast"] tells {name.replace("game/", "game_numbers ")}'
        if name not in self.values:
            raise UserError(f"{what}: expected {declared}")
        self.values[name][i] = checked_number(what, value, fits, expected, f"environment {i}")


def _told_by(own: dict[str, Any], i: int) -> dict[str, Any]:
    """What environment i of a vector told. Gymnasium says in `_x` which environments told `x`."""
    told = {k: x for k, x in own.items() if k[0] != "_" and (f"_{k}" not in own or own[f"_{k}"][i])}
    return {k: _told_by(x, i) if isinstance(x, dict) else x[i] for k, x in told.items()}


def told_in(info: dict[str, Any]) -> dict[str, Any]:
    """Returns `info["torchbeast"]`, or {} if there is none."""
    own = info.get("torchbeast", {}) if isinstance(info, dict) else {}
    if not isinstance(own, dict) or (own and own.keys() - TOLD - {f"_{name}" for name in own}):
        said = f"expected a dict with keys among {sorted(TOLD)}, seen {brief(own)}"
        raise UserError(f'info["torchbeast"]: {said}')
    return own


def is_vector(env: Any) -> bool:
    """Whether `create_env` returned a vector environment, and not a single one."""
    return hasattr(env, "num_envs") and hasattr(env, "single_observation_space")


def _step(env: Any, action: Any):
    result = env.step(action)
    count = len(result) if isinstance(result, tuple | list) else None
    if count == 5:
        return result
    if count != 4:
        seen = brief(result) if count is None else f"{count} values"
        raise UserError(f"step() returned {seen}, expected 5 values (gymnasium) or 4 (gym)")
    observation, reward, done, info = result
    (ended,) = _checked_ends("done", [done])
    truncated = bool(ended and info and info.get("TimeLimit.truncated", False))
    return observation, reward, ended and not truncated, truncated, info


def _reset(env: Any, **seed: int):
    """Returns the same values as a step, because after a life loss a reset is one."""
    try:
        result = env.reset(**seed)
    except TypeError as error:  # old Gym has a method `seed` instead
        inside = traceback.walk_tb(cast(Any, error.__traceback__).tb_next)
        takes_seed = any("seed" in inspect.getargs(frame.f_code).args for frame, _ in inside)
        if not seed or takes_seed or "seed" not in str(error):
            raise
        if hasattr(env, "seed"):
            env.seed(seed["seed"])
        result = env.reset()
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        return result, 0.0, False, False, {}  # old Gym returns the observation only
    observation, info = result
    own = told_in(info)
    flags = own.get("terminated", False), own.get("truncated", False)
    return observation, own.get("reward", 0.0), *flags, info


def checked_rewards(rewards: Any) -> np.ndarray:
    """Returns the rewards of N environments as float64 [N]."""
    fits = lambda x: np.abs(x) <= np.float64(LARGEST)  # float16 would compare with infinity
    return _checked_numbers("Reward", rewards, fits, "a finite number").astype(np.float64)


def _checked_ends(name: str, ends: Any) -> np.ndarray:
    """Returns whether something ended in each of N environments, as bool [N]."""
    return _checked_numbers(name, ends, is_end, "a bool").astype(bool)


def _checked_numbers(what: str, values: Any, fits: Callable, expected: str) -> np.ndarray:
    """Returns the numbers of N environments [N], all of which fit."""
    with contextlib.suppress(TypeError, ValueError):  # not all are numbers
        array = np.asarray(values)
        kind = array.dtype.kind
        if array.ndim == 1 and (kind == "b" or (kind in "iuf" and fits(array).all())):
            return array
    check = lambda i, x: checked_number(what, x, fits, expected, f"environment {i}")
    return np.array([check(i, x) for i, x in enumerate(values)])


def checked_leaf(
    name: str, leaf: Any, shape: tuple[int, ...], dtype: Any, i: int | None = None
) -> np.ndarray:
    """Returns the observation, of environment i or of all, in the spec's dtype."""
    array = np.asarray(leaf)
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        seen, expected = f"{array.dtype}{list(array.shape)}", f"{np.dtype(dtype)}{list(shape)}"
        of = "" if i is None else f" from environment {i}"
        raise UserError(f"Observation {name!r}: expected {expected}, seen {seen}{of}")
    with np.errstate(all="ignore"):
        cast = array.astype(dtype, copy=False)
        is_float = cast.dtype.kind == "f"
        fits = np.isfinite(cast) & (np.abs(cast) <= LARGEST) if is_float else cast == array
    if not fits.all():
        wrong = array[~fits]
        held = "float32" if cast.dtype == np.float64 else cast.dtype
        large = f", which {held} cannot hold," if np.isfinite(wrong[0]) else ""
        where = np.argwhere(~fits)[0][0] if i is None else i
        places = f"{wrong.size} of {array.size} places"
        seen = f"{wrong[0]:g}{large} in {places}, first in environment {where}"
        raise UserError(f"Observation {name!r}: expected finite numbers, seen {seen}")
    return cast
