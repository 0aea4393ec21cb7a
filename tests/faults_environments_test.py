# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A promise of tests/faults/environments.py, scaled to seconds. The others, on lost actors and
servers, failures that are told and hung environments, have tests of their own, for actors, streams,
servers and the core."""

import pytest

from tests.faults import environments
from tests.faults.harness import hold
from tests.support.network import NoNamespaces


def test_a_partition_is_survived():
    try:
        figures = environments.partition_is_survived(
            down_s=5.0, step_timeout=2.0, times=1, found_s=3.0
        )
    except NoNamespaces as error:
        pytest.skip(str(error))
    hold(figures)
