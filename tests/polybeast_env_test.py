# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environment servers as a user runs them: in processes of their own, watched from outside."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys

import grpc
import pytest

import monobeast
import polybeast_env
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError, replace
from libtorchbeast.seeds import derive_seed
from polybeast_env import server_seed
from tests.faults._breaking import listener
from tests.support.client import Client, assert_rows_equal, free_port
from tests.support.envs import Catch
from tests.support.processes import ROOT, Program, heed_signals, wait_for

CATCH = ["--env", "tests.support.envs:Catch-v0", "--envs_per_server", "2"]
ONES = [1, 1]


class Servers(Program):
    """`python -m polybeast_env`, with its first address on a Unix socket in `folder`."""

    def __init__(self, folder, *flags, stdin=subprocess.DEVNULL, **environment):
        self._printed = folder / "printed"
        self.basename = f"unix:{folder}/s"
        command = [sys.executable, "-m", "polybeast_env", "--pipes_basename", self.basename]
        with open(self._printed, "w") as printed:
            self.process = subprocess.Popen(
                [*command, *flags],
                cwd=ROOT,
                env=os.environ | environment,
                stdin=stdin,
                stderr=printed,
                start_new_session=True,
                preexec_fn=heed_signals,
            )

    def client(self, index=0):
        return Client(f"{self.basename}.{index}")

    def wait_until_all_have_ended(self):
        self.process.wait()
        wait_for(lambda: not self.session(), describe=self.printed)


def parse(*flags):
    return polybeast_env.parse(list(flags))


# ------------------------------------------------------------------------------------------- flags
@pytest.mark.parametrize("kind", ["atari", "other", "vectors"])
def test_both_beasts_have_the_same_recipes(kind):
    ours, theirs = polybeast_env.RECIPES[kind], monobeast.RECIPES[kind]
    assert ours["envs_per_server"] == theirs["envs_per_actor"]


def test_recipes():
    assert parse().envs_per_server == 16
    assert parse("--env", "CartPole-v1").envs_per_server == 64
    assert parse(*CATCH).envs_per_server == 2


def test_addresses():
    flags = parse(*CATCH, "--num_servers", "2")
    folder = f"unix:/tmp/polybeast-{os.getuid()}"
    assert polybeast_env.addresses(flags) == [f"{folder}/server.0", f"{folder}/server.1"]
    flags = parse(*CATCH, "--server_addresses", "localhost:5000-5002,unix:/tmp/x")
    expected = ["localhost:5000", "localhost:5001", "localhost:5002", "unix:/tmp/x"]
    assert polybeast_env.addresses(flags) == expected and flags.num_servers == 4


@pytest.mark.parametrize(
    "given, message",
    [
        ("--num_servers 0", "--num_servers 0: expected at least 1"),
        ("--envs_per_server 0", "--envs_per_server 0: expected at least 1"),
        ("--max_streams 0", "--max_streams 0: expected at least 1"),
        ("--step_timeout 0", "--step_timeout 0: expected at least 0.1"),
        ("--seed -1", "--seed -1: expected at least 0"),
        ("--pipes_basename /tmp/x", "--pipes_basename /tmp/x: expected unix:/path"),
        ("--server_addresses a", "expected unix:/path, host:port, .* seen 'a'"),
        ("--server_addresses a:1", "a:1 needs TLS .* or --insecure"),
        (
            "--server_addresses a:1-3 --insecure --num_servers 2",
            "--num_servers 2: expected 3, one for each address",
        ),
    ],
)
def test_flags_that_cannot_work(given, message):
    with pytest.raises(UserError, match=message):
        parse("--env", "CartPole-v1", *given.split())


# --------------------------------------------------------------------------------------- processes
@pytest.mark.parametrize(
    "flags, message",
    [
        (["--env", "NoSuchThing-v0"], "error: --env NoSuchThing-v0: Environment `NoSuc"),
        (["--env", "tests.support.envs:nothing"], "error: "),
    ],
)
def test_a_mistake_ends_all_with_one_line(tmp_path, flags, message):
    with Servers(tmp_path, *flags, "--num_servers", "2") as servers:
        assert servers.wait_for_end() == 1
        servers.wait_until_all_have_ended()
        last = servers.printed().splitlines()[-1]
    assert last.startswith(f"polybeast_env: {message}")


