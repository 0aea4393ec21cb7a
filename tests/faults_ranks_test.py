# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promise about learners that are lost, in small. Both beasts share what it needs."""

import pytest

from tests.faults import ranks
from tests.faults.harness import hold


@pytest.mark.timeout(900)  # it starts four processes, twice
def test_a_rank_that_is_killed():
    hold(ranks.lost(times=1, beasts=("monobeast",), wait=False))
