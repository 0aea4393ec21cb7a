# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The rows of a run: what is in them, and their means."""

from types import SimpleNamespace

import pytest

from libtorchbeast.loggers import run_log
from libtorchbeast.loggers.columns import FIELDS
from libtorchbeast.loggers.run_log import RunLog
from libtorchbeast.loggers.stats import Stats
from tests.support.processes import rows
from tests.support.run_files import writer


@pytest.fixture
def clock(monkeypatch):
    """The time that the log sees; tests let it pass."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(run_log, "time", clock)
    return clock


@pytest.fixture
def files(tmp_path):
    with writer(tmp_path, fields=FIELDS) as files:
        yield files


def test_a_row_has_the_columns_of_all_sources_and_the_speed(clock, files):
    stats = Stats(num_envs=8)
    log = RunLog(files, stats, step=100, frames_per_step=4)
    log.sources += [lambda: {"updates": 5}, lambda: {"streams": 3}]
    stats.add_inference(8)
    clock.now += 2
    log.write(150)
    expected = {
        "step": 150, "frame": 600, "sps": 25, "fps": 100, "updates": 5, "games": 0,
        "inference_batch": 8, "streams": 3,
    }  # fmt: skip
    assert log.last_row == expected
    log.sources.append(lambda: {"streams": 2, "actor_restarts": 1})  # a later source has its way
    clock.now += 10
    log.write(160)
    assert [log.last_row[name] for name in ("sps", "streams", "actor_restarts")] == [1, 2, 1]
    assert "inference_batch" not in log.last_row  # there was none since the row before
    log.write(160)  # at the very time of the row before
    assert log.last_row["sps"] == 0
    first, second, _ = rows(files.path)
    assert {k: v for k, v in first.items() if k[0] != "_"} == expected
    assert (second["step"], second["sps"]) == (160, 1)


def test_means_are_of_the_time_after_the_first_row_with_updates(clock, files):
    log = RunLog(files, Stats(num_envs=8), step=0, frames_per_step=1)
    assert log.means() == {} == log.last_row

    def write(seconds, step, updates):
        clock.now += seconds
        log.sources[1:] = [lambda: {"updates": updates}]
        log.write(step)

    write(7, 70, updates=0)
    assert log.means() == log.last_row
    write(1, 1000, updates=1)  # workers have just started, and waited for each other
    assert log.means() == log.last_row and log.last_row["sps"] == 930
    write(4, 1020, updates=2)
    assert log.means() == log.last_row and log.last_row["sps"] == 5
    write(2, 1080, updates=3)
    assert log.last_row["sps"] == 30
    assert log.means()["sps"] == pytest.approx((4 * 5 + 2 * 30) / 6)


def test_a_row_is_logged_in_one_line(clock, files, caplog):
    caplog.set_level("INFO")
    stats = Stats(num_envs=8)
    stats.add_games_of_rank({"games": 2, "recent": [[9, 1.0, {}], [9, 3.0, {}]]})
    RunLog(files, stats, step=0, frames_per_step=1).write(1200)
    (line,) = [r.getMessage() for r in caplog.records if r.name == run_log.__name__]
    assert line.startswith("step 1,200 ") and "game return 2.00 (2 games)" in line
