# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A tokenizer for environments whose observation is a Dict with a text in it."""

import re
import zlib

import gymnasium
import numpy as np

NUMBERS = 8192  # 0 stands for no word


class Words(gymnasium.ObservationWrapper):
    """Replaces the text by the numbers of its words, int64 [length], with zeros after the last one.
    A word's number is a hash of its letters. So every word has one, and it is the same in each
    process. MiniGrid's 51 words have 51 different ones."""

    def __init__(self, env: gymnasium.Env, name: str = "mission", length: int = 64):
        super().__init__(env)
        self.name, self.length = name, length
        spaces = dict(env.observation_space.spaces)
        spaces[name] = gymnasium.spaces.MultiDiscrete([NUMBERS] * length)
        self.observation_space = gymnasium.spaces.Dict(spaces)

    def observation(self, observation: dict) -> dict:
        words = re.findall(r"\w+", observation[self.name].lower())
        numbers = [1 + zlib.crc32(word.encode()) % (NUMBERS - 1) for word in words]
        padding = [0] * (self.length - len(numbers))
        return {**observation, self.name: np.array(numbers + padding, dtype=np.int64)}
