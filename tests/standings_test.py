# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Results against kept files, and the rating."""

import errno
from unittest.mock import Mock

import pytest

from libtorchbeast.loggers.standings import K, Standings, read


def test_games_are_counted_and_rated(tmp_path):
    own = Standings()
    own.write(str(tmp_path))
    assert not [*tmp_path.iterdir()] and read(str(tmp_path)) == {}  # there were no games
    for won in (1.0, 0.0, -1.0, 5.0):
        own.add(100, won)
    own.add(50, -2.0)
    assert own.results[100][:3] == [2, 1, 1] and own.results[50][:3] == [0, 0, 1]
    own.write(str(tmp_path))
    assert read(str(tmp_path)) == own.results and [*read(str(tmp_path))] == [50, 100]
    with open(tmp_path / "opponents.csv", "ab") as file:
        file.write(b"\xff\n")  # somebody else's
    assert read(str(tmp_path)) == own.results
    again = Standings()
    again.load_state_dict(own.state_dict())
    assert vars(again) == vars(own)
    state = own.state_dict()
    own.add(50, 1.0)  # games end while a checkpoint is written
    assert state["results"][50][:3] == [0, 0, 1]


def test_the_rating_settles_where_the_score_is_the_predicted_one():
    """Three of four points are 191 points of Elo above the opponent."""
    own = Standings()
    own.add(0, 0.0)
    assert own.rating == 0.0
    own.add(0, 1.0)
    assert own.rating == K / 2
    for _ in range(500):
        for won in (1, -1, 1, 1):
            own.add(0, won)
    assert own.rating == pytest.approx(190.8, abs=2 * K)
    own.add(7, 0.0)
    assert own.results[7][3] == own.rating


def test_a_hundred_games_that_are_all_drawn_are_told_once(caplog):
    """As they are if `sides` mixes up the teams: each side then has players of both."""
    own, others = Standings(), Standings()
    for i in range(300):
        own.add(i % 3, 0.0)
        others.add(i % 3, float(i == 99))
    [said] = caplog.messages
    assert said.startswith("The first 100 games against the past were all drawn: where all act")


def test_a_disk_that_fails_leaves_the_old_table(tmp_path, monkeypatch):
    own = Standings()
    own.add(100, 1.0)
    own.write(str(tmp_path))
    before = read(str(tmp_path))
    own.add(100, 1.0)

    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    own.write(str(tmp_path))
    assert read(str(tmp_path)) == before
    monkeypatch.undo()
    own.write(str(tmp_path))
    assert read(str(tmp_path)) == own.results
    path = tmp_path / "opponents.csv"
    path.write_text("# a note, of somebody else\n" + path.read_text() + "7,1\n")
    assert read(str(tmp_path)) == own.results
