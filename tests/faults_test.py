# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The harness of tests/faults: what counts as a promise kept."""

import json

import pytest

from tests.faults import __main__ as report
from tests.faults.harness import Figure, hold, median_and_p99


def test_a_figure_is_held_within_its_limits_and_a_test_gives_them_slack():
    assert Figure("time", 5.0, "s", at_most=5.0).is_held()
    assert not Figure("time", 5.1, "s", at_most=5.0).is_held()
    assert Figure("time", 24.0, "s", at_most=5.0).is_held(slack=5.0)
    assert Figure("share", 0.7, at_least=0.7).is_held()
    assert not Figure("share", 0.69, at_least=0.7).is_held()
    assert not Figure("mixed rollouts", 1, at_most=0).is_held(slack=5.0)
    assert Figure("only reported", 7.0).is_held()


def test_a_broken_promise_fails_a_test_and_is_named():
    with pytest.raises(AssertionError, match="lost files"):
        hold([Figure("time", 1.0, at_most=2.0), Figure("lost files", 1, at_most=0)])
    with pytest.raises(AssertionError, match="nothing"):
        hold([])


def test_a_percentile_is_of_what_was_measured():
    median, p99 = median_and_p99("back", [1.0] * 98 + [9.0, 9.0], at_most=5.0)
    assert (median.measured, p99.measured) == (1.0, 9.0)
    assert not p99.is_held()


def test_the_report_keeps_the_promises_that_were_not_measured_again(tmp_path):
    figure = Figure("time", 1.5, "s", at_most=1.0)
    row = {"promise": "a", "broken_by": "x|y", "figures": [figure._asdict() | {"held": False}]}
    failed = {"promise": "b", "broken_by": "y", "error": "Traceback\nOSError: full"}
    report.write(tmp_path, {"a": row, "b": failed})
    assert report.read(tmp_path) == {"a": row, "b": failed}
    assert not report.is_held(row) and not report.is_held(failed)
    table = (tmp_path / "faults.md").read_text()
    assert "| a | x\\|y | time: 1.5 s | at most 1 s | NO |" in table
    assert "| b | y | OSError: full |  | no |" in table
    assert json.loads((tmp_path / "faults.json").read_text())[1] == failed
