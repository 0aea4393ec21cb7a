# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PettingZoo's `ParallelEnv`, in which all agents act at once, as an environment of one agent.

Its observation has the parts of each group of agents that libtorchbeast/agents.py describes, and
its action has those of all agents. A game is one environment: it ends when no agent is left, its
reward is the first agent's, and the returns of the others are numbers of the game. An agent that is
not in the game gives zeros and `done`, and an action mask that allows all.

This module needs numpy only, neither torch nor PettingZoo.
"""

import math
import os
import re
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import numpy as np

from libtorchbeast.flags import UserError
from libtorchbeast.spec import (
    ROW_FIELDS,
    brief,
    checked_number,
    describe_actions,
    flatten_observation,
    flatten_space,
    is_end,
    sets_of,
)

RESERVED = ("loss", "game", "column", "core_state")  # begin keys of rows that are no group's
OWN = ("reward", "done", "terminated", "truncated", "episode_return")  # of each agent


def grouped(create_env: Callable[[], Any]) -> Callable[[], Any]:
    """Returns `create_env`, but a `ParallelEnv` that it makes becomes a `Grouped`. It is recognised
    by its `action_space`, which is a method."""
    made = lambda env: Grouped(env) if callable(getattr(env, "action_space", None)) else env
    return lambda: made(create_env())


class Grouped:
    """A `ParallelEnv` as a `gymnasium.Env`, whose spaces have only what environment.py reads.
    Raises UserError if the environment is no `ParallelEnv`, or its agents cannot be grouped."""

    def __init__(self, env: Any):
        if hasattr(env, "agent_iter"):
            raise UserError(
                f"create_env returned {type(env).__name__}, an AEC environment; expected a "
                f"ParallelEnv, or a gymnasium.Env whose players move in turn; docs/fork.md, "
                f"Several agents, says how to make one of it"
            )
        if not getattr(env, "possible_agents", None):
            said = "expected all agents that a game may have in its possible_agents, seen none"
            raise UserError(f"create_env returned {type(env).__name__}; {said}")
        metadata = getattr(type(self), "metadata", {}) | (getattr(env, "metadata", None) or {})
        named = metadata.get("groups", {})
        if not isinstance(named, dict):
            raise UserError(f'metadata["groups"]: expected {{AGENT: GROUP}}, seen {brief(named)}')
        if named and not {*named}.intersection(env.possible_agents) or "" in named.values():
            said = "expected names of groups for agents of possible_agents"
            raise UserError(f'metadata["groups"]: {said}, seen {brief(named)}')
        if metadata.get("game_numbers"):
            said = "expected none of a ParallelEnv, whose numbers are its agents' returns"
            raise UserError(f'metadata["game_numbers"]: {said}')
        self.env, self._groups = env, _groups(env, named)
        groups = self._groups.items()
        agents = [agent for _, group in groups for agent in group]
        self._leaves = {agent: flatten_space(env.observation_space(agent)) for agent in agents}
        self._spaces = {agent: env.action_space(agent) for agent in agents}
        self._names: dict[Any, str] = {}  # of game numbers
        for agent in agents[1:]:
            self._names[agent] = _plain(f"return_{agent}", self._names.values())
        self._first = agents[0]
        self._going: set[Any] = set()  # the agents whose episode goes on after the newest row
        own = {name: ((), ROW_FIELDS[name]) for name in OWN}
        sets = {name: sets_of(env.observation_space(group[0])) for name, group in groups}
        parts = {
            f"{name}/{k}": SimpleNamespace(
                shape=(len(group), *shape), dtype=dtype, set_size=sets[name].get(k, 0)
            )
            for name, group in groups
            for k, (shape, dtype) in (own | self._leaves[group[0]]).items()
        }
        self.observation_space = SimpleNamespace(spaces=parts)
        self.action_space = _joint_space(self._spaces)
        self.metadata = metadata | {"game_numbers": [*self._names.values()]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, _ = _values("reset", self.env.reset(seed=seed), 2)
        if not self.env.agents:
            raise UserError("reset(): expected at least one agent in `agents` after it, seen none")
        self._returns = dict.fromkeys(self._spaces, 0.0)
        self._going = set()
        return self._observation(seen, {}, {}, {}), {}

    def step(self, action: np.ndarray) -> Any:
        alive, acted, each = {*self.env.agents}, self._going, self._spaces.items()
        actions = {
            agent: (own.reshape(space.shape) + getattr(space, "start", 0)).astype(space.dtype)[()]
            for (agent, space), own in zip(each, action.reshape(len(each), -1), strict=True)
            if agent in alive
        }
        result = _values("step", self.env.step(actions), 5)
        seen, rewards, terminations, truncations, _ = result
        row = self._observation(seen, rewards, terminations, truncations)
        is_over = not self.env.agents
        is_cut = is_over and any(truncations[agent] for agent in acted)
        returns = {name: self._returns[agent] for agent, name in self._names.items()}
        reward = rewards[self._first] if self._first in acted else 0.0
        info = {"torchbeast": {"game_numbers": returns}}  # in each step: a wrapper may end the game
        return row, reward, is_over and not is_cut, is_cut, info

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _observation(self, seen, rewards, terminations, truncations) -> dict[str, np.ndarray]:
        """The row of all agents, of what the environment's `reset` or `step` returned."""
        acted, alive, self._going = self._going, {*self.env.agents}, set()
        told = {*seen}.intersection(rewards, terminations, truncations)
        if lacking := (acted - told) | (alive - {*seen}):
            said = "expected an observation of each in `agents`, and of each that has acted also"
            said += " reward, termination and truncation"
            raise UserError(f"{said}; seen not all of {lacking.pop()!r}")
        if strange := alive - {*self._spaces}:
            raise UserError(f"agents: expected names of possible_agents, seen {strange.pop()!r}")
        if dead := {x for x in alive - acted if terminations.get(x) or truncations.get(x)}:
            said = "expected none that has ended before, or ends before it acts"
            raise UserError(f"agents: {said}, seen {dead.pop()!r}")
        rows: dict[Any, dict[str, Any]] = {}
        for agent in self._spaces:
            has_acted = agent in acted
            reward = rewards[agent] if has_acted else 0.0
            reward = checked_number("Reward", reward, np.isfinite, "a finite number", repr(agent))
            self._returns[agent] += reward
            is_cut = has_acted and _end("truncation", truncations, agent)
            is_lost = agent not in alive and not is_cut  # ended without a word
            is_over = has_acted and (_end("termination", terminations, agent) or is_lost)
            if agent in alive and not (is_cut or is_over):
                self._going.add(agent)
            rows[agent] = self._seen(agent, seen if has_acted or agent in alive else {}) | dict(
                reward=reward,
                done=not has_acted,
                terminated=is_over,
                truncated=is_cut,
                episode_return=self._returns[agent],
            )
        groups = self._groups.items()
        joined = lambda group, k: np.stack([rows[agent][k] for agent in group])
        return {f"{name}/{k}": joined(group, k) for name, group in groups for k in rows[group[0]]}

    def _seen(self, agent: Any, seen: dict[Any, Any]) -> dict[str, Any]:
        """What an agent observes; if it does not, zeros, and a mask that allows all actions."""
        leaves = self._leaves[agent]
        if agent not in seen:
            return {k: np.full(s, k == "action_mask", dtype) for k, (s, dtype) in leaves.items()}
        parts, expected = flatten_observation(seen[agent]), {k: s for k, (s, _) in leaves.items()}
        if (shapes := {k: np.shape(x) for k, x in parts.items()}) != expected:
            raise UserError(f"Observation of {agent!r}: expected shapes {expected}, seen {shapes}")
        return parts


