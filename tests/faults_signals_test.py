# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about signals, in small."""

import pytest

from tests.faults import signals
from tests.faults.harness import hold


@pytest.mark.parametrize("beast", signals.FLAGS)
def test_stopped(beast):
    hold(signals.stopped(times=4, beasts=(beast,)))


@pytest.mark.parametrize("beast", signals.FLAGS)
def test_killed(beast):
    hold(signals.killed(times=2, beasts=(beast,)))


def test_servers_parent_killed():
    hold(signals.servers_parent_killed(times=2))
