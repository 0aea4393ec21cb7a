# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises about signals, in small: what either beast does at all moments is shared."""

from tests.faults import signals
from tests.faults.harness import hold


def test_monobeast_is_stopped_while_it_saves():
    """Both beasts have the same processes and threads. faults_environments_test.py ends PolyBeast
    with Ctrl-C, where namespaces may be made."""
    hold(signals.stopped(times=1, beasts=("monobeast",), first=2))


def test_polybeast_is_stopped_in_its_shutdown_and_its_start():
    hold(signals.stopped(times=2, beasts=("polybeast",), first=3))


def test_killed_monobeast():
    hold(signals.killed(times=1, beasts=("monobeast",), moments=(signals.after_an_actor,)))


def test_killed_r2d2_goes_on_with_its_replay():
    """It has servers, as PolyBeast has."""
    hold(signals.killed(times=1, beasts=("r2d2",), moments=(signals.after_an_actor,)))


def test_servers_parent_killed():
    hold(signals.servers_parent_killed(times=1))
