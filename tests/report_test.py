# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a report says of a study, and its statistics beside those of scipy."""

import contextlib
import csv
import json
import os
import re
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import bootstrap, trim_mean

from libtorchbeast.checkpoint import save
from libtorchbeast.tools import report
from libtorchbeast.tools.study import add_to_plan, make_runs, parse_factors
from tests.support.processes import ROOT

BREAKOUT, ASTERIX = "MinAtar/Breakout-v1", "MinAtar/Asterix-v1"


def make_study(folder, line, score, steps=lambda values: 10):
    """A study whose runs have the score `score(values)`, in the last of two rows."""
    factors = parse_factors(line.split())
    runs = make_runs(folder, factors, ["python"])
    folder.mkdir(exist_ok=True)
    add_to_plan(folder, f"python -m libtorchbeast.tools.sweep {line}", factors, runs)
    for run in runs:
        step = steps(run.values)
        if step is None:
            continue
        run.path.mkdir(exist_ok=True)
        switches = {name for name, value in run.values.items() if value in ("on", "off")}
        flags = {"total_steps": 10} | {k: run.values[k] for k in run.values.keys() - switches}
        flags |= {name: float(flags[name]) for name in ("lr", "gamma") if name in flags}
        (run.path / "meta.json").write_text(json.dumps({"flags": flags, "resumed": []}))
        rows = [f"0,100,1,1,-7,0.1,{step / 10}", f"1,110,{step},{step},{score(run.values)},0.5,"]
        header = "_tick,_time,step,frame,mean_game_return,hours,other"
        (run.path / "logs.csv").write_text("\n".join([header, *rows, ""]))


def write(folder, is_drawn=False):
    """Returns the report's text and the rows of its CSV file. To draw its pictures takes long."""
    with contextlib.nullcontext() if is_drawn else mock.patch.object(Figure, "savefig"):
        report.main([str(folder)])
    with open(folder / "report.csv", newline="") as file:
        return (folder / "report.md").read_text(), list(csv.DictReader(file))


def test_a_flag_that_was_misspelt_in_one_command_is_no_factor(tmp_path):
    """The sweep refuses such runs, but they are in the plan."""
    folder = tmp_path / "study"
    make_study(folder, "--seed 1,2 --lrr 1,2", None, steps=lambda values: None)
    make_study(folder, "--seed 1,2 --lr 1,2", lambda values: int(values["lr"]))
    text, rows = write(folder)
    assert "lr" in rows[0] and "lrr" not in rows[0]
    assert "Effect of --lrr" not in text and "lrr=1_seed1: has not begun" in text


def tables(text):
    """The cells of each table. Its name is its first heading, with the second of those that would
    else be alike."""
    found = {}
    for block in text.split("\n\n"):
        if block.startswith("|"):
            cells = [line.strip("| ").split(" | ") for line in block.splitlines()]
            name = " ".join(cells[0][:2]) if cells[0][0] == "game" else cells[0][0]
            found[name] = [cells[0], *cells[2:]]
    return found


# ===================================================================================== statistics
def test_intervals_are_scipys():
    """scipy resamples each of several samples for itself, which is the stratified bootstrap. The
    two differ by the noise of 10,000 resamples, a hundredth of the interval."""
    pooled_mean = lambda *samples, axis: np.concatenate(samples, axis).mean(axis)
    trimmed = lambda *samples, axis: trim_mean(np.concatenate(samples, axis), 0.25, axis)
    for statistic, oracle in ((report.mean, pooled_mean), (report.interquartile_mean, trimmed)):
        random = np.random.default_rng(2)
        sizes = (5, 5, 5) if statistic is report.mean else (5, 9, 3)
        strata = [random.gamma(2.0, size=n) + 3 * i for i, n in enumerate(sizes)]
        options = dict(n_resamples=10_000, method="percentile", random_state=3)
        wanted = bootstrap(strata, oracle, **options).confidence_interval
        value, low, high = report.estimate(strata, statistic)
        assert value == pytest.approx(oracle(*strata, axis=-1))
        assert [low, high] == pytest.approx([*wanted], abs=0.05 * (wanted.high - wanted.low))
    assert str(report.estimate([[1.0, 2.0], [5.0]], report.mean)) == "3.25"  # a game has one seed
    assert str(report.estimate([[2.0, 2.0]], report.mean)) == "2.00 (2.00 to 2.00)"
    assert str(report.estimate([[17_245.6, 17_245.6]], report.mean)) == "17246 (17246 to 17246)"


def test_the_probability_of_improvement_counts_pairs_game_by_game():
    one, other = [[3.0, 1.0], [0.0]], [[2.0, 2.0], [0.0]]  # 2 of 4 pairs, and a draw
    assert report.estimate([*one, *other], report.improvement).value == 0.5
    assert report.estimate([[3.0, 3.0], [2.0, 4.0]], report.improvement).value == 0.5
    better = report.estimate([[3.0, 4.0], [2.0, 3.0]], report.improvement)
    assert better.value == 0.875 and better.low < 0.875 < better.high == 1.0


