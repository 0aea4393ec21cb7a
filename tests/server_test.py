# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
import gymnasium
import numpy as np
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse as Health

from benchmarks.mock import make_mock
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv.server import OPTIONS, SERVICE, Server
from libtorchbeast.rpcenv.watchdog import HUNG_EXIT_CODE
from libtorchbeast.seeds import derive_seed
from tests.support.client import GUARD_S, Client, assert_rows_equal, free_port, message_to_spec
from tests.support.envs import Catch
from tests.support.processes import ROOT, wait_for
from tests.support.served_envs import (
    Exits,
    GivesAnotherShape,
    GivesNaN,
    LooksLikeALostClient,
    Nested,
    Raises,
    RaisesAtLength,
    RaisesLines,
    RaisesValueError,
    Reversed,
    Stacked,
    StackedTwice,
    Watched,
)

SEED = 7
CODE = grpc.StatusCode


@contextlib.contextmanager
def serving(create_env, address, num_envs=3, **options):
    make_environment = lambda: Environment(create_env, num_envs, "Test-v0")
    server = Server(make_environment, str(address), seed=SEED, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path}/s"


def rows_of(create_env, seed, actions, num_envs=3):
    """The rows that stepping the environments in this process gives."""
    with contextlib.closing(Environment(create_env, num_envs)) as environment:
        yield environment.initial(seed)
        for action in actions:
            yield environment.step(np.array(action))


def make_cartpole():
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize("create_env", [Catch, make_cartpole, Nested, Stacked])
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_stream_gives_the_rows_of_its_environments(address, transport, create_env):
    if transport == "tcp":
        address = f"127.0.0.1:{free_port()}"
    actions = np.random.default_rng(0).integers(0, 2, (100, 3)).tolist()
    expected = rows_of(create_env, derive_seed(SEED, 0), actions)
    with serving(create_env, address), Client(address) as client:
        stream = client.stream()
        assert_rows_equal(stream.read(), next(expected))
        for action, row in zip(actions, expected, strict=True):
            assert_rows_equal(stream.step(action), row)
        assert stream.end() == CODE.OK


@pytest.mark.parametrize("seen", ["in its own step", "in a wrapper above it"])
def test_a_stack_that_is_none_ends_its_stream(address, caplog, seen):
    wrong = Stacked if seen == "in a wrapper above it" else Reversed
    darker = lambda env: gymnasium.wrappers.TransformObservation(
        env, lambda boards: boards // np.uint8([[[2]], [[1]]]), env.observation_space
    )
    create_env = (lambda: darker(wrong())) if wrong is Stacked else wrong
    with serving(create_env, address), Client(address) as client:
        stream = client.stream()
        stream.read()
        stream.send(b"\x08\x01" * 3)
        code, text = stream.failure()
    assert code == CODE.INTERNAL
    assert 'frame: metadata["frame_stacks"] says that it is a stack of the 2 newest frames' in text
    assert "the newest of the step before, seen others, in environment 1" in text


def test_a_stack_that_does_not_begin_with_zeros_ends_its_stream(address):
    with serving(StackedTwice, address), Client(address) as client:
        code, text = client.stream().failure()
    assert code == CODE.INTERNAL
    assert "expected its 1 older frames to be zeros, as a game begins, seen others" in text


class Slow(Catch):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


def test_a_step_says_what_its_environments_took(address):
    with serving(Slow, address), Client(address) as client:
        stream = client.stream()
        stream.read()
        assert 0 < stream.environment_seconds < 0.06
        start = time.perf_counter()
        stream.step([1, 1, 1])
        assert 0.06 <= stream.environment_seconds <= time.perf_counter() - start


def test_a_seed_for_every_stream():
    seeds = [derive_seed(SEED, s) for s in range(100)]
    assert len(set(seeds)) == 100 and max(seeds) < 2**31
    assert seeds[3] == int(np.random.SeedSequence((SEED, 3)).generate_state(1)[0] >> 1)


