# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environment servers as a user runs them: in processes of their own, watched from outside."""

import contextlib
import itertools
import os
import signal
from unittest.mock import Mock

import grpc
import pytest

import polybeast_env
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError, replace
from libtorchbeast.seeds import derive_seed
from polybeast_env import server_seed
from tests.faults._breaking import ServerFleet
from tests.support.client import Client, assert_rows_equal
from tests.support.envs import Catch

CATCH = ["--env", "tests.support.envs:Catch-v0", "--envs_per_server", "2"]
ONES = [1, 1]
CODE = grpc.StatusCode


def parse(*flags):
    return polybeast_env.parse(list(flags))


# ------------------------------------------------------------------------------------------- flags
def test_addresses():
    flags = parse(*CATCH, "--num_servers", "2")
    folder = f"unix:/tmp/polybeast-{os.getuid()}"
    assert polybeast_env.addresses(flags) == [f"{folder}/server.0", f"{folder}/server.1"]
    flags = parse(*CATCH, "--server_addresses", "localhost:5000-5002,unix:/tmp/x")
    expected = ["localhost:5000", "localhost:5001", "localhost:5002", "unix:/tmp/x"]
    assert polybeast_env.addresses(flags) == expected and flags.num_servers == 4
    with pytest.raises(UserError, match="--num_servers 2: expected 3, one for each address"):
        parse(*CATCH, *"--server_addresses a:1-3 --insecure --num_servers 2".split())


# --------------------------------------------------------------------------------------- processes
def test_a_killed_server_is_started_again_with_another_seed_and_ctrl_c_ends_all(tmp_path):
    with ServerFleet(tmp_path, *CATCH, "--seed", "5", count=2) as servers:
        addresses = servers.addresses
        seed = lambda index, life: server_seed(5, addresses[index], index, life)
        with Client(addresses[0]) as first, Client(addresses[1]) as second:
            stream, unharmed = first.stream(), second.stream()
            assert_rows_equal(stream.read(), first_row(seed(0, 0)))
            assert_rows_equal(unharmed.read(), first_row(seed(1, 0)))
            servers.kill(0)
            assert stream.failure()[0] == CODE.UNAVAILABLE
            unharmed.step(ONES)
            with Client(addresses[0]) as again:  # `first` may still think its server lives
                assert_rows_equal(again.stream().read(), first_row(seed(0, 1)))
            unharmed.step(ONES)
            os.killpg(servers.pid, signal.SIGINT)
            assert servers.wait_for_end() == 0 and not servers.actors()
            assert unharmed.failure()[0] in (CODE.UNAVAILABLE, CODE.CANCELLED)
        assert "failed and starts again in 0.5 s: exit code -9" in servers.printed()
        assert "Traceback" not in servers.printed()


def test_a_server_has_the_limits_of_its_flags(monkeypatch, as_before):
    server, limits = Mock(), {"step_timeout": 7, "open_timeout": 8, "max_streams": 9}
    monkeypatch.setattr(polybeast_env, "Server", server)
    flags = replace(parse(*CATCH), **limits)
    polybeast_env.serve(iter([]), None, 1, 0, "unix:/s", flags, tls=None)
    assert limits.items() <= server.call_args.kwargs.items()


def test_servers_of_all_machines_have_seeds_of_their_own(monkeypatch):
    seeds = set()
    for host in ("envs-1", "envs-2"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        for port, life in itertools.product((5000, 6000), (0, 1)):
            seeds |= {server_seed(seed, f"0.0.0.0:{port}", 0, life) for seed in (0, 1)}
    assert len(seeds) == 16


def first_row(server_seed):
    with contextlib.closing(Environment(Catch, 2)) as environment:
        return environment.initial(derive_seed(server_seed, 0))


# ------------------------------------------------------------------------------------ environments
def test_create_env_for_playing():
    for name, mode in (("PongNoFrameskip-v4", "test"), (CATCH[1], "test_render")):
        flags = replace(parse("--env", name), mode=mode)
        with contextlib.closing(polybeast_env.create_env(flags)) as env:
            assert not hasattr(env, "num_envs") and env.unwrapped.render_mode == "rgb_array"


def test_a_folder_that_was_there_is_left_alone(tmp_path):
    (tmp_path / "thesis").touch()
    with pytest.raises(FileExistsError):
        polybeast_env.supervise(parse(*CATCH, "--until_stdin_closes", str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]
