# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The harness of `make bench`: its arithmetic, its files, and what it does with a failure."""

import csv
import functools
import json
import os

import pytest
import torch

import r2d2
from benchmarks import (
    catalogue,
    children,
    figures,
    parts,
    programs,
    report,
    streams,
    tasks,
    tensors,
)
from benchmarks.__main__ import QUICK, groups, main
from benchmarks.catalogue import Catalogue, Part, Run
from benchmarks.tasks import flags_of
from libtorchbeast import recipes

# ======================================================================================= arithmetic
RUN = Run("P", "polybeast", (), ceiling="raw", monobeast="M", parts=("e", "i", "l"))
PARTS = {"raw": {"steps_per_second": 50.0}} | {
    name: {"steps_per_second": 1000.0, "busy_steps_per_second": speed}
    for name, speed in (("e", 100.0), ("i", 100.0), ("l", 50.0))
}


def test_a_run_is_compared_with_its_ceiling_monobeast_and_the_busy_parts():
    row = {"name": "P", "steps_per_second": 40.0}
    figures.complete_run(row, RUN, PARTS, {"M": {"steps_per_second": 32.0}}, cores=2)
    assert row["ratio"] == 40 / 50
    assert row["ratio_to_monobeast"] == 40 / 32
    assert row["roofline_steps_per_second"] == pytest.approx(2 / (1 / 100 + 1 / 100 + 1 / 50))
    assert row["roofline_share"] == pytest.approx(0.8)
    row = {"name": "P", "steps_per_second": 40.0}
    failed = PARTS | {"l": {"error": "it failed"}}
    figures.complete_run(row, RUN, failed, {"M": {"error": "it failed"}}, cores=2)
    assert [*row] == "name steps_per_second ceiling ceiling_steps_per_second ratio".split()
    row = {"name": "P", "steps_per_second": 40.0}
    figures.complete_run(row, RUN, PARTS, {}, cores=None)  # with a GPU
    assert "roofline_share" not in row


@pytest.mark.parametrize("ratio, at_most, reached, stretch", [
    (0.9, False, False, False), (1.0, False, True, False), (1.2, False, True, True),
    (2.1, True, False, False), (1.0, True, True, False), (0.8, True, True, True),
])  # fmt: skip
def test_targets(ratio, at_most, reached, stretch):
    bounds = (1.0, 0.9) if at_most else (1.0, 1.1)
    target = figures.Target("row", "ratio", *bounds, at_most=at_most)
    row = {"steps_per_second": ratio, "ceiling": "one", "ceiling_steps_per_second": 1.0}
    judged = figures.judge(target, {"row": row | {"ratio": ratio}})
    assert (judged["reached"], judged["stretch_reached"]) == (reached, stretch)
    assert figures.judge(target, {"row": row}) is None


def test_halves_of_a_run_are_added_up():
    first = programs.Span(10.0, 1000.0, 5.0, 4.0, [{"latency_p50_ms": 1.0}, {"step": 1.0}])
    later = [{"latency_p50_ms": 3.0}, {"latency_p50_ms": 5.0}]
    second = programs.Span(30.0, 1000.0, 3.0, 2.0, later)
    assert (first + second).figures() == {
        "steps_per_second": 50.0, "updates_per_second": 0.2, "cpu_seconds_per_1000_steps": 3.0,
        "seconds": 40.0, "steps": 2000.0, "latency_p50_ms": 3.0,
    }  # fmt: skip


# ======================================================================================== catalogue
@pytest.fixture(scope="module")
def all_rows():
    return catalogue.everything()


def test_every_row_is_compared_with_rows_that_exist(all_rows):
    # These measure their ceiling themselves.
    by_turns = {"lstm_factor", "vtrace_share", "layers_share", "replay"}
    for part in all_rows.parts.values():
        assert part.function in parts.PARTS
        assert part.ceiling in {"", *all_rows.parts} or part.function in by_turns
    for run in all_rows.runs.values():
        assert len(run.parts) == 3 and all(all_rows.parts[name].crowded for name in run.parts)
        assert run.compared_with() <= {*all_rows.parts, *all_rows.runs}
    assert len(all_rows.runs) == 17
    assert len(figures.targets_of(all_rows)) == 3 + 8 + 2 + 17 + 1 + 3


def test_no_row_depends_on_a_recipe(all_rows):
    """Else a change of the defaults would look like a change of the speed."""
    for run in all_rows.runs.values():
        learning = r2d2.RECIPES if run.beast == "r2d2" else recipes.LEARNING
        decided = {name for recipe in learning.values() for name in recipe}
        flags = flags_of(run.beast, programs.arguments(run))
        assert not decided & flags.left_out.keys(), run.name
        assert flags.left_out.keys().isdisjoint({"envs_per_actor", "envs_per_server"})


