# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""An environment that tells numbers: `--env tests.forks.told:Told-v0` imports this module."""

import gymnasium

from tests.forks.envs import Signals


class Told(Signals):
    """Signals in two tasks, of which a game has one. At its end a game tells the share of right
    actions, for its task and for all. In the task `paid` right actions give 3."""

    metadata = {"game_numbers": ["right", "right_plain", "right_paid"]}

    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=seed)
        self.task, self.right = ("plain", "paid")[self.np_random.integers(2)], 0
        return seen, info

    def step(self, action):
        seen, reward, over, truncated, _ = super().step(action)
        self.right += reward
        share = self.right / self.steps
        own = {"right": share, f"right_{self.task}": share}
        info = {"torchbeast": {"game_numbers": own}} if over else {}
        return seen, reward * (3 if self.task == "paid" else 1), over, truncated, info


gymnasium.register("Told-v0", Told, disable_env_checker=True)
