# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`make soak` in small: a few faults of either beast, and a report of them."""

import csv
import json
import sys

import pytest

from tests.faults.harness import Figure, hold
from tests.processes import Command


# The seed puts the faults that end a learner or its servers' parent among the first.
@pytest.mark.parametrize("beast, faults, settle", [("polybeast", 6, 15), ("monobeast", 4, 0.1)])
def test_training_survives_random_faults_and_reports_them(tmp_path, beast, faults, settle):
    out = tmp_path / "report"
    flags = ["--beast", beast, "--seed", 27, "--hours", 0.005, "--faults", faults, "--every", 0.5]
    flags += ["--settle", settle, "--workers", 2, "--env", "tests.envs:Catch-v0"]
    flags += ["--out", out]
    with Command(tmp_path, [sys.executable, "-m", "tests.soak", *flags]) as soak:
        assert soak.wait_for_end() in (0, 1), soak.printed()
    result = json.loads((out / "soak.json").read_text())
    assert result["wrong"] == [], soak.printed()
    assert len(result["faults"]) >= faults
    assert all(fault["recovered_s"] for fault in result["faults"])
    figures = [Figure(*(figure[k] for k in Figure._fields)) for figure in result["figures"]]
    # So soon after the start all processes still grow, and one fault takes a fifth of the time.
    hold([figure for figure in figures if not figure.what.startswith(("growth", "effective"))])
    assert any("effective training time" in figure.what for figure in figures)
    with open(out / "soak.csv") as file:
        samples = list(csv.DictReader(file))
    assert float(samples[-1]["step"]) > 0 and float(samples[-1]["learner_mb"]) > 1
    assert (out / "soak.png").stat().st_size > 10_000
    assert "| effective training time" in (out / "report.md").read_text()
