# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about learners that are lost, in small."""

import pytest

from tests.faults import ranks
from tests.faults.harness import hold


@pytest.mark.timeout(900)  # each starts four processes or more, several times
@pytest.mark.parametrize("beast, times", [("monobeast", 2), ("polybeast", 1)])
def test_lost(beast, times):
    hold(ranks.lost(times=times, beasts=(beast,), wait=False))
