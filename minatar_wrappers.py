# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MinAtar's games (Young and Tian 2019), as the beasts' networks read them.

The games have sticky actions with probability 0.1 and their minimal sets of actions.
"""

from typing import Any

from libtorchbeast.flags import UserError


def is_minatar(env: str) -> bool:
    """Whether the id is one of MinAtar's, for example MinAtar/Breakout-v1."""
    return env.startswith("MinAtar/")


def make_minatar(env: str, **options: Any) -> Any:
    """A `gymnasium.Env` whose observations are bool [C, 10, 10].

    Args:
        options: for `gymnasium.make`, for example render_mode.

    Raises:
        UserError: the package MinAtar is not installed.
    """
    import gymnasium

    if env not in gymnasium.registry:
        try:
            import minatar.gym
        except ImportError as error:
            raise UserError(f"--env {env}: pip install MinAtar==1.0.15") from error
        minatar.gym.register_envs()
    game = gymnasium.make(env, disable_env_checker=True, **options)
    channels = game.observation_space.shape[2]  # the game's own observations are [10, 10, C]
    space = gymnasium.spaces.Box(0, 1, (channels, 10, 10), bool)
    to_chw = lambda frame: frame.transpose(2, 0, 1)
    return gymnasium.wrappers.TransformObservation(game, to_chw, space)
