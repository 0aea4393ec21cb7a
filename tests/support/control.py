# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A control task that is learned in seconds, if its observations are scaled.

--env tests.support.control:Crane-v0
"""

import gymnasium
import numpy as np


class Crane(gymnasium.Env):
    """A trolley on a rail of 4 m, to be brought to the middle. It observes, float32 [2], its place
    and its speed in millimetres (per second). The action, float32 [1], pushes it; the reward is
    minus the squared distance to the middle, in metres. A game has 40 steps. Without pushes its
    return is about -53 in the mean; a good controller has more than -8."""

    observation_space = gymnasium.spaces.Box(-1e4, 1e4, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed, self.steps = self.np_random.uniform(0, 4), 0.0, 0
        return self._seen(), {}

    def step(self, action):
        self.speed += 0.25 * float(action[0])
        self.place += 0.25 * self.speed
        if not 0 <= self.place <= 4:  # a buffer at each end of the rail
            self.place, self.speed = min(max(self.place, 0.0), 4.0), 0.0
        self.steps += 1
        return self._seen(), -((self.place - 2) ** 2), False, self.steps == 40, {}

    def _seen(self):
        return np.array([1000 * self.place, 1000 * self.speed], np.float32)


gymnasium.register("Crane-v0", Crane)
