# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A study's plan, and what its files say about how far a run is."""

import sys

import pytest
import torch

from libtorchbeast.checkpoint import save, saved_step
from libtorchbeast.flags import UserError
from libtorchbeast.tools import sweep
from libtorchbeast.tools.study import (
    OWN,
    Run,
    add_to_plan,
    flags_of,
    last_row,
    make_runs,
    parse_factors,
    read_plan,
)
from tests.support.run_files import log_steps, writer


def factors(line):
    return parse_factors(line.split())


def names(folder, line):
    return [run.path.name for run in make_runs(folder, factors(line), ["python"])]


# ========================================================================================= the plan
def test_a_list_has_values_and_ranges():
    assert factors("--seed 1-3,7") == [[{"seed": "1"}, {"seed": "2"}, {"seed": "3"}, {"seed": "7"}]]
    assert factors("--env=a,b --x 1e-3") == [[{"env": "a"}, {"env": "b"}], [{"x": "1e-3"}]]
    assert factors(r"--x a\,b,1\-5,\\") == [[{"x": "a,b"}, {"x": "1-5"}, {"x": "\\"}]]
    assert factors("--x -1,-2") == [[{"x": "-1"}, {"x": "-2"}]]
    assert parse_factors(["--x", "1e-3, 3e-3"]) == factors("--x 1e-3,3e-3")
    [tied] = factors("--lr,gamma 1e-3,3e-3 0.99,0.997")  # these change together
    assert tied == [{"lr": "1e-3", "gamma": "0.99"}, {"lr": "3e-3", "gamma": "0.997"}]


@pytest.mark.parametrize("line, message", [
    ("--seed", "--seed with .* values: expected for each flag one list"),
    ("1,2", "1,2 with"),
    ("--seed 7,5-1", "5-1: expected a range that rises"),
    ("--seed 1-2,", "'1-2,': expected no empty value"),
    ("--a,b 1,2", "expected for each flag one list"),
    ("--a,b 1,2 1-3", r"\[2, 3\] values: expected .* all of the same length"),
    ("--a 1 --b 2 --a,c 1 2", "--a: expected each flag once"),
    ("--a,a 1 2", "--a: expected each flag once"),
    ("--xpid a,b", "no --xpid"),
])  # fmt: skip
def test_a_mistake_is_told(line, message):
    with pytest.raises(UserError, match=message):
        factors(line)


def test_each_combination_is_a_run(tmp_path):
    line = "--env MinAtar/Breakout-v1,a:B-v0 --seed 1-2 --lr,gamma 1e-3,2e-3 .9,1 --lstm off,on"
    runs = make_runs(tmp_path, factors(line), ["python", "-m", "monobeast", "--n", "3"])
    assert len(runs) == 16
    assert runs[5].path == tmp_path / "MinAtar-Breakout-v1_lr=1e-3_gamma=.9_lstm=on_seed2"
    program = [sys.executable, "-m", "monobeast", "--n", "3"]
    swept = "--env MinAtar/Breakout-v1 --seed 2 --lr 1e-3 --gamma .9 --lstm".split()
    place = ["--savedir", str(tmp_path), "--xpid", runs[5].path.name]
    assert runs[5].command == [*program, *swept, *place]
    assert "--lstm" not in runs[4].command and "off" not in runs[4].command


def test_names_do_not_depend_on_the_other_values(tmp_path):
    """So that a study which is given more seeds goes on with the runs that it has."""
    assert names(tmp_path, "--seed 1-2") == ["seed1", "seed2"]
    assert names(tmp_path, "--seed 1-3 --env A/B-v1")[1] == "A-B-v1_seed2"
    assert names(tmp_path, "") == ["run"]
    with pytest.raises(UserError, match="2 combinations have the name A-B"):
        names(tmp_path, "--env A/B,A:B")
    assert {*OWN} - {"xpid"} == {*vars(sweep.make_parser().parse_args(["name"]))} - {"name"}
    for word in ("--xpid", "--dry_run", "--seed"):
        with pytest.raises(UserError, match=f"{word} after `--`: expected it before"):
            make_runs(tmp_path, [[{"seed": "1"}]], ["python", f"{word}=a"])


def plan(folder, command, line, program="python"):
    """Adds a sweep to the plan. Returns its runs, and what `add_to_plan` returns."""
    runs = make_runs(folder, factors(line), program.split())
    return runs, add_to_plan(folder, command, factors(line), runs)


