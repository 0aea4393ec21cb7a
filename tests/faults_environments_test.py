# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises of tests/faults/environments.py, scaled to seconds. That failures are told, hung
environments found, and that PolyBeast's rollouts are those of one server's life, have tests of
their own, for actors, streams, servers and the core."""

import pytest

from tests.faults import environments
from tests.faults.harness import hold
from tests.support.network import NoNamespaces


def test_training_survives_kills_and_no_rollout_mixes_two_lives():
    sizes = dict(kill_s=3.0, every_s=1.5, clean_s=2.0, pause_s=4.0)
    figures = environments.workers_are_lost(beasts=("monobeast",), **sizes)
    hold([figure for figure in figures if "throughput" not in figure.what])  # too short for a speed


def test_a_partition_is_survived():
    try:
        figures = environments.partition_is_survived(
            down_s=5.0, step_timeout=2.0, times=1, found_s=3.0
        )
    except NoNamespaces as error:
        pytest.skip(str(error))
    hold(figures)
