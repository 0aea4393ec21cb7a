# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A game that only memory wins: `--env examples.memory.recall:Recall-v0`, which imports this."""

import gymnasium
import numpy as np

DELAY = 5  # steps between what is shown and the question
LEFT, RIGHT, WAIT = range(3)


class Recall(gymnasium.Env):
    """A lamp, left or right, is lit once; DELAY steps later a question is lit: which one was it?

    The observation is [left, right, question]. Until the question is lit, anything but WAIT loses:
    otherwise a network without memory could repeat the answer as its action, because it sees its
    last action. The answer gives 1 or -1 and ends the game.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps_to_go = DELAY
        self.lamp = int(self.np_random.integers(2))
        return self.seen(self.lamp), {}

    def step(self, action):
        is_answer = self.steps_to_go == 0
        is_right = action == (self.lamp if is_answer else WAIT)
        ended = is_answer or not is_right
        reward = (1.0 if is_right else -1.0) if ended else 0.0
        self.steps_to_go -= 1
        return self.seen(2 if self.steps_to_go == 0 else None), reward, ended, False, {}

    def seen(self, lit):
        observation = np.zeros(3, np.float32)
        if lit is not None:
            observation[lit] = 1
        return observation


gymnasium.register("Recall-v0", Recall)