def test_rows_bring_what_they_are_compared_with_and_both_beasts_take_turns(all_rows):
    chosen = catalogue.selected(all_rows, "^PolyBeast, Pong, deep$")
    assert set(chosen.runs) == {"PolyBeast, Pong, deep", "MonoBeast, Pong, deep"}
    assert catalogue.PLAIN in chosen.parts and "raw Pong" not in chosen.parts
    chosen = catalogue.selected(all_rows, "^transport_stacked$")
    assert list(chosen.parts) == ["bare stream, 28,224 bytes x 32", "transport_stacked"]
    assert chosen.runs == {}
    pairs = [[run.name for run in group] for group in groups(all_rows.runs)]
    assert len(pairs) == 9 and ["R2D2, MinAtar"] in pairs
    assert ["MonoBeast, Pong, shallow", "PolyBeast, Pong, shallow"] in pairs
    alone = {"PolyBeast, Pong, deep": all_rows.runs["PolyBeast, Pong, deep"]}
    assert [len(group) for group in groups(alone)] == [1]


# ======================================================================================== measuring
def test_the_replay_moves_what_it_keeps_and_what_it_gives(monkeypatch):
    words = [*tasks.R2D2["MinAtar"], "--replay_capacity", "10_000", "--replay_start", "1000"]
    monkeypatch.setitem(tasks.R2D2, "MinAtar", words)
    monkeypatch.setattr(parts, "filled_replay", functools.cache(parts.filled_replay))
    row = 400 + 16 + 3 * 8 + 2 * 4  # image, rewards and episodes, actions and version, Q-values
    state, serial, float32, new_steps = 2 * 128 * 4, 8, 4, 8
    for work, steps, size in (
        ("insertion", 20, 20 * row + state + serial),
        ("sampling", 40, 51 * row + state + serial + float32 + new_steps),
        ("priorities", 40, serial + float32),
    ):
        speeds = parts.replay("MinAtar", work)(0.001)
        sequences = speeds["sequences_per_second"]
        assert speeds["steps_per_second"] == pytest.approx(steps * sequences)
        assert speeds["gigabytes_per_second"] == pytest.approx(size * sequences / 1e9)
    monkeypatch.setattr(parts, "by_turns", lambda step: step)
    assert parts.r2d2_learner("MinAtar")() == 40 * 8  # without the burn-in


def test_resets_come_every_80_to_120_rows_and_are_consistent():
    T, B = 80, 8
    batch = {"done": torch.zeros(T + 1, B, dtype=torch.bool), "reward": torch.ones(T + 1, B)}
    batches = list(parts.with_resets(batch, count=16))
    done = torch.cat([b["done"] for b in batches])
    rows = done.any(dim=1).nonzero().flatten()
    assert done.sum() == len(rows) and len(rows) >= 10
    assert ((rows.diff() >= 80) & (rows.diff() <= 120)).all()
    for b in batches:
        assert (b["terminated"][:-1] == b["done"][1:]).all()
        assert ((b["reward"] == 0) == b["done"]).all()


# ================================================================================= the whole of it
def read(path):
    with path.open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


@pytest.fixture
def mostly_here(monkeypatch):
    """Measures parts in this process, which saves the start of others, except environments."""
    in_children = children.measure_part

    def measure(part, seconds):
        if part.function == "environment":
            return in_children(part, seconds)
        speeds = parts.PARTS[part.function](*part.arguments)(seconds)
        return speeds | {"busy_steps_per_second": speeds["steps_per_second"]}

    monkeypatch.setattr(children, "measure_part", measure)


