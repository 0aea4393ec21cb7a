# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from pathlib import Path

import pytest

from tests.support.forks import FORKS, check_fork


@pytest.mark.parametrize("beast", FORKS)
def test_the_fork_trains(beast, tmp_path):
    check_fork(Path(__file__).parent, beast, tmp_path)