def test_streams_are_independent(address):
    actions = np.random.default_rng(0).integers(0, 3, (2, 50, 3)).tolist()
    expected = [rows_of(Catch, derive_seed(SEED, s), actions[s]) for s in range(2)]
    with serving(Catch, address), Client(address) as client, Client(address) as another:
        streams = [client.stream(), another.stream()]
        for stream, rows in zip(streams, expected, strict=True):
            assert_rows_equal(stream.read(), next(rows))
        for t in range(50):
            for s in (0, 1):
                assert_rows_equal(streams[s].step(actions[s][t]), next(expected[s]))


def test_describe_gives_the_spec(address):
    with serving(Nested, address) as server, Client(address) as client:
        spec = message_to_spec(client.describe())
    assert spec == server.spec
    assert spec.name == "Test-v0" and spec.num_envs == 3 and spec.num_actions == 2
    assert list(spec.observations) == ["image", "inner/x", "none"]


STRANGER = """
import queue, sys
import grpc, rpcenv_pb2, rpcenv_pb2_grpc

channel = grpc.insecure_channel(sys.argv[1])
server = rpcenv_pb2_grpc.RPCEnvServerStub(channel)
spec = server.Describe(rpcenv_pb2.DescribeRequest())
assert spec.protocol == 2 and spec.num_envs == 2 and list(spec.action_sizes) == [3]
leaf, = spec.observations
assert (leaf.name, leaf.dtype, list(leaf.shape)) == ("frame", rpcenv_pb2.UINT8, [1, 10, 5])

def follow(board):
    paddle = board[45:].index(255)
    ball = next((i % 5 for i in range(45) if board[i]), paddle)
    return (ball > paddle) - (ball < paddle)

caught = 0
actions = queue.SimpleQueue()  # because what is sent depends on what came
steps = server.Stream(iter(actions.get, None))
for step in steps:
    caught += sum(step.reward)
    if caught == 20:
        break
    boards = step.observations[:50], step.observations[50:]
    actions.put(rpcenv_pb2.Action(actions=[1 + follow(board) for board in boards]))
actions.put(None)
assert list(steps) == []
channel.close()  # grpcio may hang at exit if calls or channels are left open
print("caught", caught)
"""


def test_a_client_written_from_the_proto_alone(address, tmp_path):
    proto = ROOT / "libtorchbeast/rpcenv"
    outputs = [f"-I{proto}", f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *outputs, proto / "rpcenv.proto"]
    subprocess.run(command, check=True)
    (tmp_path / "stranger.py").write_text(STRANGER)
    with serving(Catch, address, num_envs=2):
        command = [sys.executable, "stranger.py", address]
        printed = subprocess.check_output(command, cwd=tmp_path, text=True, timeout=GUARD_S)
    assert printed == "caught 20.0\n"


@pytest.mark.parametrize(
    "actions, text",
    [
        ([0, 1], "Actions: expected 3, seen 2"),
        ([], "Actions: expected 3, seen 0"),
        ([0] * 5, "Actions: expected 3, seen 5"),
        ([0, 3, 0], "Actions: expected 0 to 2, seen 3 for environment 1"),
        ([0, 2, -1], "Actions: expected 0 to 2, seen -1 for environment 2"),
    ],
)
def test_wrong_actions_end_their_stream_only(address, actions, text):
    with serving(Catch, address), Client(address) as client:
        good, bad = client.stream(), client.stream()
        good.read(), bad.read(), bad.step([0, 1, 2])
        bad.send(b"".join(b"\x08" + varint(action) for action in actions))
        assert bad.failure() == (CODE.INVALID_ARGUMENT, text)
        good.step([0, 1, 2])
        assert good.end() == CODE.OK


def varint(number):
    number &= 2**64 - 1
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def test_bytes_that_are_no_actions(address):
    with serving(Catch, address), Client(address) as client:
        stream = client.stream()
        stream.read()
        stream.send(b"\xff\xff")
        code, text = stream.failure()
    assert code == CODE.INVALID_ARGUMENT
    assert text == r"Actions: expected a message Action, seen b'\xff\xff'"


