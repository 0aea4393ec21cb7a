# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Small environments for the tests: `--env tests.support.envs:Catch-v0` imports this module."""

import ctypes
import os
import secrets
import tempfile
import time

import gymnasium
import numpy as np

ROWS, COLUMNS = 10, 5
FAIL_AFTER = 40  # the steps after which environments of class BreakingCatch fail


class Catch(gymnasium.Env):
    """A ball falls from the top. The paddle in the lowest row moves left, stays or moves right. An
    episode has 9 steps. Its last reward is 1 if the paddle has caught the ball, else -1."""

    observation_space = gymnasium.spaces.Box(0, 255, (1, ROWS, COLUMNS), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drop()
        self.paddle = COLUMNS // 2
        return self.board(), {}

    def drop(self):
        self.row, self.column = 0, int(self.np_random.integers(COLUMNS))

    def step(self, action):
        self.paddle = min(COLUMNS - 1, max(0, self.paddle + int(action) - 1))
        self.row += 1
        at_end = self.row == ROWS - 1
        reward = (1.0 if self.paddle == self.column else -1.0) if at_end else 0.0
        return self.board(), reward, at_end, False, {}

    def render(self):
        return self.board()[0] if self.render_mode == "rgb_array" else None

    def board(self):
        board = np.zeros((1, ROWS, COLUMNS), np.uint8)
        board[0, self.row, self.column] = board[0, ROWS - 1, self.paddle] = 255
        return board


class EndlessCatch(Catch):
    """The next ball belongs to the same episode. So every transition is real, and steps can be
    counted exactly."""

    def step(self, action):
        observation, reward, at_end, _, info = super().step(action)
        if at_end:
            self.drop()
        return observation, reward, False, False, info


class HeavyCatch(EndlessCatch):
    """Each row also has 4,000 bytes that only the loss sees: so a batch is large, but not slow."""

    observation_space = gymnasium.spaces.Dict(
        {"frame": Catch.observation_space, "loss/ballast": gymnasium.spaces.MultiBinary(4000)}
    )
    ballast = np.zeros(4000, np.int8)

    def board(self):
        return {"frame": super().board(), "loss/ballast": self.ballast}


class OneStepCatch(Catch):
    """An episode has one step, so every second transition leads across a reset."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, True, False, info


class Sampled(gymnasium.Env):
    """Observations are samples of its space. Episodes terminate and are truncated at random."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        over, cut = self.np_random.random(2) < 0.15
        return self.observation_space.sample(), float(action) - 0.25, over, cut, {}


class ShortOrLong(Catch):
    """A game has 5 or 60 steps, as a coin says. Each step gives 1."""

    def drop(self):
        self.row, self.column = 0, 0
        self.left = int(self.np_random.choice([5, 60]))

    def step(self, action):
        self.left -= 1
        self.row = (self.row + 1) % ROWS
        return self.board(), 1.0, self.left == 0, False, {}


class BreakingCatch(Catch):
    """Raises after FAIL_AFTER steps, in every life of an actor."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > FAIL_AFTER:
            self.lose_the_ball()
        return super().step(action)

    def lose_the_ball(self):
        raise RuntimeError("the ball has rolled\nunder the sofa")


class StuckCatch(Catch):
    """The environment hangs that a process opens as number STUCK, an environment variable."""

    opened = 0

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        StuckCatch.opened += 1
        if StuckCatch.opened == int(os.environ["STUCK"]):
            time.sleep(3600)


class PacedCatch(Catch):
    """A step takes STEP_S seconds (default 2 ms). If the environment variable OPEN names a folder,
    it has a file for each environment that is open."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.mark = None
        if folder := os.environ.get("OPEN"):
            file, self.mark = tempfile.mkstemp(dir=folder)
            os.close(file)

    def step(self, action):
        time.sleep(float(os.environ.get("STEP_S", 0.002)))
        return super().step(action)

    def close(self):
        if self.mark:
            os.unlink(self.mark)


class Lives(gymnasium.Env):
    """Its observation shows a random number for its life, which begins with a seed, the number of
    steps in this life, and the process id, each as the 8 bytes of an int64, which do no harm in a
    network. If the environment variable ORDERS names a folder, the environment that removes a file
    from it does what the file's name says."""

    observation_space = gymnasium.spaces.Dict(
        {"frame": gymnasium.spaces.Box(0, 255, (1, 3, 3), np.uint8)}
        | dict.fromkeys(("life", "count", "process"), gymnasium.spaces.Box(0, 255, (8,), np.uint8))
    )
    action_space = gymnasium.spaces.Discrete(3)
    orders = os.environ.get("ORDERS")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is None:
            self.count += 1
        else:
            self.life, self.count = secrets.randbits(62), 0
        return self.observation(), {}

    def step(self, action):
        self.count += 1
        reward = float(action)
        for order in os.listdir(self.orders) if self.orders else ():
            if taken(os.path.join(self.orders, order)):
                if order == "raise":
                    raise RuntimeError("so\nordered")
                if order == "sleep":
                    time.sleep(3600)
                reward = float(order)
        return self.observation(), reward, self.np_random.random() < 0.05, False, {}

    def observation(self):
        numbers = dict(life=self.life, count=self.count, process=os.getpid())
        frame = np.zeros((1, 3, 3), np.uint8)
        return {"frame": frame} | {k: np.array([v]).view(np.uint8) for k, v in numbers.items()}


class StillbornCatch(Catch):
    """Fails in its first reset, but not in that of a server's trial, whose seed is 0."""

    def reset(self, *, seed=None, options=None):
        if seed == 0:
            return super().reset(seed=seed)
        raise RuntimeError("the sofa does not fit\nthrough the door")


class GilCatch(Catch):
    """Its first reset sleeps for ten minutes, and no thread of its process can run meanwhile."""

    def reset(self, **kwargs):
        ctypes.PyDLL(None).sleep(600)


class NoisyCatch(EndlessCatch):
    """Prints bytes that are not UTF-8, and more than fits into a pipe."""

    printed = False

    def step(self, action):
        if not self.printed:
            self.printed = True
            os.write(2, b"10%\r100%\n\xff\xfe\n" + 100 * (b"x" * 1023 + b"\n"))
        return super().step(action)


def taken(path):
    """Removes the file. Returns whether it existed and this process was the one to remove it."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


for env in (
    Catch, EndlessCatch, HeavyCatch, OneStepCatch, ShortOrLong, BreakingCatch, StuckCatch,
    PacedCatch, StillbornCatch, NoisyCatch, GilCatch, Lives,
):  # fmt: skip
    gymnasium.register(f"{env.__name__}-v0", env)
