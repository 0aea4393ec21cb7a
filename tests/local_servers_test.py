# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The environment servers that a learner starts itself."""

import argparse

import pytest

from libtorchbeast.rpcenv.local_servers import _arguments
from tests.support.polybeast import SMALL, beast
from tests.support.processes import rows

pytestmark = pytest.mark.usefixtures("as_before")


def test_local_servers_get_the_flags_of_a_fork():
    parser = argparse.ArgumentParser()
    parser.add_argument("--difficulty", type=float, default=0.5)
    parser.add_argument("--no_sound", dest="sound", action="store_false")
    parser.add_argument("--levels", type=int, nargs="+")
    for line in ("", "--difficulty 0", "--no_sound", "--levels 0 7 --difficulty 2"):
        flags = parser.parse_args(line.split())
        assert parser.parse_args(_arguments(parser, flags)) == flags


def test_servers_may_print_whatever_they_like(tmp_path):
    flags = "--env tests.support.envs:NoisyCatch-v0 --total_steps 2000 "
    flags += "--step_timeout 5 --server_timeout 10"
    beast(tmp_path, *SMALL, *flags.split())
    assert rows(tmp_path / "run")[-1]["stream_failures"] == 0