@pytest.mark.parametrize(
    "create_env, text",
    [
        (Raises, "RuntimeError: the ball has rolled under the sofa"),
        (RaisesValueError, "ValueError: a paddle of no size"),
        (GivesNaN, "Reward: expected a finite number, seen nan (a float) from environment 0"),
        (GivesAnotherShape, "expected uint8[1, 10, 5], seen uint8[1, 9, 5]"),
        (RaisesAtLength, " end of text"),
        (RaisesLines, "\nRuntimeError: the ball has rolled under the sofa"),
        (Exits, "SystemExit: the simulator is gone"),
        (LooksLikeALostClient, "RpcError: from within"),
    ],
)
def test_a_failing_environment_ends_its_stream_only(address, caplog, create_env, text):
    with serving(create_env, address), Client(address) as client:
        bad, good = client.stream(), client.stream()
        bad.read(), bad.step([1, 1, 1]), bad.step([1, 1, 1])
        good.read()
        bad.send(b"\x08\x01" * 3)
        code, details = bad.failure()
        assert code == CODE.INTERNAL and details.endswith(text)
        assert len(details.encode()) <= 2000
        good.step([1, 1, 1])
        assert client.describe().num_envs == 3
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "stream 0 failed" in record.message and "Traceback" in record.exc_text


def test_a_stream_too_many_is_refused(address):
    with serving(Catch, address, max_streams=2), Client(address) as client:
        streams = [client.stream(), client.stream()]
        for stream in streams:
            stream.read()
        for _ in range(10):  # more than threads that could wait
            code, text = client.stream().failure()
            assert code == CODE.RESOURCE_EXHAUSTED
            assert text == (
                f"{address} has all the 2 streams that it may have; raise its --max_streams, or "
                "start more servers"
            )
        for stream in streams:
            stream.step([1, 1, 1])
        assert streams[0].end() == CODE.OK
        third = client.stream()  # at once: the slot was free before the end was told
        third.read()
        streams[1].step([1, 1, 1])


def test_a_failed_stream_frees_its_slot(address):
    with serving(Catch, address, max_streams=1), Client(address) as client:
        for _ in range(5):
            stream = client.stream()
            stream.read()
            stream.send(b"")
            assert stream.failure()[0] == CODE.INVALID_ARGUMENT


@pytest.mark.parametrize("how", ["cancels", "disconnects"])
@pytest.mark.parametrize("when", ["before acting", "unread"])
def test_a_client_that_goes_leaves_nothing(address, how, when):
    count = []
    with serving(lambda: Watched(count), address, max_streams=1), Client(address) as another:
        assert len(count) == 1  # which gives the Spec, made before any stream
        with Client(address) as client:
            stream = client.stream()
            if when == "before acting":
                stream.read(), stream.step([1, 1, 1])
            wait_for(lambda: len(count) > 1)  # the server has begun the stream
            if how == "cancels":
                stream.cancel()
                wait_for(lambda: not count)
        wait_for(lambda: not count)
        stream = another.stream()
        stream.read()
        assert len(count) == 3
    assert not count


def test_a_client_that_goes_while_others_open_has_nothing_opened(address):
    """Else a learner that comes after dead ones would wait for all of their environments."""
    gate, opened = threading.Event(), []

    def create_env():
        opened.append(None)
        assert len(opened) == 1 or gate.wait(GUARD_S)
        return Catch()

    with serving(create_env, address), Client(address) as client:
        N = client.describe().num_envs
        first = client.stream()
        wait_for(lambda: len(opened) == 2)
        for stream in [client.stream() for _ in range(3)]:
            stream.cancel()
        client.describe()  # the answer comes after the server has heard of what came before it
        gate.set()
        first.read()
        assert first.end() == CODE.OK
        last = client.stream()
        last.read()
        assert len(opened) == 2 * N


