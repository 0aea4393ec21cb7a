# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments that break their contract: `--env tests.support.wrong_envs:NaN-v0`."""

import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Sound(gymnasium.Env):
    """Keeps the contract. Its subclasses break it in one place each."""

    observation_space, action_space = Box(-1, 1, (4,), np.float32), Discrete(2)
    seen = np.zeros(4, np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return self.seen, {}

    def step(self, action):
        return self.seen, 0.0, False, False, {}


class Stillborn(Sound):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no simulator\non port 7")


class Leaving(Sound):
    def reset(self, *, seed=None, options=None):
        sys.exit(3)


class Optionless(Sound):
    def reset(self, *, seed=None):
        return self.seen, {}


class Seedless(Sound):
    def reset(self):
        return self.seen, {}


class NaN(Sound):
    seen = np.array([0, 0, np.nan, 0], np.float32)


ACCEPT = (
    r"\(\S*core.py:\d+, in reset\); "
    r"reset must accept them: def reset\(self, \*, seed=None, options=None\)$"
)

WRONG = {  # what is said of each
    "NaN": "Observation 'frame': expected finite numbers, seen nan in 1 of 4 places, .* 0$",
    "Stillborn": r"RuntimeError: no simulator on port 7 \(\S*wrong_envs.py:\d+, in reset\)$",
    "Leaving": (
        r"SystemExit: 3 \(\S*wrong_envs.py:\d+, in reset\); expected an exception, because an "
        r"environment may not end the program$"
    ),
    "Optionless": f"'options' {ACCEPT}",
    "Seedless": f"'seed' {ACCEPT}",
}

for env_class in (NaN, Stillborn, Leaving, Optionless, Seedless):
    gymnasium.register(f"{env_class.__name__}-v0", env_class)
