# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""An environment that costs nearly nothing, to measure what carries its steps."""

import dataclasses
import math
import re
from typing import Any

import numpy as np

from libtorchbeast.flags import UserError

EPISODE_STEPS = 1000
ATARI_SHAPE = (4, 84, 84)


@dataclasses.dataclass(frozen=True)
class ArraySpace:
    shape: tuple[int, ...]
    dtype: str = "uint8"


@dataclasses.dataclass(frozen=True)
class DiscreteSpace:
    n: int


class MockVectorEnv:
    """`num_envs` environments with next-step autoreset, without gymnasium.

    An observation is uint8 `shape`, all noise but its first bytes, which count the steps, so that
    none is equal to the one before it. Episodes have 1000 steps and end with reward 1, those of
    different environments at different times.
    """

    metadata = {"autoreset_mode": "NextStep"}

    def __init__(self, num_envs: int, shape: tuple[int, ...] = ATARI_SHAPE):
        self.num_envs = num_envs
        self.single_observation_space = ArraySpace(shape)
        self.single_action_space = DiscreteSpace(6)
        noise = np.random.default_rng(0).integers(0, 256, math.prod(shape), np.uint8)
        self._observation = np.tile(noise, (num_envs, 1))  # [N, bytes]
        self._never = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._step = 0
        self._episode_step = np.arange(self.num_envs) * 37 % EPISODE_STEPS
        return self._observe(), {}

    def step(self, actions: np.ndarray):
        self._step += 1
        # -1 after the last step of an episode, so that the next one is step 0: the reset.
        self._episode_step += 1
        ended = self._episode_step == EPISODE_STEPS
        self._episode_step[ended] = -1
        return self._observe(), ended.astype(np.float32), ended, self._never, {}

    def close(self) -> None:
        pass

    def _observe(self) -> np.ndarray:
        counter = np.frombuffer(self._step.to_bytes(8, "little"), np.uint8)
        width = min(len(counter), self._observation.shape[1])
        self._observation[:, :width] = counter[:width]
        return self._observation.reshape(self.num_envs, *self.single_observation_space.shape)


def is_mock(name: str) -> bool:
    return name.split("/")[0] == "Mock"


def make_mock(name: str, num_envs: int) -> MockVectorEnv:
    """`Mock` has Atari's 28,224 bytes an observation, `Mock/10x10x4` that shape.

    Raises:
        UserError: the name is neither.
    """
    if name == "Mock":
        return MockVectorEnv(num_envs)
    if not re.fullmatch(r"Mock/[1-9]\d*(x[1-9]\d*)*", name):
        raise UserError(f"--env {name}: expected Mock or Mock/SIZExSIZE..., as in Mock/10x10x4")
    return MockVectorEnv(num_envs, tuple(int(size) for size in name[5:].split("x")))
