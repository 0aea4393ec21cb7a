# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about signals, in small."""

import pytest

from tests.faults import signals
from tests.faults.harness import hold

BEASTS = ("monobeast", "polybeast")


@pytest.mark.parametrize("beast", BEASTS)
def test_stopped(beast):
    hold(signals.stopped(times=4, beasts=(beast,)))


@pytest.mark.parametrize("beast", BEASTS)
def test_killed(beast):
    hold(signals.killed(times=2, beasts=(beast,)))


def test_killed_r2d2_goes_on_with_its_replay():
    moments = (signals.after_an_actor, signals.while_saving)
    hold(signals.killed(times=2, beasts=("r2d2",), moments=moments))


def test_servers_parent_killed():
    hold(signals.servers_parent_killed(times=2))
