# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Numbers of a run's batches and updates, and means over rows, against what was put in."""

import torch

from libtorchbeast.loggers.columns import RECENT_GAMES
from libtorchbeast.loggers.stats import UPDATE_COLUMNS, Means, Stats


def batch(over, returns, lengths):
    """Of one column; each row is one of the arguments' entries."""
    return {
        "episode_over": torch.tensor(over, dtype=torch.bool)[:, None],
        "episode_return": torch.tensor(returns, dtype=torch.float32)[:, None],
        "episode_step": torch.tensor(lengths, dtype=torch.int32)[:, None],
    }


def update(number, lags):
    return dict.fromkeys(UPDATE_COLUMNS, number) | {"lags": lags, "lag_max": max(lags)}


def test_a_game_counts_in_the_row_where_it_ends_but_not_in_row_0():
    """Row 0 is the last row of the rollout before, which has counted it."""
    stats = Stats()
    assert stats.take() == {"games": 0}
    stats.add_games(batch([1, 0, 1, 0, 1], [100, 2, 4, 1, -8], [50, 1, 7, 1, 3]))
    stats.add_games(batch([1, 0], [100, 2], [50, 1]))
    expected = {"games": 2, "mean_game_return": -2.0, "mean_game_length": 5.0}
    assert stats.take() == stats.take() == expected


def test_the_mean_is_of_recent_games_and_survives_a_resume():
    stats, resumed = Stats(), Stats()
    zeros = [0.0] * (RECENT_GAMES + 1)
    stats.add_games(batch([1] * len(zeros), zeros, zeros))
    resumed.load_state_dict(stats.state_dict())
    resumed.add_games(batch([0, 1], [0, 50], [0, 200]))
    seen = {"games": RECENT_GAMES + 1, "mean_game_return": 0.5, "mean_game_length": 2.0}
    assert resumed.take() == seen
    assert resumed.histograms()["game_return"] == {0.0: RECENT_GAMES - 1, 50.0: 1}


def test_updates_give_means_and_the_largest_lag_since_the_last_row():
    stats = Stats()
    stats.add_update(update(1.0, lags=[0, 3]))
    stats.add_update(update(4.0, lags=[0, 1]))
    assert stats.histograms()["lag"] == {0: 2, 3: 1, 1: 1}
    means = dict.fromkeys(UPDATE_COLUMNS.values(), 2.5)
    assert stats.take() == means | {"games": 0, "lag_max": 3}
    stats.add_update(update(6.0, lags=[2]))
    row = stats.take()
    assert (row["total_loss"], row["lag_max"]) == (6.0, 2)
    assert stats.histograms()["lag"] == {2: 1} and stats.take() == {"games": 0}


def test_the_mean_size_of_inference_batches_since_the_last_row():
    stats = Stats()
    for columns in (4, 8):
        stats.add_inference(columns)
    assert stats.take()["inference_batch"] == 6
    assert "inference_batch" not in stats.take()


def test_means_are_weighted_with_seconds_and_skip_what_is_absent():
    means = Means()
    means.add({"a": 1.0, "b": 5.0}, 1.0)
    means.add({"a": 4.0}, 2.0)
    assert means.row() == {"a": 3.0, "b": 5.0}
