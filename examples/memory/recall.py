# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A game that an agent can win only with memory: `--env examples.memory.recall:Recall-v0`."""

import gymnasium
import numpy as np

LEFT, RIGHT, WAIT = range(3)


class Recall(gymnasium.Env):
    """The left or the right lamp is lit for one step. `delay` steps later the agent is asked which
    one it was.

    The observation is float32 [3]: left lamp, right lamp, question. The answer, LEFT or RIGHT, ends
    the game with a reward of 1 or -1. Before the question every action except WAIT loses the game.
    Otherwise a network without memory could keep the answer in its actions, because it sees its
    last action.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, delay=5):
        self.delay = delay

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps_to_go = self.delay
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
for delay in (20, 50, 100):
    gymnasium.register(f"Recall-{delay}-v0", Recall, kwargs={"delay": delay})
