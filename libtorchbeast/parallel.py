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
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from libtorchbeast.flags import UserError
from libtorchbeast.spec import (
    ROW_FIELDS,
    brief,
    describe_actions,
    flatten_observation,
    flatten_space,
)

Leaves = dict[str, tuple[tuple[int, ...], str]]
# What each agent has besides its observation.
OWN: Leaves = {
    name: ((), ROW_FIELDS[name])
    for name in ("reward", "done", "terminated", "truncated", "episode_return")
}


def grouped(create_env: Callable[[], Any]) -> Callable[[], Any]:
    """Returns `create_env`, but a `ParallelEnv` that it makes becomes a `Grouped`. It is recognised
    by its `action_space`, which is a method."""

    def create() -> Any:
        env = create_env()
        return Grouped(env) if callable(getattr(env, "action_space", None)) else env

    return create


class Group(NamedTuple):
    agents: list[Any]
    leaves: Leaves  # of what each of them observes


class Grouped:
    """A `ParallelEnv` as a `gymnasium.Env`, whose spaces have only what environment.py reads.

    Agents with equal spaces are a group, unless `metadata["groups"]`, {agent: name}, has them in
    others.

    Raises:
        UserError: the environment is no `ParallelEnv`, or its agents cannot be grouped.
    """

    def __init__(self, env: Any):
        if hasattr(env, "agent_iter"):
            raise UserError(
                f"create_env returned the AEC environment {brief(env)}; expected a ParallelEnv, as "
                f"pettingzoo.utils.aec_to_parallel makes one, or a gymnasium.Env whose players "
                f'move in turn (metadata["own_discounts"])'
            )
        if not getattr(env, "possible_agents", None):
            said = "all agents that a game may have in its possible_agents, seen none"
            raise UserError(f"create_env returned {brief(env)}; expected {said}")
        self.env, self._groups = env, _groups(env)
        self._agents = [agent for group in self._groups.values() for agent in group.agents]
        self._first, *others = self._agents
        self._spaces = {agent: env.action_space(agent) for agent in self._agents}
        self.action_space = _joint_space(self._spaces)
        parts = {
            f"{name}/{k}": SimpleNamespace(shape=(len(group.agents), *shape), dtype=dtype)
            for name, group in self._groups.items()
            for k, (shape, dtype) in (OWN | group.leaves).items()
        }
        self.observation_space = SimpleNamespace(spaces=parts)
        self._numbers = {agent: f"return_{_plain(agent)}" for agent in others}
        metadata = getattr(env, "metadata", None) or {}
        self.metadata = {**metadata, "game_numbers": [*self._numbers.values()]}
        self.render_mode = getattr(env, "render_mode", None)
        self._going: set[Any] = set()  # the agents whose episode goes on after the newest row

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, _ = self.env.reset(seed=seed)
        if not self.env.agents:
            raise UserError("reset(): expected at least one agent in `agents` after it, seen none")
        self._returns = dict.fromkeys(self._agents, 0.0)
        self._going.clear()
        return self._observation(seen, {}, {}, {}), {}

    def step(self, action: np.ndarray) -> Any:
        each = zip(self._spaces.items(), np.reshape(action, (len(self._agents), -1)), strict=True)
        alive, acted = {*self.env.agents}, self._going
        seen, rewards, terminations, truncations, _ = self.env.step(
            {
                agent: own.reshape(space.shape).astype(space.dtype)[()]
                for (agent, space), own in each
                if agent in alive
            }
        )
        row = self._observation(seen, rewards, terminations, truncations)
        is_over = not self.env.agents
        is_cut = is_over and any(truncations[agent] for agent in acted)
        returns = {name: self._returns[agent] for agent, name in self._numbers.items()}
        info = {"torchbeast": {"game_numbers": returns}} if is_over else {}
        reward = rewards[self._first] if self._first in acted else 0.0
        return row, reward, is_over and not is_cut, is_cut, info

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _observation(self, seen, rewards, terminations, truncations) -> dict[str, np.ndarray]:
        """The row of all agents, of what the environment's `reset` or `step` returned."""
        acted, alive, self._going = self._going, {*self.env.agents}, set()
        told = dict(observation=seen, reward=rewards, termination=terminations)
        for name, values in (told | dict(truncation=truncations)).items():
            if lacking := acted - values.keys():
                raise UserError(f"step(): expected the {name} of {lacking.pop()!r}, seen none")
        row: dict[str, np.ndarray] = {}
        for name, group in self._groups.items():
            rows = []
            for agent in group.agents:
                one = self._seen(group, agent, seen)
                is_cut = is_over = False
                if agent in acted:
                    self._returns[agent] += rewards[agent]
                    is_cut = bool(truncations[agent])
                    is_over = bool(terminations[agent]) or not (agent in alive or is_cut)
                if agent in alive and not (is_cut or is_over):
                    self._going.add(agent)
                one |= dict(
                    reward=rewards[agent] if agent in acted else 0.0,
                    done=agent not in acted,
                    terminated=is_over,
                    truncated=is_cut,
                    episode_return=self._returns[agent],
                )
                rows.append(one)
            row |= {f"{name}/{k}": np.stack([one[k] for one in rows]) for k in rows[0]}
        return row

    def _seen(self, group: Group, agent: Any, seen: dict[Any, Any]) -> dict[str, Any]:
        """What an agent observes; if it does not, zeros, and a mask that allows all actions."""
        leaves = group.leaves
        if agent not in seen:
            allowed = lambda k: np.ones if k == "action_mask" else np.zeros
            return {k: allowed(k)(shape, dtype) for k, (shape, dtype) in leaves.items()}
        parts = flatten_observation(seen[agent])
        if parts.keys() != leaves.keys():
            expected = f"expected {sorted(leaves)}, seen {sorted(parts)}"
            raise UserError(f"Observation of {agent!r}: {expected}")
        return parts


