# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Means of a run, against what was put in."""

from libtorchbeast.loggers.stats import Means


def test_means_are_weighted_with_seconds_and_skip_what_is_absent():
    means = Means()
    means.add({"a": 1.0, "b": 5.0}, 1.0)
    means.add({"a": 4.0}, 2.0)
    assert means.row() == {"a": 3.0, "b": 5.0}