# ======================================================================================== reports
def test_a_whole_study(tmp_path):
    """The flags' effects are added up in the scores, so the means over all others are known."""
    folder = tmp_path / "study"
    line = f"--env {BREAKOUT},{ASTERIX} --seed 1-2 --lr 1e-3,3e-3 --gamma 0.9,0.99"

    def score(values):
        of_flags = 1000 * float(values["lr"]) + 10 * float(values["gamma"]) + int(values["seed"])
        return of_flags + 10 * (values["env"] == ASTERIX)

    make_study(folder, line, score)
    text, rows = write(folder, is_drawn=True)
    assert f"python -m libtorchbeast.tools.sweep {line}\n" in text and "16 runs." in text
    assert len(rows) == 8
    header = "game lr gamma seeds score low high lowest highest hours"
    assert list(rows[4]) == header.split()
    assert list(rows[4].values())[:4] == [ASTERIX, "0.001", "0.9", "2"]
    numbers = [float(value) for value in list(rows[4].values())[4:]]
    assert numbers == pytest.approx([21.5, 21, 22, 21, 22, 0.5])
    found = tables(text)
    cells = [*list(rows[4].values())[:4], "21.5 (21.0 to 22.0)", "21", "22", "00:30:00"]
    assert found["game lr"][5] == cells
    runs = list(csv.DictReader((folder / "report_runs.csv").read_text().splitlines()))
    assert len(runs) == 16 and runs[0]["lr"] == "0.001" and runs[0]["score"] == "11.0"
    assert "\n| lr=0.001 gamma=0.9 |  | 0.250 (" in text  # of four pairs one is better
    assert "\n| lr=0.003 gamma=0.99 | 1.00 (1.00 to 1.00) |" in text
    lowest, *_, highest = found["--lr"]
    assert lowest == ["--lr", "runs", BREAKOUT, ASTERIX, "interquartile mean"]
    assert highest[:4] == ["0.003", "8", "13.9 (13.4 to 14.4)", "23.9 (23.4 to 24.4)"]
    assert found["--gamma"][1][:3] == ["0.9", "8", "12.5 (12.0 to 13.0)"]
    assert found["setting"][0][:2] == ["setting", "games"]
    assert found["setting"][1][:2] == ["lr=0.001 gamma=0.9", "2"]
    assert found["game random"][1][:3] == [BREAKOUT, "0.38", "17.5"]
    pictures = re.findall(r"\]\((.*?)\)", text)
    assert len(pictures) == 3
    for name in pictures:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_flags_that_were_changed_one_at_a_time(tmp_path):
    """Two commands of one study share their first setting. The rows of a table differ only in the
    table's flag."""
    folder = tmp_path / "study"
    score = lambda values: 1.0 + 2 * (values.get("lr") == "2") + 4 * (values.get("gamma") == "3")
    make_study(folder, f"--env {BREAKOUT} --seed 1-2 --lr 1,2 --gamma 1", score)
    make_study(folder, f"--env {BREAKOUT} --seed 1-2 --lr 1 --gamma 2,3", score)
    found = tables(write(folder)[0])
    one, three, five = (f"{x} ({x} to {x})" for x in ("1.00", "3.00", "5.00"))
    cut = lambda table: [[row[0], row[2]] for row in table[1:]]
    assert cut(found["--lr"]) == [["1.0", one], ["2.0", three]]
    assert cut(found["--gamma"]) == [["1.0", one], ["2.0", one], ["3.0", five]]


def test_tied_flags_have_one_effect_and_a_flag_may_have_no_value(tmp_path):
    folder = tmp_path / "study"
    line = f"--env {BREAKOUT} --seed 1-2 --lr,gamma 1,2 3,4 --no_decay off,on"
    make_study(folder, line, lambda values: float(values["gamma"]))
    text, _ = write(folder)
    assert tables(text)["--lr --gamma"][1][:3] == ["1.0 3.0", "4", "3.00 (3.00 to 3.00)"]
    assert [row[0] for row in tables(text)["--no_decay"]] == ["--no_decay", "off", "on"]
    assert text.count("## Effect of") == 2


