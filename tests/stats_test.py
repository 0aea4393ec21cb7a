# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Numbers of a run's batches and updates, and means over rows, against what was put in."""

import json
import math
import random

import pytest
import torch

from libtorchbeast.loggers.columns import RECENT_GAMES
from libtorchbeast.loggers.stats import Means, Stats


def batch(over, returns, lengths):
    """Of one column; each row is one of the arguments' entries."""
    return {
        "episode_over": torch.tensor(over, dtype=torch.bool)[:, None],
        "episode_return": torch.tensor(returns, dtype=torch.float32)[:, None],
        "episode_step": torch.tensor(lengths, dtype=torch.int32)[:, None],
    }


def counting():
    """Stats of one environment, whose first game is over, so that games count at once."""
    stats = Stats(num_envs=1)
    for _ in range(2):
        stats.add_games(batch([0, 0], [0, 0], [0, 0]))
    return stats


def test_a_game_counts_in_the_row_where_it_ends_but_not_in_row_0():
    """Row 0 is the last row of the rollout before, which has counted it."""
    stats = counting()
    assert stats.take() == {"games": 0}
    stats.add_games(batch([0, 0, 1, 0, 0, 1], [0, 2, 4, 0, 1, -8], [0, 1, 2, 0, 1, 2]))
    expected = {"games": 2, "mean_game_return": -2.0, "mean_game_length": 2.0}
    stats.add_games(batch([1, 0], [-8, 0], [2, 0]))
    assert stats.take() == stats.take() == expected


def test_the_games_of_another_rank_count_as_ones_own():
    own, other = counting(), counting()
    own.add_games(batch([0, 1], [0, 4], [0, 2]))
    other.add_games(batch([0, 1, 1], [0, 1, 1], [0, 5, 5]))
    own.add_games_of_rank(json.loads(json.dumps(other.take_games())))
    own.add_games_of_rank(other.take_games())  # nothing new
    assert own.take() == {"games": 3, "mean_game_return": 2.0, "mean_game_length": 4.0}


def games_of(lengths):
    """A batch of one column with games of these lengths, whose returns equal their lengths."""
    rows = [(step == length, step) for length in lengths for step in range(length + 1)]
    over, steps = zip((True, 0), *rows, strict=True)
    return batch(over, steps, steps)


def test_the_mean_is_of_recent_games_and_survives_a_resume():
    """Until new games count there is none: a curve must not go on with an old value."""
    stats, resumed = counting(), counting()
    stats.add_games(games_of([1] * (RECENT_GAMES + 1)))
    resumed.load_state_dict(stats.state_dict())
    resumed.add_games(games_of([]))
    assert resumed.take() == {"games": RECENT_GAMES + 1}
    resumed.add_games(games_of([51]))
    seen = {"games": RECENT_GAMES + 2, "mean_game_return": 1.5, "mean_game_length": 1.5}
    assert resumed.take() == seen


class Vector:
    """Environments whose games have the lengths, and returns, that `draw(rng)` returns."""

    def __init__(self, draw, num_envs):
        self.draw, self.rng = draw, random.Random(0)
        self.envs = [[0, draw(self.rng)] for _ in range(num_envs)]  # step and length of the game
        self.row = [0] * num_envs, [False] * num_envs

    def rollout(self, T=20):
        rows = [self.row]
        for _ in range(T):
            for env in self.envs:
                env[:] = (env[0] + 1, env[1]) if env[0] < env[1] else (0, self.draw(self.rng))
            rows.append(([step for step, _ in self.envs], [a == b for a, b in self.envs]))
        self.row = rows[-1]
        steps, over = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
        return {"episode_step": steps, "episode_return": steps.float(), "episode_over": over}


def means(stats, vector, rollouts):
    """The value of mean_game_return after each rollout, None where the cell is empty."""
    seen = []
    for _ in range(rollouts):
        stats.add_games(vector.rollout())
        seen.append(stats.take().get("mean_game_return"))
    return seen


@pytest.mark.parametrize(
    "draw, mean",
    [
        (lambda rng: rng.randint(300, 1200), 750),
        (lambda rng: 1 + int(rng.expovariate(1 / 300)), 300),
        (lambda rng: 500, 500),
    ],
    ids=["even", "exponential", "constant"],
)
def test_short_games_that_end_first_are_not_the_mean(draw, mean):
    shown = means(Stats(num_envs=128), Vector(draw, num_envs=128), 140)
    values = [value for value in shown if value]
    assert shown[0] is None and values == pytest.approx([mean] * len(values), rel=0.3)
    assert sum(values) / len(values) == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize("long, share", [(2000, 1 / 2), (1000, 1 / 32)])
