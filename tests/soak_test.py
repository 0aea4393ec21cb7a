# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`make soak` in small: a few faults of either beast, and a report of them."""

import csv
import json
import sys
from types import SimpleNamespace

import pytest

from tests.faults.harness import Figure, hold
from tests.soak.report import figures
from tests.support.processes import Command


# The seeds draw one of each of the other kinds first, and a killed learner last.
@pytest.mark.parametrize("beast, faults, seed", [("polybeast", 5, 2420), ("monobeast", 3, 3)])
def test_training_survives_random_faults_and_reports_them(tmp_path, beast, faults, seed):
    out = tmp_path / "report"
    flags = ["--beast", beast, "--seed", seed, "--hours", 0.004, "--faults", faults, "--every", 0.5]
    flags += ["--workers", 2, "--env", "tests.support.envs:Catch-v0", "--out", out]
    with Command(tmp_path, [sys.executable, "-m", "tests.soak", *flags]) as soak:
        assert soak.wait_for_end() in (0, 1), soak.printed()
    result = json.loads((out / "soak.json").read_text())
    assert result["wrong"] == [], soak.printed()
    assert len(result["faults"]) >= faults
    assert all(fault["recovered_s"] is not None for fault in result["faults"])
    found = [Figure(*(figure[k] for k in Figure._fields)) for figure in result["figures"]]
    hold([figure for figure in found if figure.unit == ""])  # so soon, starts take most of the time
    with open(out / "soak.csv") as file:
        samples = list(csv.DictReader(file))
    assert float(samples[-1]["step"]) > 0 and float(samples[-1]["learner_mb"]) > 1
    assert (out / "soak.png").stat().st_size > 10_000
    assert "| effective training time" in (out / "report.md").read_text()


def test_figures_of_a_run_that_stood_still_lost_work_and_leaked():
    """In 20 of 100 s no step is kept, and in 10 s one more than half of the usual number."""
    kept, step = [], 0
    for second in range(101):
        kept.append({"_time": second, "step": step})
        step += 0 if 30 <= second < 50 else 51 if 70 <= second < 80 else 100
    samples = [{"time": t, "learner_mb": 300 + 0.2 * t, "oldest_threads": 9} for t in range(101)]
    soak = SimpleNamespace(
        first_fault=0, ended=100, speed=100.0, kept=kept, wrong=[], samples=samples, settles=19,
        faults=[{"kind": "a", "recovered_s": 1.0}, {"kind": "b", "recovered_s": None}],
        beast=SimpleNamespace(parent=None, worker="actor", left=lambda: 0),
    )  # fmt: skip
    seen = {figure.what: (figure.measured, figure.is_held()) for figure in figures(soak)}
    assert seen == {
        "effective training time": (pytest.approx(80.0), False),
        "steps kept, of what the fault-free speed would give": (pytest.approx(75.1), True),
        "faults not survived, of 2": (1, False),
        "ends that no fault should have caused": (0, True),
        "processes left at the end": (0, True),
        "growth of the learner: memory": (pytest.approx(0.2 * 73), False),
        "growth of the oldest actor: threads": (0, True),
    }