@pytest.mark.parametrize(
    "line, columns",
    [
        ("--env,lr A,A,B 1,3,1", [["A", "1.0", "1"], ["A", "3.0", "1"], ["B", "1.0", "1"]]),
        ("--env,lr A,A off,on --seed 1-2", [["A", "off", "2"], ["A", "on", "2"]]),
        ("--env A --seed,lr 1,2,3,4 1,1,3,3", [["A", "1.0", "2"], ["A", "3.0", "2"]]),
        ("--seed 1-2 --env,lr A,B 1,3", [["A", None, "2"], ["B", None, "2"]]),  # the game says it
    ],
)
def test_a_flag_that_is_tied_to_games_or_seeds_separates_settings(tmp_path, line, columns):
    make_study(tmp_path / "study", line, lambda values: 1.0)
    _, rows = write(tmp_path / "study")
    assert [[row["game"], row.get("lr"), row["seeds"]] for row in rows] == columns


def test_flags_that_are_tied_in_one_command_only_have_a_column_each(tmp_path):
    folder = tmp_path / "study"
    score = lambda values: float(values["gamma"]) + 10 * (values.get("lr") == "2")
    make_study(folder, f"--env {BREAKOUT} --seed 1-2 --gamma,lr 3 2", score)
    make_study(folder, f"--env {BREAKOUT} --seed 1-2 --gamma 3,4", score)
    text, rows = write(folder)
    columns = [[row["gamma"], row["lr"], row["score"]] for row in rows]
    assert columns == [["3.0", "2.0", "13.0"], ["3.0", "off", "3.0"], ["4.0", "off", "4.0"]]
    assert text.count("## Effect of") == 2


def test_runs_that_are_not_complete_or_have_no_score_are_left_out_and_said_to_be(tmp_path):
    folder = tmp_path / "study"
    steps = lambda values: {"2": 9, "3": None}.get(values["seed"], 10)
    make_study(folder, f"--env {BREAKOUT} --seed 1-5", lambda values: 1.0, steps=steps)
    logs = folder / "MinAtar-Breakout-v1_seed4/logs.csv"
    logs.write_text(logs.read_text().replace(",-7,", ",,").replace(",1.0,", ",,"))
    (folder / "MinAtar-Breakout-v1_seed5/meta.json").write_text("")  # had its --total_steps
    text, [row] = write(folder)
    assert row["seeds"] == "1" and row["score"] == "1.0" and row["low"] == ""
    assert "- MinAtar-Breakout-v1_seed2: at step 9 of 10\n" in text
    assert "- MinAtar-Breakout-v1_seed3: has not begun\n" in text
    assert "- MinAtar-Breakout-v1_seed4: at step 10 of 10, without a mean_game_return\n" in text
    assert "- MinAtar-Breakout-v1_seed5: at step 10 of an unknown number\n" in text


def test_names_are_text_also_those_that_are_markup_or_no_utf_8(tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"study\xff")
    score = lambda values: 1.0 + ("|" in values["net"])
    make_study(folder, f"--env A$,{BREAKOUT} --seed 1-2 --net _a|$^{{$,b", score)
    (folder / "A-_net=b_seed1").rename(folder / os.fsdecode(b"*_\xe9"))
    text, rows = write(folder, is_drawn=True)
    assert capsys.readouterr().out == f"{tmp_path}/study?/report.md\n"
    assert r"| A\$ | \_a\|\$^{\$ | 2 |" in text and rows[0]["net"] == "_a|$^{$"
    assert "# study?\n" in text and "\n*_?," in (folder / "report_runs.csv").read_text()


def test_the_checkpoint_says_whether_a_run_is_complete(tmp_path):
    """A run that was published without it has its log."""
    folder = tmp_path / "study"
    steps = lambda values: 9 if values["seed"] == "1" else 10
    make_study(folder, "--env A --seed 1-3", lambda values: 1.0, steps=steps)
    save(str(folder / "A_seed1/model.tar"), {"step": 10})  # its last row is lost
    (folder / "A_seed2/model.tar").touch()  # cannot be read
    text, [row] = write(folder)
    assert row["seeds"] == "2" and "- A_seed2: at step 0 of 10\n" in text


def test_a_run_counts_once_however_its_flags_are_spelt_and_other_differences_are_told(tmp_path):
    folder = tmp_path / "study"
    make_study(folder, f"--env {BREAKOUT} --seed 1-2 --lr 1e-3,0.001", lambda values: 1.0)
    for passes, path in zip((1, 1, 1, 4), sorted(folder.glob("*/meta.json")), strict=True):
        meta = json.loads(path.read_text())
        meta["flags"]["passes"] = passes
        meta |= {"commit": f"{passes}" * 40, "dirty": passes == 4, "resumed": []}
        path.write_text(json.dumps(meta))
    text, [row] = write(folder)
    assert row["seeds"] == "3" and text.count(": another run has the same flags") == 1
    assert "the runs of one setting differ in what is not swept: ['passes']" in text
    commits = f"{10 * '1'}, {10 * '4'}+"
    assert f"setting have different commits (+ means uncommitted changes): {commits}" in text


