# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments of every kind that follow a script, and the adapter around them."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from libtorchbeast.environment import Environment

A, START, N, STEPS = 5, 2, 4, 120  # actions from START on, environments, steps
PARTS = "reward terminated truncated life_lost".split()
# Other libraries' keys with such names, for instance of the episode before, mean nothing.
FOREIGN = dict(reward=9.0, terminated=True, truncated=True, life_lost=True, discount=0.5)
NOTHING = (0.0, False, False, False)  # the row of a reset to a new game
# kind of observation -> (its space, a function: environment i, row t, last action a -> observation)
OBSERVATIONS = {
    "array": (Box(-1, 1e6, (3,)), lambda i, t, a: np.array([i, t, a], np.float32)),
    "image": (Box(0, 255, (1, 2, 2), np.uint8),
              lambda i, t, a: np.array([[[i, t % 256], [t // 256, a + 1]]], np.uint8)),
    "discrete": (Discrete(10**6), lambda i, t, a: np.int64(10_000 * i + 10 * t + a + 1)),
    "dict": (Dict(a=Dict(b=Box(-1, 1e6, (2,)), c=Discrete(9)), flags=MultiBinary(2)),
             lambda i, t, a: {"a": {"b": np.array([i, t], np.float32), "c": np.int64(a + 1)},
                              "flags": np.array([t % 2, 1], np.int8)}),
    "tuple": (Tuple([Box(-1, 1e6, (2,)), Discrete(9)]),
              lambda i, t, a: (np.array([i, t], np.float32), np.int64(a + 1))),
}  # fmt: skip


def make_scripts(seed, life=True, both=True):
    """Returns scripts[i][t] = (reward, terminated, truncated, life_lost), the values of row t of
    environment i, unless that row is the reset to a new game. Endings come in runs, so that some
    episodes have only one step, and some lives are lost in the step after a life loss."""
    rng = np.random.default_rng(seed)
    ends = [(True, False, False), (False, True, False)]
    if both:
        ends += [(True, True, False)]
    if life:
        ends += [(True, False, True)] * 3 + [(False, False, True)] + [(True, True, True)] * both
    scripts = []
    for _ in range(N):
        script, often = [], False
        for _ in range(STEPS + 1):
            often = often if rng.random() < 0.9 else not often
            ending = rng.random() < (0.7 if often else 0.1)
            flags = ends[rng.integers(len(ends))] if ending else (False, False, False)
            script.append((float(rng.integers(-40, 40)) / 4, *flags))  # sums of quarters are exact
        scripts.append(script)
    return scripts


def is_over(terminated, truncated, life_lost):
    return truncated or (terminated and not life_lost)


class Scripted(gymnasium.Env):
    """Follows its script. A reset after a life loss is a step of the game, and its info says so."""

    action_space = Discrete(A, start=START)

    def __init__(self, script, index, kind="array"):
        self.script, self.index = script, index
        self.observation_space, self._show = OBSERVATIONS[kind]
        self.closed, self.seeds = False, []

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.seeds.append(seed)
            self.t, self.goes_on = -1, False
        if self.goes_on:
            observation, *_, own = self._advance(-1)
            return observation, FOREIGN | {"torchbeast": own}
        self.t += 1
        return self._show(self.index, self.t, -1), FOREIGN

    def step(self, action):
        assert isinstance(action, (int, np.integer)) and action in self.action_space, action
        observation, reward, terminated, truncated, own = self._advance(action - START)
        info = {"torchbeast": {"life_lost": True}} if own["life_lost"] else {}
        return observation, reward, terminated, truncated, FOREIGN | info

    def _advance(self, action):
        self.t += 1
        own = dict(zip(PARTS, self.script[self.t], strict=True))
        reward, terminated, truncated, life_lost = own.values()
        self.goes_on = not is_over(terminated, truncated, life_lost)
        return self._show(self.index, self.t, action), reward, terminated, truncated, own

    def close(self):
        self.closed = True


class OldGym:
    """An old Gym environment: `seed()`, a bare observation from `reset()`, 4 values from `step`."""

    action_space = Scripted.action_space
    metadata = {"render.modes": []}

    def __init__(self, script, index, kind="array"):
        self._new = Scripted(script, index, kind)
        self.observation_space = self._new.observation_space

    def seed(self, seed):
        self._new.reset(seed=seed)
        self._new.t = -1

    def reset(self):
        return self._new.reset()[0]

    def step(self, action):
        observation, reward, terminated, truncated, _ = self._new.step(action)
        info = {"TimeLimit.truncated": True} if truncated else {}
        if terminated and self._new.t % 2:
            info = {"TimeLimit.truncated": False}  # what the wrapper says if both happen at once
        return observation, reward, terminated or truncated, info

    def close(self):
        self._new.close()


class ScriptedVector(VectorEnv):
    """A vector environment of all scripts. Its step after a life loss continues the game."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, scripts, kind="array"):
        self.envs = [Scripted(script, i, kind) for i, script in enumerate(scripts)]
        self.num_envs = len(scripts)
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.ended = np.zeros(self.num_envs, bool)
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.ended[:] = False
        observations = [env.reset(seed=seed)[0] for env in self.envs]
        return np.stack(observations), {}

    def step(self, actions):
        results = []
        for env, action, ended in zip(self.envs, actions, self.ended, strict=True):
            observation, *values, info = env.reset() if ended else env.step(action)
            own = info.get("torchbeast", {})
            values = values or [own.get(k, False) for k in PARTS[:3]]
            results.append((observation, *values, own.get("life_lost", False)))
        seen, rewards, terminated, truncated, lost = map(np.stack, zip(*results, strict=True))
        self.ended = terminated | truncated
        info = {"torchbeast": {"life_lost": lost}}
        return seen, rewards.astype(np.float32), terminated, truncated, info


class OneBuffer(Scripted):
    """All environments write their observations into the same array."""

    buffer = np.zeros(3, np.float32)

    def reset(self, **kwargs):
        self.buffer[:], info = super().reset(**kwargs)
        return self.buffer, info

    def step(self, action):
        self.buffer[:], *rest = super().step(action)
        return (self.buffer, *rest)


def separate(scripts, kind="array", env_class=Scripted):
    """Makes an adapter with one environment for each script."""
    created = iter([env_class(script, i, kind) for i, script in enumerate(scripts)])
    return Environment(lambda: next(created), len(scripts), "scripted")


def vector(scripts, kind="array"):
    return Environment(lambda: ScriptedVector(scripts, kind), len(scripts), "scripted")


def sync_vector(scripts, kind="array"):
    makers = [lambda i=i, s=s: Scripted(s, i, kind) for i, s in enumerate(scripts)]
    env = lambda: SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    return Environment(env, len(scripts), "scripted")
