# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""logs.csv: one header, whole rows, empty cells, and a curve that is a function of step."""

import math

import numpy as np
import pytest
import torch

from libtorchbeast.loggers.csv_table import last_row, read_csv
from tests.support.run_files import column, log_steps, writer


def test_numbers_of_every_kind_are_written_and_those_that_do_not_exist_are_empty_cells(tmp_path):
    numbers = {
        "1": True, "3": 3, "0.1": 0.1, "0.5": np.float32(0.5), str(2**40): np.int64(2**40),
        "1.5": torch.tensor(1.5).bfloat16(),
    }  # fmt: skip
    nothing = [None, math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(math.nan)]
    with writer(tmp_path) as files:
        for step, value in enumerate([*numbers.values(), *nothing]):
            files.log({"step": step, "loss": value})
    assert column(files.path / "logs.csv", "loss") == [*numbers, *[""] * len(nothing)]


def test_a_resume_goes_on_after_the_checkpoint_and_without_one_from_the_start(tmp_path):
    run = tmp_path / "run"
    log_steps(tmp_path, [10, 20, 30, 40])
    for steps, resume_step, kept, discarded in (
        ([25, 35], 20, "10 20 25 35", "30 40"),
        ([30], 25, "10 20 25 30", "30 40 35"),
        ([0, 5], None, "0 5", "30 40 35 10 20 25 30"),
    ):
        log_steps(tmp_path, steps, resume_step=resume_step)
        assert column(run / "logs.csv", "step") == kept.split()
        assert column(run / "logs.discarded.csv", "step") == discarded.split()
        ticks = column(run / "logs.csv", "_tick")
        assert ticks == [str(i) for i in range(len(ticks))]
    assert (run / "logs.csv").read_text().count("_tick") == 1
    assert "2 rows beyond step 20" in (run / "out.log").read_text()


def test_other_columns_lose_none_of_the_old_ones(tmp_path):
    log_steps(tmp_path, [10, 20])
    with writer(tmp_path, fields=["step", "lag", "frame"], resume_step=20) as files:
        files.log({"step": 30, "lag": 3})
    header, rows = read_csv(files.path / "logs.csv")
    assert header == ["_tick", "_time", "step", "lag", "frame", "mean_game_return", "loss"]
    cells = [[row[name] for name in ("step", "lag", "frame", "loss")] for row in rows]
    assert cells == [["10", "", "40", "1.0"], ["20", "", "80", "2.0"], ["30", "3", "", ""]]
    for steps, resume_step in (([15], 10), ([], 10)):  # the second also reads what was discarded
        log_steps(tmp_path, steps, fields=["step", "frame", "loss"], resume_step=resume_step)
    header, rows = read_csv(files.path / "logs.discarded.csv")
    assert header == ["_tick", "_time", "step", "frame", "loss", "lag", "mean_game_return"]
    assert [[row["loss"], row["lag"]] for row in rows] == [["2.0", ""], ["", "3"], ["1.5", ""]]


def test_a_new_column_comes_at_the_end_and_a_wrong_row_is_refused_and_writes_nothing(tmp_path):
    """A loss may return another number in its second phase."""
    with writer(tmp_path) as files:
        files.log({"step": 1, "loss": 0.5})
        with pytest.raises(ValueError, match="column 'loss' takes numbers, not 'high'"):
            files.log({"step": 2, "loss": "high"})
        files.log({"step": 2, "novelty": 3, "kl": None})
        files.log({"step": 3, "loss": 0.25})
        assert column(files.path / "logs.csv", "step") == ["1", "2", "3"]  # before it is closed
    header, rows = read_csv(files.path / "logs.csv")
    assert header == ["_tick", "_time", "step", "frame", "mean_game_return", "loss", "novelty"]
    cells = [[row[name] for name in ("_tick", "step", "loss", "novelty")] for row in rows]
    assert cells == [["0", "1", "0.5", ""], ["1", "2", "", "3"], ["2", "3", "0.25", ""]]


def test_the_last_row_may_be_long_and_a_columns_name_have_a_comma(tmp_path):
    names = [f"mean_eval_return/{i}" for i in range(2000)]
    rows = [",".join([str(step), "1", *["0.123456789012"] * 2000]) for step in (10, 20)]
    header = ",".join(["step", '"kl(pi,mu)"', *names])
    (tmp_path / "logs.csv").write_text("\n".join([header, *rows, ""]))
    assert last_row(tmp_path)["step"] == 20


LINE = "1,1700000000.5,20,120,,3\n"


@pytest.mark.parametrize(
    "line",
    [LINE[:-1], LINE[:-5], LINE[:-12]]
    + [LINE.replace(",20,", f",{step},") for step in ("x", "nan", "\0", "\udcff")],  # no UTF-8
    ids=ascii,
)
def test_a_line_cut_by_a_kill_or_without_a_step_is_dropped(tmp_path, caplog, line):
    path = tmp_path / "run" / "logs.csv"
    log_steps(tmp_path, [10])
    path.write_text(path.read_text() + line, errors="surrogateescape")
    assert last_row(tmp_path / "run")["step"] == 10
    log_steps(tmp_path, [30], resume_step=20)
    assert column(path, "step") == ["10", "30"] and "left out 1 damaged line(s)" in caplog.text


@pytest.mark.parametrize("damaged", ['"' + LINE[1:], "\0" * 200_000 + "\n", "x" + LINE[1:]])
def test_a_damaged_line_costs_no_other_its_place(tmp_path, caplog, damaged):
    """A quotation mark at its start is one bit from a 2, and begins a cell of many lines."""
    path = tmp_path / "run" / "logs.csv"
    log_steps(tmp_path, [10])
    path.write_text(path.read_text() + damaged + LINE)
    assert column(path, "step") == ["10", "20"]
    log_steps(tmp_path, [30], resume_step=20)
    assert column(path, "step") == ["10", "20", "30"]
    assert "left out 1 damaged line(s)" in caplog.text


def test_a_number_of_a_row_may_be_written_as_pandas_does(tmp_path):
    log_steps(tmp_path, [10])
    path = tmp_path / "run" / "logs.csv"
    path.write_text(path.read_text() + LINE.replace("1,", "7.0,", 1))
    log_steps(tmp_path, [30], resume_step=20)
    assert column(path, "_tick") == ["0", "7.0", "8"]