def test_games_without_a_reference_have_no_aggregate(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "SAVEDIR", str(tmp_path))
    line = "--env CartPole-v1 --seed 1-2 --lr 1,2"
    make_study(tmp_path / "study", line, lambda values: 1.0)
    text, _ = write(tmp_path / "study")
    assert "Over games" not in text and "interquartile" not in text
    file = tmp_path / "own.csv"
    file.write_text("game,random,reference,source\nCartPole,0,2,me\n")
    capsys.readouterr()
    report.main(["study", "--reference", str(file)])  # a study's name stands for its folder
    assert capsys.readouterr().out == f"{tmp_path}/study/report.md\n"
    text = (tmp_path / "study/report.md").read_text()
    assert tables(text)["setting"][1] == ["lr=1.0", "1", "0.500 (0.500 to 0.500)"]
    known = {"MinAtar/Seaquest": {"random": "0", "reference": "20"}}
    study = report.read_study(tmp_path / "study", "hours")
    held_out = report.Report(tmp_path, study, known, "mean_eval_return/MinAtar/Seaquest-v1")
    assert held_out.references == {"CartPole-v1": known["MinAtar/Seaquest"]}
    report.main(["study", "--reference", str(file), "--y", "hours"])  # no return
    assert "Over games" not in (tmp_path / "study/report.md").read_text()


def test_a_folder_without_a_plan(tmp_path):
    """The published MinAtar runs, and a mean in docs/results.md."""
    _, rows = write(shutil.copytree(ROOT / "results/minatar", tmp_path / "minatar"))
    means = {(row["game"], row["net"]): float(row["score"]) for row in rows}
    assert means[ASTERIX, "monobeast.Net"] == pytest.approx((47.8 + 42.4 + 44.0) / 3, abs=0.1)
    assert ("MinAtar/Seaquest-v1", "None") in means


def test_runs_without_common_steps_have_no_curves(tmp_path):
    steps = lambda values: 10 * int(values["seed"])
    make_study(tmp_path / "study", f"--env {BREAKOUT} --seed 1-2", lambda values: 1.0, steps=steps)
    for logs in (tmp_path / "study").glob("*/logs.csv"):
        header, _, row = logs.read_text().splitlines()
        logs.write_text(f"{header}\n{row}\n")
    text, _ = write(tmp_path / "study")
    said = "Breakout-v1 has no curves: the runs of group 'MinAtar-Breakout-v1' have no steps in"
    assert said in text and "It has no curve" in text and "report_steps" not in text


# ============================================================================= references, errors
def test_the_references_are_whole_and_found_by_the_names_of_environments():
    references = report.read_references(report.REFERENCES)
    games = "Asterix Breakout Freeway Seaquest SpaceInvaders"
    atari = "BeamRider Breakout Freeway Pong Qbert Seaquest SpaceInvaders"
    assert [*references] == [*(f"MinAtar/{game}" for game in games.split()), *atari.split()]
    for row in references.values():
        assert float(row["random"]) < float(row["reference"]) and "arXiv" in row["source"]
    names = ["PongNoFrameskip-v4", "PongDeterministic-v0", "ALE/Pong-v5", "MinAtar/Freeway-v1"]
    assert [report.game_of(name) for name in names] == ["Pong"] * 3 + ["MinAtar/Freeway"]


def test_a_mistake_is_one_line(tmp_path):
    make_study(tmp_path / "young", "--seed 1", lambda values: 1.0, steps=lambda values: 5)
    for argv, message in [
        ([str(tmp_path / "no")], f"there is no folder {tmp_path}/no"),
        (["no_such_study"], f"there is no folder {Path.cwd()}/no_such_study"),
        ([str(tmp_path / "young")], "young: no run in it is complete"),
        ([str(tmp_path / "young"), "--y", "loss"], "no run in it is complete and has a loss"),
        ([str(tmp_path / "young/seed1")], "it is itself a run: give the folder above it"),
        ([str(tmp_path / "young"), "--reference", "/nonexistent"], "/nonexistent"),
    ]:
        with pytest.raises(SystemExit) as refused:
            report.main(argv)
        assert refused.value.code.startswith("report: ") and message in refused.value.code
    with mock.patch("os.path.expanduser", lambda path: path):  # the user has none
        with pytest.raises(SystemExit, match="report: ~/logs.*: this user has no home folder"):
            report.main(["study"])


@pytest.mark.parametrize(
    "table, message",
    [
        ("name,random,reference\n", "expected a column game, seen ['name', 'random', 'reference']"),
        ("game,random,reference\nPong,1,1\n", "expected two different numbers for Pong"),
        ("game,random,reference\nPong,x,1\n", "for Pong, seen random x, reference 1"),
    ],
)
def test_wrong_references_are_told(tmp_path, table, message):
    (tmp_path / "scores.csv").write_text(table)
    with pytest.raises(ValueError, match=re.escape(message)):
        report.read_references(tmp_path / "scores.csv")
