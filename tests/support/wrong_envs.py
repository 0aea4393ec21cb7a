# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments that break their contract: `--env tests.support.wrong_envs:NaN-v0`."""

import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

OBSERVATION = np.zeros(4, np.float32)


class Sound(gymnasium.Env):
    """Keeps the contract. Its subclasses break it in one place each."""

    observation_space, action_space = Box(-1, 1, (4,), np.float32), Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return self.observation(), {}

    def step(self, action):
        return self.observation(), self.reward(), False, False, {}

    def observation(self):
        return OBSERVATION

    def reward(self):
        return 0.0


class Observes(Sound):
    def observation(self):
        return self.seen


class Rewards(Sound):
    def reward(self):
        return self.given


class Stillborn(Sound):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no simulator\non port 7")


class Leaving(Sound):
    def reset(self, *, seed=None, options=None):
        sys.exit(3)


class Misused(Sound):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2).reshape(3), {}


class Optionless(Sound):
    def reset(self, *, seed=None):
        return self.observation(), {}


class Seedless(Sound):
    def reset(self):
        return self.observation(), {}


def variant(base, **values):
    return type("Variant", (base,), values)


ACCEPT = (
    r"\(\S*core.py:\d+, in reset\); "
    r"reset must accept them: def reset\(self, \*, seed=None, options=None\)$"
)

# Name -> (class, what is said of it).
WRONG = {
    "Spaceless": (variant(Sound, observation_space=None), "Observation 'frame': .*, seen None$"),
    "NaN": (
        variant(Observes, seen=np.array([0, 0, np.nan, 0], np.float32)),
        "Observation 'frame': expected finite numbers, seen nan in 1 of 4 places, .* 0$",
    ),
    "Generous": (
        variant(Rewards, given=np.ones(1)),
        r"Reward: expected a finite number, seen \[1.0\] \(a ndarray\) from environment 0$",
    ),
    "Stillborn": (
        Stillborn,
        r"RuntimeError: no simulator on port 7 \(\S*wrong_envs.py:\d+, in reset\)$",
    ),
    "Leaving": (
        Leaving,
        r"SystemExit: 3 \(\S*wrong_envs.py:\d+, in reset\); expected an exception, because an "
        r"environment may not end the program$",
    ),
    "Precise": (
        variant(Sound, observation_space=Box(-1, 1, (4,), np.longdouble)),
        "Observation 'frame': expected numbers of at most 64 bits, seen (longdouble|float128)$",
    ),
    "Void": (
        variant(Sound, observation_space=Box(-1, 1, (0,))),
        r"Observation: expected at least one number, seen the shapes \[\(0,\)\]$",
    ),
    "Idle": (
        variant(Sound, action_space=Box(-1, 1, (0,))),
        r"Action space: expected .* or a Box of floats \(at least one\), seen Box\(.*\(0,\)",
    ),
    "Overflowing": (
        variant(Observes, seen=np.array([0, -1e300, 0, 0])),
        r"Observation 'frame': expected finite numbers, seen -1e\+300, which float32 cannot "
        r"hold, in 1 of 4 places, first in environment 0$",
    ),
    "Misused": (Misused, r"ValueError: cannot reshape .* \(\S*wrong_envs.py:\d+, in reset\)$"),
    "Optionless": (Optionless, f"'options' {ACCEPT}"),
    "Seedless": (Seedless, f"'seed' {ACCEPT}"),
}

for name, (env_class, _) in WRONG.items():
    gymnasium.register(f"{name}-v0", env_class)
