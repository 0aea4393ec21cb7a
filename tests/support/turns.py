# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A game of two players, with discounts and numbers of its own."""

import gymnasium
import numpy as np


class Nim(gymnasium.Env):
    """Two players take 1 or 2 of 5 stones in turn, each seeing what is left. Who takes the last
    wins 1. A game tells whether the first player won, and then its moves."""

    observation_space = gymnasium.spaces.Box(0, 1, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"own_discounts": True, "game_numbers": ["first_wins", "moves"]}
    discount = -1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.stones, self.moves = 5, 0
        return self.seen(), {}

    def step(self, action):
        self.stones, self.moves = max(0, self.stones - 1 - int(action)), self.moves + 1
        over = self.stones == 0
        own = {"discount": self.discount}
        if over:
            first = self.moves % 2 == 1
            moves = {"moves": self.moves} if first else {}
            own["game_numbers"] = {"first_wins": float(first)} | moves
        return self.seen(), float(over), over, False, {"torchbeast": own}

    def seen(self):
        return np.eye(6, dtype=np.float32)[self.stones]


gymnasium.register("Nim-v0", Nim)