LOST_CLIENT = """
import sys, time
from tests.support.client import Client
stream = Client(sys.argv[1]).stream()
stream.read()
print("connected", flush=True)
time.sleep(3600)
"""


def test_a_client_whose_machine_stops_leaves_nothing(address, monkeypatch):
    """The client does not answer, but closes nothing. The server's usual time limits are longer."""
    ends = ("_time_ms", "ping_timeout_ms", "keepalive_timeout_ms")
    times = [name for name in OPTIONS if name.endswith(ends)]
    assert len(times) == 3 and sum(OPTIONS[name] for name in times) < 60_000
    for name in times:
        monkeypatch.setitem(OPTIONS, name, 1000)
    count = []
    command = [sys.executable, "-c", LOST_CLIENT, address]
    with serving(lambda: Watched(count), address):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as client:
            try:
                assert client.stdout.readline() == b"connected\n"
                client.send_signal(signal.SIGSTOP)
                wait_for(lambda: not count)
            finally:
                client.kill()


def test_stopping_closes_all_environments(address):
    count = []
    with serving(lambda: Watched(count), address) as server, Client(address) as client:
        first, second = client.stream(), client.stream()
        first.read(), second.read()
        assert len(count) == 6
        server.stop()
        assert not count
        assert first.failure()[0] in (CODE.UNAVAILABLE, CODE.CANCELLED)


def test_stopping_refuses_new_streams_and_ends_running_ones_with_a_reason(address):
    """Streams end at their next action. Those that get no action are ended by force."""
    with serving(Catch, address) as server, Client(address) as client:
        running, idle = client.stream(), client.stream()
        running.read(), idle.read(), running.step([1, 1, 1])
        assert client.health() == client.health(SERVICE) == Health.SERVING
        watch = client.watch_health()
        assert next(watch) == Health.SERVING
        stopping = threading.Thread(target=server.stop, args=(GUARD_S,))
        stopping.start()
        assert next(watch) == Health.NOT_SERVING
        assert client.health() == client.health(SERVICE) == Health.NOT_SERVING
        reason = (CODE.UNAVAILABLE, f"{address} is stopping")
        wait_for(lambda: client.stream().failure() == reason)
        for stream in (running, idle):
            stream.send(b"\x08\x01" * 3)
            assert stream.failure() == reason
        stopping.join()


def test_stopping_waits_a_moment_only_for_clients_that_say_nothing(address):
    count = []
    with serving(lambda: Watched(count), address) as server, Client(address) as client:
        stream = client.stream()
        stream.read()
        server.stop(0.1)
        assert not count
        assert stream.failure()[0] in (CODE.UNAVAILABLE, CODE.CANCELLED)


def test_stopping_closes_the_environment_that_nobody_wanted(address):
    count = []
    with serving(lambda: Watched(count), address):
        assert len(count) == 1
    assert not count


def test_an_environment_that_cannot_close_frees_its_slot(address, caplog):
    class Stuck(Catch):
        def close(self):
            raise RuntimeError("the door is stuck")

    with serving(Stuck, address, max_streams=1), Client(address) as client:
        for _ in range(3):
            stream = client.stream()
            stream.read()
            assert stream.end() == CODE.OK
    assert "closing stream 2 failed" in caplog.text and "the door is stuck" in caplog.text


def test_environments_are_opened_one_at_a_time(address):
    """`create_env` need not know of threads."""
    inside = threading.Lock()

    def create_env():
        assert inside.acquire(blocking=False)
        try:
            return Catch()
        finally:
            inside.release()

    with serving(create_env, address), Client(address) as client:
        streams = [client.stream() for _ in range(8)]
        for stream in streams:
            stream.read()


HANGS_WHILE_OPENING = """
import sys, time
from libtorchbeast.environment import Environment
from libtorchbeast.rpcenv.server import Server
from tests.support.client import Client
from tests.support.envs import Catch

opened = []
def create_env():
    opened.append(len(opened))
    time.sleep(3600 if len(opened) == 2 else 0)
    return Catch()

server = Server(lambda: Environment(create_env, 1), sys.argv[1], open_timeout=0.5)
server.start()
with Client(sys.argv[1]) as client:
    client.stream().read()
    client.stream().read()
"""


