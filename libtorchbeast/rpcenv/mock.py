# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments that cost nearly nothing, to measure what carries their steps."""

import dataclasses
import math
import re
from typing import Any

import numpy as np

from libtorchbeast.flags import UserError

EPISODE_STEPS = 1000
STACK, FRAME_SHAPE = 4, (84, 84)  # Atari's
RING = 16  # frames


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

    def __init__(self, num_envs: int, shape: tuple[int, ...]):
        self.num_envs = num_envs
        self.single_observation_space = ArraySpace(shape)
        self.single_action_space = DiscreteSpace(6)
        self._never = np.zeros(num_envs, bool)
        self._memory = np.tile(_noise(math.prod(shape)), (num_envs, 1))  # [N, bytes]

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
        self._count_in(self._memory)
        return self._memory.reshape(self.num_envs, *self.single_observation_space.shape)

    def _count_in(self, frames: np.ndarray) -> None:
        """Writes the number of the step into the first bytes of `frames` [N, bytes]."""
        counter = np.frombuffer(self._step.to_bytes(8, "little"), np.uint8)
        width = min(len(counter), frames.shape[1])
        frames[:, :width] = counter[:width]


class MockStackEnv(MockVectorEnv):
    """The same, but an observation is a stack of the 4 newest frames, uint8 [4, 84, 84], oldest
    first, zeros before an episode's first.

    All frames lie in a ring of noise; an observation is a window of it that goes on by one frame a
    step, so that nothing is stacked.
    """

    metadata = {**MockVectorEnv.metadata, "frame_stacks": {"frame": STACK}}

    def __init__(self, num_envs: int):
        super().__init__(num_envs, (STACK, *FRAME_SHAPE))
        self._noise = _noise(RING * math.prod(FRAME_SHAPE)).reshape(RING, -1)
        self._memory = np.tile(self._noise, (num_envs, 1, 1))  # [N, RING, bytes]

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._newest = RING - 1  # where the newest frame is; the next comes after a turn
        self._blank = ~self._never  # whose ring has lost noise since the last turn
        return super().reset(seed=seed)

    def _observe(self) -> np.ndarray:
        if self._newest == RING - 1:
            self._turn()
        self._newest += 1
        self._count_in(self._memory[:, self._newest])
        window = self._memory[:, self._newest - STACK + 1 : self._newest + 1]
        first = np.flatnonzero(self._episode_step == 0) if self._step else slice(None)
        window[first, :-1] = 0
        self._blank[first] = True
        return window.reshape(self.num_envs, STACK, *FRAME_SHAPE)

    def _turn(self) -> None:
        """The last frames become the first of the ring, and blank ones noise again."""
        self._memory[:, : STACK - 1] = self._memory[:, 1 - STACK :]
        self._memory[self._blank, STACK - 1 :] = self._noise[STACK - 1 :]
        self._blank[:] = False
        self._newest = STACK - 2


def _noise(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size, np.uint8)


def is_mock(name: str) -> bool:
    return name.split("/")[0] == "Mock"


def make_mock(name: str, num_envs: int) -> MockVectorEnv:
    """`Mock` has Atari's stack of frames, 28,224 bytes; `Mock/4x10x10` has that shape, unstacked.

    Raises:
        UserError: the name is neither.
    """
    if name == "Mock":
        return MockStackEnv(num_envs)
    if not re.fullmatch(r"Mock/[1-9]\d*(x[1-9]\d*)*", name):
        raise UserError(f"--env {name}: expected Mock or Mock/SIZExSIZE..., as in Mock/4x10x10")
    return MockVectorEnv(num_envs, tuple(int(size) for size in name[5:].split("x")))
