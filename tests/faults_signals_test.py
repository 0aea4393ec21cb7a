# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about signals, in small."""

import pytest

from tests.faults import signals
from tests.faults.harness import hold


@pytest.mark.parametrize("beast", ("monobeast", "polybeast"))
def test_stopped(beast):
    hold(signals.stopped(times=4, beasts=(beast,)))


def test_killed_monobeast():
    hold(signals.killed(times=1, beasts=("monobeast",), moments=(signals.after_an_actor,)))


def test_killed_r2d2_goes_on_with_its_replay():
    """It has servers, as PolyBeast has."""
    moments = (signals.after_an_actor, signals.while_saving)
    hold(signals.killed(times=2, beasts=("r2d2",), moments=moments))


def test_servers_parent_killed():
    hold(signals.servers_parent_killed(times=1))
