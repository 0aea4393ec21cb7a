# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Three of MinAtar's games as the tasks of one network, with rewards of different sizes.

With `--env tasks`, environment i plays task i % 3. `--env tasks/asterix` plays one of them only.
"""

from typing import Any

import gymnasium
import numpy as np

import minatar_wrappers
from libtorchbeast.flags import Flags, UserError

SCALES = {"breakout": 1, "asterix": 10, "space_invaders": 100}  # factors of the tasks' rewards
CHANNELS = 6  # of SpaceInvaders; Asterix and Breakout have 4, Freeway has 7, Seaquest 10


def is_task(env: str) -> bool:
    """Whether --env names the tasks, or one of them."""
    return env.split("/")[0] == "tasks"


def make_task(flags: Flags) -> gymnasium.Env:
    """Makes the task that --env names, or else that of the environment's number."""
    names = [*SCALES]
    _, _, name = flags.env.partition("/")
    if name and name not in names:
        raise UserError(f"--env {flags.env}: expected one of {', '.join(names)} after tasks/")
    options = {"render_mode": "rgb_array"} if flags.mode == "test_render" else {}
    return Task(name or names[flags.env_index % len(names)], **options)


class Task(gymnasium.Wrapper):
    """A game with all six actions of MinAtar, of which each game uses only some.

    The observation is a Dict: `image` bool [6, 10, 10], the game's channels and after them empty
    ones, and `task` bool [3], one-hot. Rewards are multiplied by the task's scale. At the end of
    a game, `game_numbers` tells its return without the scale: the column game_breakout and so on.
    """

    def __init__(self, name: str, **options: Any):
        game = f"MinAtar/{name.title().replace('_', '')}-v1"
        options |= {"use_minimal_action_set": False}
        super().__init__(minatar_wrappers.make_minatar(game, **options))
        channels = len(self.env.observation_space.low)  # type: ignore[attr-defined]
        if channels > CHANNELS:
            raise UserError(f"{game}: expected at most {CHANNELS} channels, seen {channels}")
        self.name, self.scale = name, SCALES[name]
        self.task = np.array([name == other for other in SCALES])  # floats might be scaled
        self.metadata = self.env.metadata | {"game_numbers": [*SCALES]}
        self.observation_space = gymnasium.spaces.Dict(
            image=gymnasium.spaces.Box(0, 1, (CHANNELS, 10, 10), bool),  # type: ignore[arg-type]
            task=gymnasium.spaces.Box(0, 1, self.task.shape, bool),  # type: ignore[arg-type]
        )

    def reset(self, **options: Any) -> Any:
        image, info = self.env.reset(**options)
        self.game_return = 0.0
        return self.seen(image), info

    def step(self, action: Any) -> Any:
        image, reward, terminated, truncated, info = self.env.step(action)
        self.game_return += float(reward)
        told = {"torchbeast": {"game_numbers": {self.name: self.game_return}}}
        return self.seen(image), self.scale * reward, terminated, truncated, info | told

    def seen(self, image: np.ndarray) -> dict[str, np.ndarray]:
        padding = [(0, CHANNELS - len(image)), (0, 0), (0, 0)]
        return dict(image=np.pad(image, padding), task=self.task)