def test_a_run_and_its_parts(tmp_path, monkeypatch, mostly_here):
    name = "MonoBeast, MinAtar, shallow"
    # Only MinAtar's window needs it, and importing it costs each process a second.
    (tmp_path / "seaborn.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setitem(QUICK, "training_seconds", 0.1)  # one more row of its log
    assert main(["--quick", "--only", f"^{name}$", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "bench.json").read_text())
    assert result["machine"]["cores"] >= 1 and result["machine"]["cpu"]
    assert result["versions"].keys() == {"python", "torch", "numpy", "grpcio", "ale-py"}
    assert result["commit"] and result["settings"]["quick"]
    assert result["command"].startswith("python -m benchmarks --quick --only ")

    for table, columns in (("parts", report.PARTS), ("runs", report.RUNS)):
        rows = read(tmp_path / f"{table}.csv")
        assert [row["name"] for row in result[table]] == list(rows)
        assert list(next(iter(rows.values()))) == [column[0] for column in columns]
        assert all(row["error"] == "" for row in rows.values())
    alone = {row["name"]: row for row in result["parts"]}
    assert list(alone)[0] == "raw MinAtar" and len(alone) == 4
    (row,) = result["runs"]
    assert row["ceiling_steps_per_second"] == alone["raw MinAtar"]["steps_per_second"]
    close = lambda value: pytest.approx(value, rel=1e-5)
    assert row["ratio"] == close(row["steps_per_second"] / row["ceiling_steps_per_second"])
    assert row["steps_per_second"] == close(row["steps"] / row["seconds"])
    busy = [part["busy_steps_per_second"] for part in list(alone.values())[1:]]
    cores = result["machine"]["cores"]
    if "gpu" not in result["machine"]:
        assert row["roofline_steps_per_second"] == close(figures.roofline(cores, busy))
    assert 0 < row["cpu_seconds_per_1000_steps"] * row["steps_per_second"] / 1000 < cores * 1.2
    assert row["flags"]["env"] == "MinAtar/Breakout-v1"
    assert {t["name"] for t in result["targets"]} == {name}


def test_a_failure_is_shown_and_the_rest_goes_on(tmp_path, monkeypatch, capsys, mostly_here):
    broken = Part("broken part", "environment", ("monobeast", "NoSuchGame"))
    raw = Part("raw", "raw_minatar", ceiling="broken part")
    run = Run("broken run", "no_such_program", (), ceiling="raw")
    rows = Catalogue({p.name: p for p in (broken, raw)}, {run.name: run})
    monkeypatch.setattr(catalogue, "everything", lambda: rows)
    assert main(["--quick", "--out", str(tmp_path)]) == 1
    result = json.loads((tmp_path / "bench.json").read_text())
    failed, measured = result["parts"]
    assert "KeyError: 'NoSuchGame'" in failed["error"] and "steps_per_second" not in failed
    assert measured["steps_per_second"] > 0 and "ratio" not in measured
    assert "No module named no_such_program" in result["runs"][0]["error"]
    assert read(tmp_path / "runs.csv")["broken run"]["error"] == result["runs"][0]["error"]
    assert "NoSuchGame" in capsys.readouterr().out


def test_a_pattern_that_finds_nothing_is_refused(tmp_path, capsys):
    for pattern, text in (("no such row", "no row's name matches"), ("(", "--only (")):
        with pytest.raises(SystemExit):
            main(["--only", pattern, "--out", str(tmp_path / "out")])
        assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_environments_of_tensors_are_measured_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tensors, "NUMBERS", {"breakout": (0, 2, 3), "tag/4v1": (0, 2)})
    tensors.main(["--seconds", "0.001", "--training_seconds", "0", "--out", str(tmp_path)])
    header, *rows = (tmp_path / "tensors.csv").read_text().splitlines()
    assert header == "name,num_envs,steps_per_cpu_second"
    assert [row.split(",")[:2] for row in rows[:3]] == [["breakout", n] for n in "023"]
    assert all(float(row.split(",")[2]) > 0 for row in rows) and len(rows) == 5
    assert (tmp_path / "tensors.png").stat().st_size > 1000
    assert "reference" in capsys.readouterr().out


def test_streams_are_measured_and_drawn(tmp_path, monkeypatch, capsys):
    """In this process, which saves the start of another."""
    measure = lambda part, seconds: parts.PARTS[part.function](*part.arguments)(seconds)
    monkeypatch.setattr(streams, "measure_part", measure)
    monkeypatch.setattr(streams, "NUMBERS", (3,))
    words = "--over unix --envs_per_stream 2 --rate 10_000 --seconds 0.5 --out".split()
    streams.main([*words, str(tmp_path)])
    header, *rows = csv.reader((tmp_path / "streams.csv").read_text().splitlines())
    assert header == list(streams.Row._fields) and len(rows) == 1
    row = streams.Row(*(float(cell) for cell in rows[0]))
    assert row.streams == 3
    assert row.share_of_pace == pytest.approx(row.steps_per_second / 30_000)
    assert 0 < row.inference_us_per_step < row.cpu_us_per_step
    assert 0 < row.latency_p50_ms <= row.latency_p99_ms
    assert (tmp_path / "streams.png").stat().st_size > 1000
    assert "knee" in capsys.readouterr().out


@pytest.mark.parametrize("shares, last", [
    ((1.0, 0.9, 0.89, 0.95), 2), ((1.0, 0.99), 2), ((0.5, 1.0), None),
])  # fmt: skip
def test_the_knee_is_before_the_first_that_loses_the_pace(shares, last):
    figures = [0.0] * (len(streams.Row._fields) - 3)
    rows = [streams.Row(i, 0.0, share, *figures) for i, share in enumerate(shares, start=1)]
    assert streams.knee(rows) == (None if last is None else rows[last - 1])