def test_environments_that_hang_while_they_open_cost_their_server(address):
    """Otherwise they would keep all later streams waiting."""
    command = [sys.executable, "-c", HANGS_WHILE_OPENING, address]
    ended = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, timeout=GUARD_S, text=True)
    assert ended.returncode == HUNG_EXIT_CODE, ended.stderr
    assert "stream 1 took longer than --open_timeout 0.5 to open environment 1 of 1" in ended.stderr


def test_environments_must_all_be_alike(address):
    kinds = iter([Catch, make_cartpole])
    with serving(lambda: next(kinds)(), address, num_envs=1), Client(address) as client:
        client.stream().read()
        code, text = client.stream().failure()
    assert code == CODE.INTERNAL
    assert "create_env: expected what it made before, Spec(name='Test-v0'" in text


def test_large_observations(address):
    """gRPC's own limit is 4 MiB."""
    environment = lambda: Environment(lambda: make_mock("Mock/5x1024x1024", 1), 1)
    expected = environment()
    server = Server(environment, address)
    server.start()
    with Client(address) as client:
        stream = client.stream()
        assert_rows_equal(stream.read(), expected.initial(0))
        assert_rows_equal(stream.step([0]), expected.step(np.array([0])))
    server.stop()


def test_create_env_fails_where_the_server_is_made(address):
    with pytest.raises(ZeroDivisionError):
        Server(lambda: Environment(lambda: 1 / 0, 1), address)


@pytest.mark.parametrize("transport", ["unix", "tcp", "localhost"])
def test_an_address_in_use(address, transport):
    count = []
    other = address
    if transport != "unix":  # localhost may have other addresses besides, which are free
        port = free_port()
        address, other = f"127.0.0.1:{port}", f"{transport.replace('tcp', '127.0.0.1')}:{port}"
    with serving(lambda: Watched(count), address), Client(address) as client:
        stream = client.stream()
        stream.read()
        with pytest.raises(UserError, match=f"Cannot listen on {other}: .*ddress already in use"):
            Server(lambda: Environment(lambda: Watched(count), 3), other)
        assert len(count) == 3  # the other's was closed
        stream.step([1, 1, 1])
        client.stream().read()


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(UserError, match="Cannot listen on unix:.*/no/s: .*No such file"):
        Server(lambda: Environment(Catch, 1), f"unix:{tmp_path}/no/s")


def test_a_host_that_is_not_this_one():
    with pytest.raises(UserError, match="Cannot listen on 192.0.2.1:7777: .*assign requested"):
        Server(lambda: Environment(Catch, 1), "192.0.2.1:7777")


def test_a_socket_file_that_a_dead_server_left(address):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(address.removeprefix("unix:"))
    with serving(Catch, address), Client(address) as client:
        client.stream().read()


def test_a_file_that_is_no_socket_is_kept(address, tmp_path):
    (tmp_path / "s").write_text("precious")
    with pytest.raises(UserError, match="Address already in use"):
        Server(lambda: Environment(Catch, 1), address)
    assert (tmp_path / "s").read_text() == "precious"


FORKS = """
import subprocess, sys, time
import libtorchbeast.rpcenv.server
import grpc
from concurrent import futures

server = grpc.server(futures.ThreadPoolExecutor(2))
channel = grpc.insecure_channel(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
server.start()
grpc.channel_ready_future(channel).result(30)
for _ in range(40):  # the pause makes room for gRPC's threads in the child
    subprocess.run(["true"], preexec_fn=lambda: time.sleep(0.01), check=True)
server.stop(0).wait()
"""


def test_a_process_that_serves_may_start_others():
    """Environments that start a simulator do this."""
    subprocess.run([sys.executable, "-c", FORKS], cwd=ROOT, check=True)