def _values(what: str, result: Any, count: int) -> Any:
    is_several = isinstance(result, tuple | list)
    if is_several and len(result) == count:
        return result
    seen = f"{len(result)} values" if is_several else f"a {type(result).__name__}"
    raise UserError(f"{what}() of a ParallelEnv: expected {count} values, seen {seen}")


def _end(what: str, ends: dict[Any, Any], agent: Any) -> bool:
    if isinstance(ends[agent], bool | np.bool_):
        return bool(ends[agent])
    return bool(checked_number(what, ends[agent], is_end, "a bool", repr(agent)))


def _groups(env: Any, named: dict[Any, str]) -> dict[str, list[Any]]:
    """The agents of each group, in the order of their first ones. docs/fork.md says what makes a
    group, and how it is named."""
    spaces: dict[Any, str] = {}
    members: dict[Any, list[Any]] = {}
    for agent in env.possible_agents:
        seen = env.observation_space(agent)
        parts, actions = flatten_space(seen), describe_actions(env.action_space(agent))
        sets = f" with the sets {sets}" if (sets := sets_of(seen)) else ""
        own = spaces[agent] = f"{parts}{sets} and {actions}"
        members.setdefault((agent in named, named.get(agent, own)), []).append(agent)
    groups: dict[str, list[Any]] = {}
    for (is_named, name), agents in members.items():
        first, *others = agents
        for other in [agent for agent in others if spaces[agent] != spaces[first]]:
            said = f'metadata["groups"] {name!r}: expected agents with equal spaces'
            seen = f"{first!r} with {spaces[first]}, and {other!r} with {spaces[other]}"
            raise UserError(f"{said}, seen {seen}")
        if not is_named:
            name = os.path.commonprefix([*map(str, agents)]).rstrip("_0123456789") or "agents"
        name = first if _plain(name) in groups else name
        groups[_plain(name, (*groups, *RESERVED))] = agents
    return groups


def _plain(name: Any, taken: Collection[str] = ()) -> str:
    """The name as an identifier, and with more underscores where another one is like it."""
    name = re.sub(r"\W", "_", str(name), flags=re.ASCII)
    while name in taken:
        name += "_"
    return name


def _joint_space(spaces: dict[Any, Any]) -> Any:
    """The actions of all agents as one space, which environment.py can read. It names the agents,
    so that environments with another order of them have another space."""
    each = {agent: describe_actions(space) for agent, space in spaces.items()}
    first, *others = each
    form = lambda agent: (each[agent].kind == "box", math.prod(each[agent].shape))
    for other in [agent for agent in others if form(agent) != form(first)]:
        said = "expected Boxes of all agents or of none, with equally many numbers in an action"
        seen = f"{first!r} with {each[first]} and {other!r} with {each[other]}"
        raise UserError(f"Action spaces: {said}, seen {seen}")
    if each[first].kind != "box":
        sizes = [size for own in each.values() for size in own.sizes]
        return SimpleNamespace(shape=(len(sizes),), nvec=np.array(sizes), agents=[*spaces])
    bounds = [[space.low.ravel(), space.high.ravel()] for space in spaces.values()]
    low, high = np.concatenate(bounds, axis=1)
    return SimpleNamespace(shape=low.shape, dtype=low.dtype, agents=[*spaces], low=low, high=high)
