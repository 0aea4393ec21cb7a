# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments that cost nearly nothing. Benchmarks use them to measure everything else.

    python -m benchmarks.mock --env Mock/4x10x10

serves them as polybeast_env.py serves its own, with the same flags.
"""

import dataclasses
import math
import re
import time
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # first, because the other imports take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.before_imports(__name__)

import numpy as np

import polybeast_env
from libtorchbeast.flags import UserError

EPISODE_STEPS = 1000
STACK, FRAME_SHAPE = 4, (84, 84)  # as Atari's
RING = 16  # frames in each environment's ring


@dataclasses.dataclass(frozen=True)
class ArraySpace:
    shape: tuple[int, ...]
    dtype: str = "uint8"


@dataclasses.dataclass(frozen=True)
class DiscreteSpace:
    n: int


class MockVectorEnv:
    """`num_envs` environments with next-step autoreset, without gymnasium.

    An observation is uint8 of `shape`. It is the same noise in every step, except for its first
    bytes, which count the steps, so that no observation equals the one before it. Episodes have
    1000 steps and end with reward 1. Those of different environments end at different times.

    They all together make at most `rate` steps per second: each step is due a fixed time after the
    step before, and sleeps until then. If actions come later than that, the step does not sleep,
    and the delay is not made up for.
    """

    metadata: dict[str, Any] = {"autoreset_mode": "NextStep"}

    def __init__(self, num_envs: int, shape: tuple[int, ...], rate: float = math.inf):
        self.num_envs = num_envs
        self.single_observation_space = ArraySpace(shape)
        self.single_action_space = DiscreteSpace(6)
        self._never = np.zeros(num_envs, bool)
        self._memory = np.tile(_noise(math.prod(shape)), (num_envs, 1))  # [N, bytes]
        self._period, self._due = num_envs / rate, 0.0  # seconds

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._step = 0
        self._episode_step = np.arange(self.num_envs) * 37 % EPISODE_STEPS
        return self._observe(), {}

    def step(self, actions: np.ndarray):
        if self._period:
            self._sleep()
        self._step += 1
        # -1 after an episode's last step, so that the next step, which is the reset, is step 0.
        self._episode_step += 1
        ended = self._episode_step == EPISODE_STEPS
        self._episode_step[ended] = -1
        return self._observe(), ended.astype(np.float32), ended, self._never, {}

    def close(self) -> None:
        pass

    def _sleep(self) -> None:
        now = time.monotonic()
        self._due = max(self._due + self._period, now)
        time.sleep(self._due - now)

    def _observe(self) -> np.ndarray:
        self._write_counter(self._memory)
        return self._memory.reshape(self.num_envs, *self.single_observation_space.shape)

    def _write_counter(self, frames: np.ndarray) -> None:
        """Writes the number of the step into the first bytes of `frames` [N, bytes]."""
        counter = np.frombuffer(self._step.to_bytes(8, "little"), np.uint8)
        width = min(len(counter), frames.shape[1])
        frames[:, :width] = counter[:width]


class MockStackEnv(MockVectorEnv):
    """A MockVectorEnv whose observations are stacks of the 4 newest frames, uint8 [4, 84, 84].

    The oldest frame comes first; before an episode's first frame there are zeros. The frames of an
    environment lie in a ring of noise. An observation is a window of the ring that moves on by one
    frame a step, so that no stack has to be copied together.
    """

    metadata = {**MockVectorEnv.metadata, "frame_stacks": {"frame": STACK}}

    def __init__(self, num_envs: int, rate: float = math.inf):
        super().__init__(num_envs, (STACK, *FRAME_SHAPE), rate)
        self._noise = _noise(RING * math.prod(FRAME_SHAPE)).reshape(RING, -1)
        self._memory = np.tile(self._noise, (num_envs, 1, 1))  # [N, RING, bytes]

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._newest = RING - 1  # the newest frame is at the ring's end, so a restart is due
        self._has_zeros = ~self._never  # environments with zeros in their ring since its restart
        return super().reset(seed=seed)

    def _observe(self) -> np.ndarray:
        if self._newest == RING - 1:
            self._restart_ring()
        self._newest += 1
        self._write_counter(self._memory[:, self._newest])
        window = self._memory[:, self._newest - STACK + 1 : self._newest + 1]
        first = np.flatnonzero(self._episode_step == 0) if self._step else slice(None)
        window[first, :-1] = 0
        self._has_zeros[first] = True
        return window.reshape(self.num_envs, STACK, *FRAME_SHAPE)

    def _restart_ring(self) -> None:
        """Moves the last frames to the ring's start, and replaces zeros after them by noise."""
        self._memory[:, : STACK - 1] = self._memory[:, 1 - STACK :]
        self._memory[self._has_zeros, STACK - 1 :] = self._noise[STACK - 1 :]
        self._has_zeros[:] = False
        self._newest = STACK - 2


def _noise(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size, np.uint8)


def make_mock(name: str, num_envs: int) -> MockVectorEnv:
    """Makes the environments called `name`.

    `Mock` has Atari's stacks of frames, 28,224 bytes each. `Mock/4x10x10` has observations of that
    shape, which are not stacks. With `@5000` after either, the environments of a stream make at
    most 5000 steps per second together.

    Raises:
        UserError: the name has none of these forms.
    """
    found = re.fullmatch(r"Mock(?:/([1-9]\d*(?:x[1-9]\d*)*))?(?:@([1-9]\d*))?", name)
    if found is None:
        raise UserError(
            f"--env {name}: expected Mock or Mock/SIZExSIZE..., as in Mock/4x10x10, and perhaps "
            "@STEPS_PER_SECOND"
        )
    sizes, rate = found[1], float(found[2] or math.inf)
    if sizes is None:
        return MockStackEnv(num_envs, rate)
    return MockVectorEnv(num_envs, tuple(int(size) for size in sizes.split("x")), rate)


if __name__ in ("__main__", "__mp_main__"):  # also in the servers' processes, which import this
    polybeast_env.create_env = lambda flags: make_mock(flags.env, flags.envs_per_server)
if __name__ == "__main__":
    polybeast_env.main()
