# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The opponents that others wrote. `make test-examples` installs their packages."""

import gymnasium
import numpy as np
import pytest

from examples.self_play import connect4, others  # noqa: F401
from libtorchbeast.environment import Environment


def play(env, seed, choose):
    """Returns the game's reward and the moves of both players."""
    env.reset(seed=seed)
    moves, over = [], False
    while not over:
        column = choose(env.unwrapped.board)
        _, reward, over, _, _ = env.step(column)
        moves.append(column)
    return reward, moves


@pytest.mark.parametrize("name", ["Mcts100", "Kaggle"])
def test_games_follow_the_rules_and_the_seed(name):
    env = gymnasium.make(f"ConnectFour-{name}-v0")
    for seed in range(4):
        draw = lambda board: connect4.best_moves(board.own, board.both, 0)[0]
        reward, moves = play(env, seed, draw)
        assert reward in (-1, 0, 1)
        if name == "Mcts100":
            assert env.unwrapped.state.is_terminal()
        assert play(env, seed, draw) == (reward, moves)


@pytest.mark.parametrize("name", ["Mcts1000", "Kaggle"])
@pytest.mark.parametrize("moves", ["020202", "02020"])
def test_they_win_and_block(name, moves):
    """After 020202 the first player wins in column 0; after 02020 the second has to block it."""
    env = gymnasium.make(f"ConnectFour-{name}-v0").unwrapped
    env.reset(seed=0)
    for column in map(int, moves):
        env.board.play(column)
        if name == "Mcts1000":
            env.state.apply_action(column)
    assert env.opponents_move() == 0


@pytest.mark.parametrize("name", ["Mcts100", "Kaggle"])
def test_they_are_stronger_than_chance(name):
    env = gymnasium.make(f"ConnectFour-{name}-v0")
    draws = np.random.default_rng(0)
    choose = lambda board: int(draws.choice(connect4.best_moves(board.own, board.both, 0)))
    assert np.mean([play(env, seed, choose)[0] for seed in range(6)]) < -0.5
    with_rows = Environment(lambda: gymnasium.make(f"ConnectFour-{name}-v0"), 2)
    with_rows.initial(0)
    with_rows.close()
