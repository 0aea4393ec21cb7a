# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Numbers that an environment tells at a game's end: from there to the log. The rows of one
environment are in own_discounts_test.py."""

import json
import math
import re

import gymnasium
import numpy as np
import pytest
import torch

from libtorchbeast.distributed.ranks import merged
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.loggers.columns import RECENT_GAMES
from libtorchbeast.q_learning.replay_memory import block_shapes
from tests.evaluate_test import EVERY, advance, evaluator, wait_for_row  # noqa: F401
from tests.own_discounts_test import ENV, play
from tests.stats_test import batch, counting
from tests.support import monobeast
from tests.support.processes import load, rows
from tests.support.turns import Nim

pytestmark = pytest.mark.usefixtures("as_before")
IN_ORDER = "--num_actors 0 --envs_per_actor 4 --batch_size 4 --reward_scaling returns".split()
IN_ORDER += "--passes 1 --minibatches 1".split()


def test_gymnasiums_vectors_tell_them_too():
    class Vector(gymnasium.vector.SyncVectorEnv):
        """No SyncVectorEnv for the adapter, which would step its environments itself."""

    actions = [1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0]
    others = [1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]  # these end when those do, and tell more
    expected = play(Nim, actions)
    for make in (Vector, gymnasium.vector.SyncVectorEnv):
        pairs = [*zip(actions, others, strict=True)]
        row = play(lambda make=make: make([Nim] * 2), pairs, 2)
        for name in ("game/first_wins", "game/moves", "discount", "episode_return"):
            assert np.array_equal(row[name], expected[name], equal_nan=True), name


def wrong(numbers, declared=("win",)):
    """Nim whose every step tells `numbers`."""

    class Wrong(Nim):
        metadata = {"game_numbers": declared}

        def step(self, action):
            return *super().step(action)[:4], {"torchbeast": {"game_numbers": numbers}}

    return Wrong


@pytest.mark.parametrize(
    "env, message",
    [
        (wrong({"won": 1}), "won: expected the name in metadata[\"game_numbers\"], seen ['win']"),
        (wrong({"win": 1e39}), "win: expected a finite number, seen 1e+39 (a float) from env"),
        (wrong({}, "win"), "expected a list of plain identifiers, seen 'win'"),
        (wrong({}, ["a b"]), "expected a list of plain identifiers, seen ['a b']"),
        (wrong({}, [1]), "expected a list of plain identifiers, seen [1]"),
        (wrong({}, ["return", "past"]), "has no column game_NAME yet, seen ['past', 'return']"),
    ],
)
def test_a_mistake_is_one_sentence(env, message):
    with pytest.raises(UserError, match=re.escape(message)):
        play(env, [0])


def test_the_replay_keeps_the_discount_and_no_number_of_a_game():
    shapes = block_shapes(Environment(Nim, 1).spec, (), {}, 5)
    assert shapes["discount"] == ((5,), "float32")
    assert not any(name.startswith("game/") for name in shapes)


# ======================================================================================= statistics
def games(*numbers):
    """A batch of one column with games of one step, the numbers `a` and `b` of each."""
    ones = [1] * (1 + len(numbers))
    a, b = torch.tensor([(math.nan,) * 2, *numbers], dtype=torch.float32).T[:, :, None]
    return batch(ones, ones, ones) | {"game/a": a, "game/b": b}


def told(stats):
    return {k: v for k, v in stats.take().items() if k.startswith("game_")}


def test_the_mean_is_over_the_recent_games_that_told_it():
    """A resume and other ranks keep them."""
    stats, resumed, first, nan = counting(), counting(), counting(), math.nan
    assert told(stats) == {}
    stats.add_games(games((1, nan), (3, nan), (nan, nan)))
    assert told(stats) == {"game_a": 2}
    first.add_games(games((5, 4)))
    first.add_games_of_rank(json.loads(json.dumps(stats.take_games())))
    assert told(first) == {"game_a": 3, "game_b": 4}
    stats.add_games(games(*[(nan, 5)] * (RECENT_GAMES - 2)))
    resumed.load_state_dict(stats.state_dict())
    for one in (stats, resumed):
        one.add_games(games((3, 5)))
    assert told(resumed) == told(stats) == {"game_a": 3, "game_b": 5}
    assert merged([{"step": 1, "game_a": 3.0}, {"step": 1, "game_a": 1.0}])["game_a"] == 3


# ===================================================================================== the programs
def test_monobeast_logs_and_prints_them_and_a_resumed_run_goes_on(tmp_path, capsys):
    monobeast.beast(tmp_path, *ENV, *IN_ORDER, "--total_steps", 2000)
    row = rows(tmp_path / "run")[-1]
    assert row["mean_game_return"] > -0.5
    assert row["mean_game_return"] == pytest.approx(2 * row["game_first_wins"] - 1)
    assert 3 <= row["game_moves"] <= 5
    assert len(load(tmp_path / "run")["stats"]["numbers"]) == RECENT_GAMES
    monobeast.beast(tmp_path, *ENV, *IN_ORDER, "--total_steps", 2400)
    assert 0 <= rows(tmp_path / "run")[-1]["game_first_wins"] <= 1
    monobeast.beast(tmp_path, "--mode", "test", "--num_episodes", 20)
    printed = capsys.readouterr().out
    score, wins = (
        float(re.search(rf"Mean {what} (\S+?),?\s", printed)[1])
        for what in ("return", "game_first_wins")
    )
    assert score == pytest.approx(2 * wins - 1, abs=0.02) and "Mean game_moves " in printed


def test_evaluations_have_columns_of_them(evaluator):  # noqa: F811
    found = evaluator(env=ENV[1], eval_env=ENV[1])
    advance(found, EVERY)
    row = wait_for_row(found)
    assert row["mean_eval_return"] == pytest.approx(2 * row["eval_game_first_wins"] - 1)
    assert row["eval_game_first_wins"] == row[f"eval_game_first_wins/{ENV[1]}"]


def test_an_environment_without_them_plays_as_before():
    """It may be evaluated in one with them, and the other way round."""
    plain = Environment(type("Plain", (Nim,), {"metadata": {}, "step": lambda *_: None}), 1)
    assert plain.spec.numbers == ()
    assert plain.spec.signature() == Environment(Nim, 1).spec.signature()
