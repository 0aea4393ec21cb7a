# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environment servers as a user runs them: in processes of their own, watched from outside."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest

import monobeast
import polybeast_env
from libtorchbeast import workers
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv import supervisor
from libtorchbeast.rpcenv.mock import EPISODE_STEPS, make_mock
from libtorchbeast.rpcenv.server import stream_seed
from libtorchbeast.rpcenv.watchdog import CallTimer, TimeLimit
from polybeast_env import server_seed
from tests.client import Client, assert_rows_equal, free_port
from tests.envs import Catch
from tests.faults._breaking import listener
from tests.processes import ROOT, Program, wait_for

CATCH = ["--env", "tests.envs:Catch-v0", "--envs_per_server", "2"]
MOCK = ["--env", "Mock/4", "--envs_per_server", "2"]
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
            )

    def client(self, index=0):
        return Client(f"{self.basename}.{index}")

    def wait_until_all_have_ended(self):
        self.process.wait()
        wait_for(lambda: not self.session(), describe=self.printed)


def parse(*flags):
    flags = polybeast_env.make_parser().parse_args(flags)
    polybeast_env.check_flags(flags)
    return flags


# ------------------------------------------------------------------------------------------- flags
def test_an_environment_machine_needs_neither_torch_nor_rich():
    """Nor gymnasium, for an environment that is none of its."""
    code = (
        "import sys, polybeast_env as p; p.create_env(p.make_parser().parse_args(sys.argv[1:]));"
        "print({'torch', 'rich', 'gymnasium'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, *MOCK]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "set()\n"


@pytest.mark.parametrize("kind", ["atari", "other"])
def test_both_beasts_have_the_same_recipes(kind):
    ours, theirs = polybeast_env.RECIPES[kind], monobeast.RECIPES[kind]
    assert ours["envs_per_server"] == theirs["envs_per_actor"]


def test_recipes():
    assert parse().envs_per_server == 16
    assert parse("--env", "CartPole-v1").envs_per_server == 64
    assert parse(*MOCK).envs_per_server == 2


def test_addresses():
    flags = parse(*MOCK, "--num_servers", "2")
    folder = f"unix:/tmp/polybeast-{os.getuid()}"
    assert polybeast_env.addresses(flags) == [f"{folder}/server.0", f"{folder}/server.1"]
    flags = parse(*MOCK, "--server_addresses", "localhost:5000-5002,unix:/tmp/x")
    expected = ["localhost:5000", "localhost:5001", "localhost:5002", "unix:/tmp/x"]
    assert polybeast_env.addresses(flags) == expected and flags.num_servers == 4


@pytest.mark.parametrize(
    "given, message",
    [
        ("--num_servers 0", "--num_servers 0: expected at least 1"),
        ("--envs_per_server 0", "--envs_per_server 0: expected at least 1"),
        ("--max_streams 0", "--max_streams 0: expected at least 1"),
        ("--step_timeout 0", "--step_timeout 0.0: expected at least 0.1"),
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
        parse("--env", "Mock", *given.split())


# --------------------------------------------------------------------------------------- processes
@pytest.mark.parametrize(
    "flags, message",
    [
        (["--env", "NoSuchThing-v0"], "error: Environment `NoSuchThing` doesn't exist."),
        (["--env", "Mock/4x"], "error: --env Mock/4x: expected Mock or Mock/SIZExSIZE..."),
        (["--env", "tests.envs:nothing"], "error: "),
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
    flags = [*MOCK, "--server_addresses", address]
    with Servers(tmp_path, *flags) as servers, Client(address) as client:
        client.describe()
        (tmp_path / "other").mkdir()
        with Servers(tmp_path / "other", *flags) as other:
            assert other.wait_for_end() == 1
            last = other.printed().splitlines()[-1]
        assert last.startswith(f"polybeast_env: error: Cannot listen on {address}: ")
        assert "address already in use" in last
        client.describe()
        assert f"Serving Mock/4, 2 environments a stream, on {address}" in servers.printed()


def test_an_address_in_use_ends_all_whoever_serves_first(tmp_path):
    class Process:
        name, sentinel, from_child = "Server", 0, 0

        def __init__(self, messages):
            self._messages = messages

        def has_message(self):
            return bool(self._messages)

        def receive(self):
            return self._messages.pop(0)

        def end(self, deadline):
            return 1

    processes = [Process([b"."]), Process([b"!address in use"])]
    watched = supervisor.Supervisor(lambda index, life: processes[index], 2, 60.0)
    for worker in watched._workers:
        worker.start_if_due()
    watched._read_messages(watched._workers[0])
    with pytest.raises(supervisor.StartFailure, match="address in use"):
        watched._read_messages(watched._workers[1])


@pytest.mark.parametrize("how", ["SIGINT to all", "SIGTERM", "SIGHUP to all", "stdin"])
def test_all_end_when_asked_to(tmp_path, how):
    stdin = subprocess.PIPE if how == "stdin" else subprocess.DEVNULL
    flags = [*MOCK, "--num_servers", "2"]
    if how == "stdin":
        flags += ["--until_stdin_closes", str(tmp_path / "sockets")]
    with Servers(tmp_path, *flags, stdin=stdin) as servers:
        with servers.client(0) as first, servers.client(1) as second:
            stream = first.stream()
            stream.read()
            second.describe()
            if how == "stdin":
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
    with Servers(tmp_path, *MOCK, "--num_servers", "2") as servers:
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
            assert_rows_equal(first.stream().read(), first_row(seed(0, 1)))
            unharmed.step(ONES)
        assert "failed and starts again in 0.5 s: exit code -9" in servers.printed()


def test_servers_of_all_machines_have_seeds_of_their_own(monkeypatch):
    """Those that a learner starts have the same in each run, whatever their folder's name."""
    seeds = set()
    for host in ("envs-1", "envs-2"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        for port, life in itertools.product((5000, 6000), (0, 1)):
            seeds |= {server_seed(seed, f"0.0.0.0:{port}", 0, life) for seed in (0, 1)}
    assert len(seeds) == 16
    assert len({server_seed(0, f"unix:/tmp/{folder}/server.0", 0, 0) for folder in "ab"}) == 1


def test_a_server_that_is_killed_before_it_serves_is_started_again(tmp_path):
    """By hand, or because memory ran out: no mistake of the user's."""
    with Servers(tmp_path, *MOCK, "--num_servers", "1") as servers, servers.client() as client:
        os.kill(wait_for(servers.actors).pop(), signal.SIGKILL)
        servers.wait_for(lambda: "starts again in 0.5 s: exit code -9" in servers.printed())
        assert client.describe().num_envs == 2
    assert servers.printed().count("Serving Mock/4") == 1


def first_row(server_seed):
    with contextlib.closing(Environment(Catch, 2)) as environment:
        return environment.initial(stream_seed(server_seed, 0))


def test_a_hung_environment_costs_its_server(tmp_path):
    trouble = tmp_path / "trouble"
    trouble.mkdir()
    for done in ("open", "raise", "nan"):  # so that the first environment to come so far hangs
        (trouble / done).touch()
    flags = ["--env", "tests.envs:TroubledCatch-v0", "--envs_per_server", "2"]
    flags += ["--num_servers", "1", "--step_timeout", "1"]
    with Servers(tmp_path, *flags, TROUBLE=str(trouble)) as servers, servers.client() as client:
        stream = client.stream()
        stream.read()
        with pytest.raises(grpc.RpcError) as error:
            while True:
                stream.step(ONES)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        stream = client.stream()
        stream.read()
        for _ in range(100):
            stream.step(ONES)
        printed = servers.printed()
    assert "the environments of stream 0 took longer than --step_timeout 1 for one" in printed
    assert "failed and starts again in 0.5 s: exit code 3" in printed


def test_a_watcher_that_was_stopped_itself_takes_nothing_for_silence(monkeypatch):
    now = 100.0
    monkeypatch.setattr(workers.time, "monotonic", lambda: now)
    silence_timer = workers.SilenceTimer()
    for later, silence in [(1, 1), (2, 3), (4, 7), (60, 0), (3, 3)]:
        now += later
        silence_timer.tick()
        assert silence_timer.silence(100.0) == silence
    assert silence_timer.silence(now - 2) == 2


def test_a_server_that_keeps_failing_is_started_less_and_less_often(monkeypatch):
    class Corpse:
        name = "Server 0"

        def end(self, deadline):
            return 1

    now = 100.0
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now)
    worker = supervisor._Worker(lambda index, life: Corpse(), 0)
    delays = []
    for lived in [0] * 8 + [6, 0]:
        worker.start_if_due()
        if lived:
            worker.record_sign_of_life()
        now += lived
        worker.schedule_restart(worker.clean_up(None))
        worker.start_if_due()
        assert worker.process is None
        delays.append(worker.due - now)
        now = worker.due
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 0.5, 1]


def test_a_call_in_whose_time_the_server_was_stopped_itself_is_no_hang(monkeypatch):
    now = itertools.count(1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    silence_timer, timer, limit = workers.SilenceTimer(), CallTimer(0), TimeLimit(3.0, "3 s")
    look = lambda: (silence_timer.tick(), timer.exceeded(silence_timer))[1]
    assert timer.run(limit, lambda: [look() for _ in range(5)]) == [None] * 3 + [limit] * 2
    assert look() is None

    def stopped():
        for _ in range(100):
            next(now)
        return [look() for _ in range(5)]

    assert timer.run(limit, stopped) == [None] * 4 + [limit]


# ------------------------------------------------------------------------------------ environments
@pytest.mark.parametrize("name, shape", [("Mock", (4, 84, 84)), ("Mock/4x10x10", (4, 10, 10))])
def test_mock(name, shape):
    environment = Environment(lambda: make_mock(name, 3), 3)
    assert environment.spec.observations == {"frame": (shape, "uint8")}
    assert environment.spec.num_actions == 6
    rows = [environment.initial(0)["frame"].copy()]
    ends = []
    for t in range(1, 2 * EPISODE_STEPS + 10):
        row = environment.step(np.zeros(3, np.int64))
        assert (row["frame"] != rows[-1]).any(axis=(1, 2, 3)).all()
        rows.append(row["frame"].copy())
        assert (row["reward"] == row["terminated"]).all()
        ends += [(t, i) for i in np.flatnonzero(row["terminated"])]
    assert len(ends) == 6 and len({t for t, _ in ends}) == 6  # at different times
    assert row["episode_step"].max() <= EPISODE_STEPS
    assert ends[3][0] - ends[0][0] == EPISODE_STEPS + 1  # and a step for the reset


def test_mock_is_a_stack_of_frames():
    """As stacking its newest frames here gives, whatever the ring does."""
    N = 40
    environment = Environment(lambda: make_mock("Mock", N), N)
    assert environment.spec.stacks == {"frame": 4}
    for life in range(2):
        row = environment.initial(life)
        expected = np.zeros((N, 4, 84, 84), np.uint8)
        games = 0
        for _ in range(1100):
            expected[:, :-1] = expected[:, 1:]
            expected[row["episode_step"] == 0, :-1] = 0
            expected[:, -1] = row["frame"][:, -1]
            assert row["frame"].tobytes() == expected.tobytes()
            newest = row["frame"][:, -1].reshape(N, -1)[:, 8:]
            assert newest[::13].any(axis=1).all()  # noise, also where zeros were
            games += (row["episode_step"] == 0).sum()
            row = environment.step(np.zeros(N, np.int64))
        assert games > 2 * N
    assert Environment(lambda: make_mock("Mock/4x84x84", 1), 1).spec.stacks == {}


@pytest.mark.parametrize("name", ["Mock/", "Mock/0", "Mock/4x", "Mock/4,4", "Mock/-1", "Mock/4/4"])
def test_mock_refuses(name):
    with pytest.raises(UserError, match=f"--env {name}: expected Mock or Mock/SIZExSIZE"):
        make_mock(name, 3)


def test_create_env_for_playing():
    """In the learner's test modes: single environments, which can be looked at."""
    for name, mode in (("PongNoFrameskip-v4", "test"), ("tests.envs:Catch-v0", "test_render")):
        flags = polybeast_env.make_parser().parse_args(["--env", name])
        flags.mode = mode
        with contextlib.closing(polybeast_env.create_env(flags)) as env:
            assert not hasattr(env, "num_envs") and env.unwrapped.render_mode == "rgb_array"


def test_a_folder_that_was_there_is_left_alone(tmp_path):
    (tmp_path / "thesis").touch()
    with pytest.raises(FileExistsError), polybeast_env.new_folder(str(tmp_path)):
        pass
    with polybeast_env.new_folder(str(tmp_path / "own")):
        assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]