def test_an_address_in_use(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    flags = [*CATCH, "--server_addresses", address]
    with Servers(tmp_path, *flags) as servers, Client(address) as client:
        client.describe()
        (tmp_path / "other").mkdir()
        with Servers(tmp_path / "other", *flags) as other:
            assert other.wait_for_end() == 1
            last = other.printed().splitlines()[-1]
        assert last.startswith(f"polybeast_env: error: Cannot listen on {address}: ")
        assert "address already in use" in last
        client.describe()
        serving = "Serving tests.support.envs:Catch-v0, 2 environments per stream"
        assert f"{serving}, on {address}" in servers.printed()


@pytest.mark.parametrize("how", ["SIGINT to all", "SIGTERM", "SIGHUP to all", "stdin"])
def test_all_end_when_asked_to(tmp_path, how):
    stdin = subprocess.PIPE if how == "stdin" else subprocess.DEVNULL
    flags = [*CATCH, "--num_servers", "2"]
    if how == "stdin":
        flags += ["--until_stdin_closes", str(tmp_path / "sockets")]
    with Servers(tmp_path, *flags, stdin=stdin) as servers:
        with servers.client(0) as first, servers.client(1) as second:
            stream = first.stream()
            stream.read()
            second.describe()
            if how == "stdin":
                assert (tmp_path / "sockets").stat().st_mode & 0o777 == 0o700
                servers.process.stdin.close()
            elif how == "SIGTERM":
                servers.process.terminate()
            else:
                os.killpg(servers.pid, getattr(signal, how.split()[0]))
            assert servers.wait_for_end() == 0
            assert not servers.actors() and not (tmp_path / "sockets").exists()
            assert stream.failure()[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert "Traceback" not in servers.printed()


def test_a_killed_supervisor_leaves_no_process(tmp_path):
    with Servers(tmp_path, *CATCH, "--num_servers", "2") as servers:
        with servers.client(0) as first, servers.client(1) as second:
            first.describe(), second.describe()
            assert len(servers.actors()) == 2
            servers.process.kill()
            servers.wait_until_all_have_ended()


def test_a_killed_server_is_started_again_with_another_seed(tmp_path):
    with Servers(tmp_path, *CATCH, "--num_servers", "2", "--seed", "5") as servers:
        with servers.client(0) as first, servers.client(1) as second:
            stream, unharmed = first.stream(), second.stream()
            seed = lambda index, life: server_seed(5, f"{servers.basename}.{index}", index, life)
            assert_rows_equal(stream.read(), first_row(seed(0, 0)))
            assert_rows_equal(unharmed.read(), first_row(seed(1, 0)))
            os.kill(listener(servers.actors(), f"{servers.basename}.0"), signal.SIGKILL)
            assert stream.failure()[0] == grpc.StatusCode.UNAVAILABLE
            unharmed.step(ONES)
            with servers.client(0) as again:  # `first` may still think its server lives
                assert_rows_equal(again.stream().read(), first_row(seed(0, 1)))
            unharmed.step(ONES)
        assert "failed and starts again in 0.5 s: exit code -9" in servers.printed()


def test_servers_of_all_machines_have_seeds_of_their_own(monkeypatch):
    """Servers that a learner starts have the same seeds in each run, in whatever folder."""
    seeds = set()
    for host in ("envs-1", "envs-2"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        for port, life in itertools.product((5000, 6000), (0, 1)):
            seeds |= {server_seed(seed, f"0.0.0.0:{port}", 0, life) for seed in (0, 1)}
    assert len(seeds) == 16
    assert len({server_seed(0, f"unix:/tmp/{folder}/server.0", 0, 0) for folder in "ab"}) == 1


def test_a_server_that_is_killed_before_it_serves_is_started_again(tmp_path):
    """A kill is not the user's mistake, whether by hand or because memory ran out."""
    with Servers(tmp_path, *CATCH, "--num_servers", "1") as servers, servers.client() as client:
        os.kill(wait_for(servers.actors).pop(), signal.SIGKILL)
        servers.wait_for(lambda: "starts again in 0.5 s: exit code -9" in servers.printed())
        assert client.describe().num_envs == 2
    assert servers.printed().count("Serving tests.") == 1


def first_row(server_seed):
    with contextlib.closing(Environment(Catch, 2)) as environment:
        return environment.initial(derive_seed(server_seed, 0))


def test_a_hung_environment_costs_its_server(tmp_path):
    trouble = tmp_path / "trouble"
    trouble.mkdir()
    for done in ("open", "raise", "nan"):  # so that the first environment to come so far hangs
        (trouble / done).touch()
    flags = ["--env", "tests.support.envs:TroubledCatch-v0", "--envs_per_server", "2"]
    flags += ["--num_servers", "1", "--step_timeout", "1"]
    with Servers(tmp_path, *flags, TROUBLE=str(trouble)) as servers, servers.client() as client:
        stream = client.stream()
        stream.read()
        with pytest.raises(grpc.RpcError) as error:
            while True:
                stream.step(ONES)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        with servers.client() as again:  # `client` may still think its server lives
            stream = again.stream()
            stream.read()
            for _ in range(100):
                stream.step(ONES)
        printed = servers.printed()
    assert "the environments of stream 0 took longer than --step_timeout 1 for one" in printed
    assert "failed and starts again in 0.5 s: exit code 3" in printed


# ------------------------------------------------------------------------------------ environments
def test_create_env_for_playing():
    """In the learner's test modes it makes single environments that can render."""
    for name, mode in (
        ("PongNoFrameskip-v4", "test"),
        ("tests.support.envs:Catch-v0", "test_render"),
    ):
        flags = replace(parse("--env", name), mode=mode)
        with contextlib.closing(polybeast_env.create_env(flags)) as env:
            assert not hasattr(env, "num_envs") and env.unwrapped.render_mode == "rgb_array"


def test_each_stream_has_environments_of_its_own_seeds(monkeypatch):
    """Also those that ignore the seed of `reset`, as EnvPool's do, see it in `flags.env_seed`."""
    seeds = []
    create_env = lambda flags: seeds.append(flags.env_seed) or Catch()
    monkeypatch.setattr(polybeast_env, "create_env", create_env)
    make = polybeast_env.maker(parse(*CATCH), seed=7)
    for stream in range(3):
        make().initial(0)
        assert seeds[2 * stream :] == [derive_seed(7, stream), derive_seed(7, stream) + 1]
    assert len(set(seeds)) == 6


def test_a_folder_that_was_there_is_left_alone(tmp_path):
    (tmp_path / "thesis").touch()
    with pytest.raises(FileExistsError):
        polybeast_env.supervise(parse(*CATCH, "--until_stdin_closes", str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]
