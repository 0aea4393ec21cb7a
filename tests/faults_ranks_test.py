# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about learners that are lost, in small."""

from tests.faults import ranks
from tests.faults.harness import hold


def test_lost():
    hold(ranks.lost(times=2))