def test_long_games_have_to_end_before_the_short_ones_count(long, share):
    """The others have 20 steps, which was the mean until the long ones ended."""
    vector = Vector(lambda rng: long if rng.random() < share else 20, num_envs=64)
    shown = means(Stats(num_envs=64), vector, long // 20 + 3)
    assert set(shown[: long // 20]) == {None} and shown[-1] > 40


def test_rollouts_that_come_one_after_the_other_say_nothing_about_the_next():
    """A batch has the environments of one actor. Those of the first have short games only."""
    stats, first = Stats(num_envs=16), Vector(lambda rng: 5, num_envs=8)
    second = Vector(lambda rng: 45, num_envs=8)
    for _ in range(2):
        assert means(stats, first, 1) == means(stats, second, 1) == [None]
    assert means(stats, first, 1) == [None]
    assert means(stats, second, 2)[-1] > 5


def test_after_a_restart_the_mean_from_before_stays_until_the_new_one_is_known():
    """Also the games that had ended before any counted."""
    stats = Stats(num_envs=2)
    means(stats, Vector(lambda rng: 10, num_envs=2), 1)
    assert "mean_game_return" not in stats.take()
    stats.restart()
    assert stats.take() == {"games": 2, "mean_game_return": 10.0, "mean_game_length": 10.0}
    for is_resume in (False, True):  # after which the cell is empty instead
        stats = Stats(num_envs=128)
        state = {"games": 9, "largest_reward": None}
        stats.load_state_dict({**state, "returns": [70.0] * 100, "lengths": [70] * 100})
        stats._is_current = not is_resume
        stats.restart()
        shown = means(stats, Vector(lambda rng: rng.randint(100, 200), num_envs=128), 12)
        assert set(shown[:10]) == {None if is_resume else 70.0}
        assert shown[11] == pytest.approx(150, rel=0.1)


def test_a_game_that_never_ends_hides_the_others_only_at_first():
    stats, others = Stats(num_envs=4), Vector(lambda rng: rng.choice([8, 12]), num_envs=3)
    endless = Vector(lambda rng: 10**9, num_envs=1)
    shown = []
    while stats.games < 4 * RECENT_GAMES:
        assert set(shown) <= {None}
        stats.add_games(endless.rollout())
        shown += means(stats, others, 1)
    assert shown[-1] == pytest.approx(10, rel=0.2)


def test_one_environment_ahead_of_the_others_says_nothing_about_them():
    others = Vector(lambda rng: rng.choice([60, 100, 200]), num_envs=31)
    stats, first = Stats(num_envs=32), Vector(lambda rng: 90, num_envs=1)
    for _ in range(10):
        assert means(stats, first, 1) == means(stats, others, 1) == [None]
        means(stats, first, 1)  # it is twice as fast
    assert means(stats, others, 2)[-1] == pytest.approx(120, rel=0.2)


def test_environments_that_are_replaced_do_not_keep_the_mean_away():
    stats = Stats(num_envs=16)
    for _ in range(3):  # each is lost in its first game
        stats.add_games(Vector(lambda rng: 30, num_envs=4).rollout())
    assert set(means(stats, Vector(lambda rng: 30, num_envs=16), 3)) == {None, 30}


def test_only_the_given_columns_count():
    stats, column = counting(), games_of([3])
    two = {k: torch.cat([v, v + v if k != "episode_over" else v], dim=1) for k, v in column.items()}
    stats.add_games(two, torch.tensor([True, False]))
    assert stats.take() == {"games": 1, "mean_game_return": 3.0, "mean_game_length": 3.0}


def test_updates_give_means_and_the_largest_lag_since_the_last_row():
    """A vector is no column. There are means of the sizes of inference batches, too."""
    stats = Stats(num_envs=1)
    for number, lag, columns in ((1.0, 3, 4), (4.0, 1, 8)):
        update = dict(total_loss=number, a_forks_own=-number, largest_reward=number, lag_max=lag)
        stats.add_update(update | {"priorities": [1.0, 2.0]})
        stats.add_inference(columns)
    means = {"total_loss": 2.5, "a_forks_own": -2.5, "inference_batch": 6}
    assert stats.take() == means | {"games": 0, "lag_max": 3, "largest_reward": 4.0}
    stats.add_update(dict(total_loss=6.0, largest_reward=0.0, lag_max=2))
    assert stats.take() == {"games": 0, "total_loss": 6.0, "lag_max": 2, "largest_reward": 4.0}
    assert stats.take() == {"games": 0}


def test_means_are_weighted_with_seconds_and_skip_what_is_absent_or_not_finite():
    means = Means([{"a": 1.0, "b": math.nan}, {"a": math.nan, "b": math.inf}])
    means.add({"a": 4.0, "b": 5.0}, 2.0)
    assert means.row() == {"a": 3.0, "b": 5.0}
