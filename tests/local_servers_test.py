# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The environment servers that a learner starts itself."""

import pytest

from tests.support.polybeast import SMALL, beast
from tests.support.processes import rows

pytestmark = pytest.mark.usefixtures("as_before")


def test_servers_may_print_whatever_they_like(tmp_path):
    flags = "--env tests.support.envs:NoisyCatch-v0 --total_steps 2000 "
    flags += "--step_timeout 5 --server_timeout 10"
    beast(tmp_path, *SMALL, *flags.split())
    assert rows(tmp_path / "run")[-1]["stream_failures"] == 0
    lines = (tmp_path / "run/out.log").read_text().split("\n")
    assert {line.split()[-1] for line in lines if line.endswith("0%")} == {"10%", "100%"}
