# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Connect Four against two players that others wrote, for test modes and --eval_env:

ConnectFour-Mcts100-v0, -Mcts1000-v0    OpenSpiel's Monte Carlo tree search with so many
                                        simulations, each ended by one random game
ConnectFour-Kaggle-v0                   the agent `negamax` of Kaggle's ConnectX
"""

import importlib.util
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pyspiel
from open_spiel.python.algorithms import mcts

from examples.self_play.connect4 import COLUMNS, ROWS, Versus


class VersusMcts(Versus):
    """Against `mcts.MCTSBot`, with the constant of UCT that OpenSpiel's examples have."""

    def __init__(self, simulations: int):
        super().__init__(depth=0)
        self.bot: Any = None
        self.simulations, self.rules = simulations, pyspiel.load_game("connect_four")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or self.bot is None:
            draws = np.random.RandomState(seed)
            rollouts = mcts.RandomRolloutEvaluator(n_rollouts=1, random_state=draws)
            self.bot = mcts.MCTSBot(self.rules, 2.0, self.simulations, rollouts, random_state=draws)
        self.state = self.rules.new_initial_state()
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.state.apply_action(int(action))
        return super().step(action)

    def opponents_move(self) -> int:
        column = int(self.bot.step(self.state))
        self.state.apply_action(column)
        return column


class VersusKaggle(Versus):
    """Against `negamax_agent`, which looks five moves ahead and draws lots among equal ones."""

    def __init__(self) -> None:
        super().__init__(depth=0)
        # Only this file of the package: to import all of it needs many others.
        package = importlib.util.find_spec("kaggle_environments")
        assert package is not None and package.origin is not None
        path = Path(package.origin).parent / "envs/connectx/connectx.py"
        spec = importlib.util.spec_from_file_location("connectx", path)
        assert spec is not None and spec.loader is not None
        self.connectx = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.connectx)
        self.rules = SimpleNamespace(columns=COLUMNS, rows=ROWS, inarow=4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            random.seed(seed)  # which the agent uses
        return super().reset(seed=seed)

    def opponents_move(self) -> int:
        own, others = self.board.seen()["board"][:, ::-1]  # their first row is the highest
        cells = (own + 2 * others).flatten().tolist()
        return int(self.connectx.negamax_agent(SimpleNamespace(board=cells, mark=1), self.rules))


gymnasium.register("ConnectFour-Kaggle-v0", VersusKaggle)
for simulations in (100, 1000):
    name = f"ConnectFour-Mcts{simulations}-v0"
    gymnasium.register(name, VersusMcts, kwargs={"simulations": simulations})
