# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`make soak` in small: a few faults of PolyBeast, and a report of them."""

import json
import sys

from tests.faults.harness import Figure, hold
from tests.support.processes import Command


def test_training_survives_random_faults_and_reports_them(tmp_path):
    """The seed draws one of each of PolyBeast's other kinds first, and a killed learner last."""
    out, faults = tmp_path / "report", 5
    flags = ["--seed", 2420, "--hours", 0.004, "--faults", faults, "--every", 0.5]
    flags += ["--workers", 2, "--env", "tests.support.envs:Catch-v0", "--out", out]
    with Command(tmp_path, [sys.executable, "-m", "tests.soak", *flags]) as soak:
        assert soak.wait_for_end() in (0, 1), soak.printed()
    result = json.loads((out / "soak.json").read_text())
    assert result["wrong"] == [], soak.printed()
    assert len(result["faults"]) >= faults
    assert all(fault["recovered_s"] is not None for fault in result["faults"])
    found = [Figure(*(figure[k] for k in Figure._fields)) for figure in result["figures"]]
    hold([figure for figure in found if figure.unit == ""])  # so soon, starts take most of the time
    last = result["samples"][-1]
    assert last["step"] > 0 and last["learner_mb"] > 1
    assert "| effective training time" in (out / "report.md").read_text()