def test_plans_add_up_and_a_name_belongs_to_one_combination(tmp_path):
    assert read_plan(tmp_path) == {"commands": [], "factors": [], "runs": {}}
    assert plan(tmp_path, "first", "--seed 1")[1] == []
    runs, changed = plan(tmp_path, "second", "--seed 1-2", "python --n 1")
    assert changed == ["seed1"]
    found = read_plan(tmp_path)
    assert found["commands"] == ["first", "second"] and found["factors"] == [["seed"]]
    assert found["runs"]["seed2"] == {"values": {"seed": "2"}, "command": runs[1].command}
    assert found["runs"]["seed1"]["command"] == runs[0].command
    plan(tmp_path, "third", "--net a/b")
    with pytest.raises(UserError, match="net=a-b is the name of the run with {'net': 'a/b'}"):
        plan(tmp_path, "fourth", "--net a-b")
    assert read_plan(tmp_path)["commands"] == ["first", "second", "third"]


# ============================================================================= how far the runs are
def test_a_run_is_complete_by_its_checkpoint_and_its_newest_flags(tmp_path):
    run = Run(tmp_path / "run", {}, [])
    assert flags_of(run.path) == last_row(run.path) == {}
    assert run.total_steps() is None and not run.is_complete() and run.seconds_left() is None
    flags = {"total_steps": 10, "seed": 1}
    with writer(tmp_path, flags=flags, fields=["step", "hours"]) as files:
        files.log({"step": 5, "hours": 3})
        assert not run.is_complete() and run.seconds_left() == 3 * 3600
        files.log({"step": 12, "hours": 6})
    assert not run.is_complete()  # its checkpoint could not be saved
    save(f"{run.path}/model.tar", {"step": 12})
    assert flags_of(run.path) == flags and run.total_steps() == 10
    assert run.is_complete() and run.seconds_left() == 0.0
    for words, total in (("--total_steps 1e1 --x", 10), ("--total_steps=13", 13)):
        run.command = ["python", *words.split()]
        assert run.total_steps() == total and run.is_complete() == (total == 10)
    run.command = ["python", "--total_steps", "abc"]
    with pytest.raises(UserError, match="--total_steps abc: expected a whole number"):
        run.is_complete()
    run.command, flags = [], {"total_steps": 20, "seed": 1}
    with writer(tmp_path, flags=flags, resume_step=12):
        assert flags_of(run.path) == flags and not run.is_complete()


def test_the_last_row_decides_nothing_unless_there_are_no_checkpoints(tmp_path):
    run, model = Run(tmp_path / "run", {}, []), tmp_path / "run/model.tar"
    log_steps(tmp_path, [9], flags={"total_steps": 10})
    save(str(model), {"step": 10, "replay": torch.zeros(9)})
    assert run.is_complete()  # a kill took the last row
    save(str(model), {"step": 12})
    model.write_bytes(model.read_bytes()[:-200])
    assert run.is_complete()  # by the checkpoint before
    (tmp_path / "run/model.tar.previous").unlink()
    log_steps(tmp_path, [10], flags={"total_steps": 10}, resume_step=9)
    assert not run.is_complete() and saved_step(run.path) == 0
    model.unlink()
    assert not run.is_complete() and saved_step(run.path) is None
    log_steps(tmp_path, [], flags={"total_steps": 10, "disable_checkpoint": True}, resume_step=10)
    assert run.is_complete()


def test_the_last_row_is_whole(tmp_path):
    log_steps(tmp_path, range(1000))
    logs = tmp_path / "run" / "logs.csv"
    logs.write_text(logs.read_text() + "1000,5,100")
    row = last_row(tmp_path / "run")
    assert (row["_tick"], row["step"], row["loss"]) == (999, 999, 99.9)
    assert "mean_game_return" not in row  # its cell is empty
    logs.write_text("_tick,_time,step\n")
    assert last_row(tmp_path / "run") == {}


UNFIT = ['{"flags": [1], "resumed": []}', '{"flags": {}, "resumed": [3]}']


@pytest.mark.parametrize("text", ["", "[]", '{"flags": {}}', *UNFIT])
def test_a_damaged_file_counts_as_missing_or_is_named(tmp_path, text, caplog):
    log_steps(tmp_path, [10], flags={"total_steps": 10})
    (tmp_path / "run/meta.json").write_text(text)
    assert not Run(tmp_path / "run", {}, []).is_complete()
    assert f"{tmp_path}/run/meta.json is damaged" in caplog.text
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UserError, match="plan.json is damaged"):
        read_plan(tmp_path)
