# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MinAtar's games (Young and Tian 2019), with images in the layout that the networks read.

The games repeat an action with probability 0.1 (sticky actions). Those whose ids end in v1 offer
only the actions that they use; those in v0 all offer the same six.
"""

from typing import Any

from libtorchbeast.flags import UserError


def is_minatar(env: str) -> bool:
    """Whether the id is one of MinAtar's, for example MinAtar/Breakout-v1."""
    return env.startswith("MinAtar/")


def make_minatar(env: str, **options: Any) -> Any:
    """Makes a `gymnasium.Env` whose observations are bool [C, 10, 10].

    Args:
        env: the id, for example MinAtar/Breakout-v1.
        options: are passed to `gymnasium.make`, for example render_mode.

    Raises:
        UserError: the package MinAtar is not installed.
    """
    import gymnasium

    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        try:
            import minatar.gym
        except ImportError as error:
            raise UserError(f"--env {env}: pip install MinAtar==1.0.15") from error
        minatar.gym.register_envs()
    game: Any = gymnasium.make(env, disable_env_checker=True, **options)
    channels = game.observation_space.shape[2]  # the game's own observations are [10, 10, C]
    dtype: Any = bool  # gymnasium takes it, but its annotations do not
    space = gymnasium.spaces.Box(0, 1, (channels, 10, 10), dtype)
    to_chw = lambda frame: frame.transpose(2, 0, 1)
    return gymnasium.wrappers.TransformObservation(game, to_chw, space)
