# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Trains Sample Factory 2.1 on a MinAtar game with the settings of its Atari example.

    python sample_factory_minatar.py --env MinAtar/Asterix-v1 --experiment asterix

Sample Factory has no MinAtar example. So this gives it the environment, with channels first, and an
encoder that is MonoBeast's small trunk. It runs in an environment of its own (peers/README.md).
"""

import sys

import gymnasium
import numpy as np
from minatar import gym as minatar_gym
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder
from sample_factory.train import run_rl
from sf_examples.atari.atari_params import atari_override_defaults
from torch import nn

GAMES = ("MinAtar/Asterix-v1", "MinAtar/Breakout-v1", "MinAtar/Freeway-v1")  # with rewards of 1


class ChannelsFirst(gymnasium.ObservationWrapper):
    """MinAtar's bool [10, 10, C] as float32 [C, 10, 10]."""

    def __init__(self, env):
        super().__init__(env)
        height, width, channels = env.observation_space.shape
        shape = (channels, height, width)
        self.observation_space = gymnasium.spaces.Box(0, 1, shape, np.float32)

    def observation(self, observation):
        return observation.transpose(2, 0, 1).astype(np.float32)


class SmallTrunk(Encoder):
    """A convolution of 16 channels and a linear layer of 128, as MonoBeast's for small images."""

    def __init__(self, cfg, observation_space):
        super().__init__(cfg)
        channels, height, width = observation_space["obs"].shape
        size = 16 * (height - 2) * (width - 2)
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(size, 128), nn.ReLU()
        )

    def forward(self, observations):
        return self.trunk(observations["obs"])

    def get_out_size(self):
        return 128


def make_env(name, cfg, env_config, render_mode=None):
    if name not in gymnasium.registry:  # in each of its processes
        minatar_gym.register_envs()
    return ChannelsFirst(gymnasium.make(name, render_mode=render_mode))


def main():
    for game in GAMES:
        register_env(game, make_env)
    global_model_factory().register_encoder_factory(SmallTrunk)
    parser, first = parse_sf_args()
    atari_override_defaults(first.env, parser)
    parser.set_defaults(env_frameskip=1, env_framestack=1, obs_scale=1.0, normalize_input=False)
    return run_rl(parse_full_cfg(parser))


if __name__ == "__main__":
    sys.exit(main())
