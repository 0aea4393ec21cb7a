# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about learners that are lost, in small."""

import pytest

from tests.faults import ranks
from tests.faults.harness import hold


@pytest.mark.timeout(900)  # torchrun waits 30 s until it kills a rank that hangs
@pytest.mark.parametrize("beast, times", [("monobeast", 2), ("polybeast", 1)])
def test_lost(beast, times):
    hold(ranks.lost(times=times, beasts=(beast,)))
