# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Atari's games with actions that last: `--env examples.options.atari:FreewayOptions-v0`."""

import gymnasium

import atari_wrappers

LENGTHS = (1, 4, 16)  # steps, of four frames each
GAMMA = 0.99  # --discounting


class Options(gymnasium.Wrapper):
    """With A actions, action a + A * i holds the game's action a for LENGTHS[i] steps, or until the
    episode ends. The agent gets the sum of the rewards, not discounted, so that the game return is
    the game's score."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        space = env.action_space
        assert isinstance(space, gymnasium.spaces.Discrete)
        self._num_actions = int(space.n)
        self.action_space = gymnasium.spaces.Discrete(self._num_actions * len(LENGTHS))
        no_stacks = {"frame_stacks": {}}  # after an option all four frames may be new
        self.metadata = {**env.metadata, **no_stacks, "own_discounts": True}

    def step(self, action):
        index, action = divmod(int(action), self._num_actions)
        total, steps, is_over = 0.0, 0, False
        while steps < LENGTHS[index] and not is_over:
            observation, reward, terminated, truncated, info = self.env.step(action)
            total, steps, is_over = total + float(reward), steps + 1, terminated or truncated
        own = {**info.get("torchbeast", {}), "discount": GAMMA ** (steps - 1)}
        return observation, total, terminated, truncated, {**info, "torchbeast": own}


def make(game: str, render_mode: str | None = None) -> gymnasium.Env:
    env = atari_wrappers.make_atari(game, render_mode=render_mode)
    return Options(atari_wrappers.wrap_deepmind(env))


gymnasium.register("FreewayOptions-v0", make, kwargs={"game": "FreewayNoFrameskip-v4"})
