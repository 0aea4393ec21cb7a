# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The numbers that an environment tells of a game: from its info to the columns of the log."""

import json
import re

import gymnasium
import numpy as np
import pytest
import torch

from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.q_learning.replay_memory import block_shapes
from tests.support.turns import Nim

ONE_GAME = [1, 0, 0, 0]  # the second player wins it, and tells no `moves`


def play(create_env, actions):
    """The rows [T, 1, ...] of one environment."""
    env = Environment(create_env, 1)
    played = [env.initial(seed=0)] + [env.step(np.array([a])) for a in actions]
    return {k: torch.tensor(np.stack([row[k] for row in played])) for k in played[0]}


def with_metadata(**metadata):
    return lambda: type("Changed", (Nim,), {"metadata": {"own_discounts": True} | metadata})()


def test_they_are_in_the_row_that_ends_the_game_and_nowhere_else():
    rows = play(Nim, [*ONE_GAME, 0, 1, 0, 1])  # the first player wins the second game
    for name, told in {"first_wins": {4: 0.0, 8: 1.0}, "moves": {8: 3.0}}.items():
        values = rows[f"game/{name}"][:, 0]
        assert values.dtype == torch.float32
        assert {i: x for i, x in enumerate(values.tolist()) if x == x} == told


def test_the_columns_are_means_over_the_games_that_told_a_number():
    rows = play(Nim, [*ONE_GAME, 0, 1, 0, 1])
    stats, other, resumed = (Stats(0) for _ in range(3))
    for each in (stats, other, resumed):
        each._first_games = None  # games count at once
    stats.add_games(rows)
    columns = {"game_first_wins": 0.5, "game_moves": 3.0}
    other.add_games_of_rank(json.loads(json.dumps(stats.take_games())))
    resumed.load_state_dict(stats.state_dict())
    for each in (stats, other, resumed):
        seen = each.take()
        assert {k: x for k, x in seen.items() if k.startswith("game_")} == columns


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("win", "expected a list of plain identifiers, seen 'win'"),
        ([1], "expected a list of plain identifiers, seen [1]"),
        (["a b"], "expected a list of plain identifiers, seen ['a b']"),
        (["return"], "expected names that the columns mean_game_NAME do not have, seen ['return']"),
    ],
)
def test_a_wrong_declaration_is_refused(names, expected):
    with pytest.raises(UserError, match=re.escape(f'metadata["game_numbers"]: {expected}')):
        Environment(with_metadata(game_numbers=names), 1)


def test_a_number_that_is_not_declared_is_refused():
    expected = "tells game_numbers first_wins: expected the name in"
    with pytest.raises(UserError, match=re.escape(expected) + r".*seen \['moves'\]"):
        play(with_metadata(game_numbers=["moves"]), ONE_GAME)


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), "x", None])
def test_a_value_that_is_no_finite_number_is_refused(wrong):
    class Wrong(Nim):
        def step(self, action):
            *result, info = super().step(action)
            if result[2]:
                info["torchbeast"]["game_numbers"] = {"moves": wrong}
            return *result, info

    expected = f"tells game_numbers moves: expected a finite number, seen {wrong!r}"
    with pytest.raises(UserError, match=re.escape(expected)):
        play(Wrong, ONE_GAME)


def test_a_vector_tells_them_with_gymnasiums_masks():
    class Pair(gymnasium.vector.VectorEnv):
        num_envs = 2
        metadata = {"game_numbers": ["win"], "autoreset_mode": "NextStep"}
        single_observation_space, single_action_space = Nim.observation_space, Nim.action_space

        def reset(self, *, seed=None, options=None):
            return np.zeros((2, 6), np.float32), {}

        def step(self, actions):
            numbers = {"win": np.array([1.0, 0.0]), "_win": np.array([True, False])}
            never = np.zeros(2, bool)
            own = {"torchbeast": {"game_numbers": numbers}}
            return np.zeros((2, 6), np.float32), np.ones(2), ~never, never, own

    env = Environment(Pair, 2)
    env.initial(seed=0)
    win = env.step(np.zeros(2, np.int64))["game/win"]
    np.testing.assert_array_equal(win, np.float32([1, np.nan]))


def test_the_replay_keeps_the_discount_and_no_number_of_a_game():
    spec = Environment(Nim, 1).spec
    shapes = block_shapes(spec, (), {}, 5)
    assert shapes["discount"] == ((5,), "float32")
    assert not any(name.startswith("game/") for name in shapes)
