# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The environment servers that a learner starts itself."""

import tempfile

import pytest

import polybeast
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv.client import spec_of
from libtorchbeast.rpcenv.local_servers import LocalServers
from tests.support.client import Client
from tests.support.polybeast import SMALL, beast, parse
from tests.support.processes import load, rows

pytestmark = pytest.mark.usefixtures("as_before")


def test_servers_may_print_what_they_like_and_are_told_how_many_updates_there_were(
    tmp_path, monkeypatch
):
    told = []

    def start(flags, updates):
        told.append(updates)
        raise UserError("that will do")

    flags = "--env tests.support.envs:NoisyCatch-v0 --total_steps 400 "
    flags += "--step_timeout 5 --server_timeout 10"
    beast(tmp_path, *SMALL, *flags.split())
    assert rows(tmp_path / "run")[-1]["stream_failures"] == 0
    lines = (tmp_path / "run/out.log").read_text().split("\n")
    assert {line.split()[-1] for line in lines if line.endswith("0%")} == {"10%", "100%"}
    monkeypatch.setattr(polybeast, "LocalServers", start)
    for name in ("run", "new"):
        with pytest.raises(SystemExit):
            beast(tmp_path, *SMALL, *flags.split()[:2], "--total_steps", 800, "--xpid", name)
    assert told == [load(tmp_path / "run")["updates"], 0] and told[0] > 0


def test_a_resumed_run_plays_other_first_levels_and_tmpdir_may_have_any_name(tmp_path, monkeypatch):
    """After the same number of updates the levels are the same."""
    flags = parse(*SMALL, "--num_servers", 1, "--envs_per_server", 8)
    first = []
    for updates, name in ((3, "a,b"), (3, "x" * 90), (70, "")):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        with LocalServers(flags, updates) as local:
            spec = spec_of(local.describe(60.0))
            with Client(local.addresses[0]) as client:
                first.append(client.stream().read()["frame"].tobytes())
            assert not (name and local.addresses[0].startswith(f"unix:{tmp_path}"))
        assert local._stdout.closed  # Python warns of files that are not
    assert spec.num_envs == 8
    assert first[0] == first[1] != first[2]