def _groups(env: Any) -> dict[str, Group]:
    """{name: group}, in the order of their first agents. A group is named by what the names of its
    agents have in common, without numbers at the end: `adversary` for adversary_0 and adversary_1;
    `agents` if there is nothing. If that name is taken, it is named like its first agent."""
    named = (getattr(env, "metadata", None) or {}).get("groups", {})
    leaves = {agent: flatten_space(env.observation_space(agent)) for agent in env.possible_agents}
    spaces = {a: (str(leaves[a]), str(describe_actions(env.action_space(a)))) for a in leaves}
    members: dict[Any, list[Any]] = {}
    for agent, own in spaces.items():
        members.setdefault(named.get(agent, own), []).append(agent)
    groups: dict[str, Group] = {}
    for key, agents in members.items():
        first, *others = agents
        name = _plain(os.path.commonprefix([*map(str, agents)])).rstrip("_0123456789") or "agents"
        if key != spaces[first]:
            name = _plain(key)
        elif name in groups:
            name = _plain(first)
        if other := [agent for agent in others if spaces[agent] != spaces[first]]:
            seen = f"{first!r} with {' and '.join(spaces[first])}, and {other[0]!r} with "
            said = f'metadata["groups"] {name!r}: expected agents with equal spaces'
            raise UserError(f"{said}, seen {seen}{' and '.join(spaces[other[0]])}")
        groups[name] = Group(agents, leaves[first])
    return groups


def _plain(name: Any) -> str:
    return re.sub(r"\W", "_", str(name), flags=re.ASCII)


def _joint_space(spaces: dict[Any, Any]) -> Any:
    """The actions of all agents as one space, which environment.py can read."""
    each = {agent: describe_actions(space) for agent, space in spaces.items()}
    first = next(iter(each))
    form = lambda own: (own.kind == "box", math.prod(own.shape))
    if other := [agent for agent, own in each.items() if form(own) != form(each[first])]:
        seen = f"{first!r} with {each[first]} and {other[0]!r} with {each[other[0]]}"
        said = "expected Boxes of all agents or of none, with equally many numbers in an action"
        raise UserError(f"Action spaces: {said}, seen {seen}")
    joined = lambda name: np.concatenate([np.ravel(getattr(x, name)) for x in spaces.values()])
    if each[first].kind == "box":
        low, high = joined("low"), joined("high")
        return SimpleNamespace(shape=low.shape, dtype=low.dtype, low=low, high=high)
    sizes = [size for own in each.values() for size in own.sizes]
    return SimpleNamespace(shape=(len(sizes),), nvec=np.array(sizes))
