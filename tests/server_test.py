# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.

import logging
import signal
import subprocess
import sys
import threading

import grpc
import gymnasium
import numpy as np
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse as Health

from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv import watchdog
from libtorchbeast.rpcenv.server import OPTIONS, SERVICE, Server
from tests.support import pools
from tests.support.client import GUARD_S, Client, free_port
from tests.support.envs import Catch
from tests.support.processes import ROOT, wait_for
from tests.support.served_envs import Raises, Stacked, Watched

SEED, ONES = 7, b"\x08\x01" * 3  # an Action of ones
CODE = grpc.StatusCode


def serving(create_env, address, num_envs=3, **options):
    return pools.serving(create_env, address, num_envs, SEED, **options)


def test_a_stack_that_a_wrapper_changed_ends_its_stream(address):
    darker = lambda env: gymnasium.wrappers.TransformObservation(
        env, lambda boards: boards // np.uint8([[[2]], [[1]]]), env.observation_space
    )
    with serving(lambda: darker(Stacked()), address), Client(address) as client:
        stream = client.play()
        stream.send(ONES)
        code, text = stream.failure()
    assert code == CODE.INTERNAL
    assert 'frame: metadata["frame_stacks"] says that it is a stack of the 2 newest frames' in text
    assert "the newest of the step before, seen others, in environment 1" in text


@pytest.mark.parametrize(
    "error, text",
    [
        (RuntimeError("ß€😀" * 5000 + " end of text"), " end of text"),
        (RuntimeError("the ball\nrolled\n\n  away"), "\nRuntimeError: the ball rolled away"),
        (SystemExit("the simulator is gone"), "SystemExit: the simulator is gone"),
        (grpc.RpcError("from within"), "RpcError: from within"),  # as of a client that is lost
    ],
    ids=["long", "of several lines", "exit", "gRPC's"],
)
def test_a_failing_environment_ends_its_stream_only(address, caplog, error, text):
    def fail():
        stream = client.play(2)
        stream.send(ONES)
        return stream.failure()

    with serving(lambda: Raises(error), address), Client(address) as client:
        good = client.play()
        code, details = fail()
        assert code == CODE.INTERNAL and details.endswith(")") and f"{text} (/" in details
        assert len(details.encode()) <= 2000
        good.step([1, 1, 1])
        assert fail() == (code, details)
        assert client.describe().num_envs == 3
    first, second = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "stream 1 failed" in first.message and "Traceback" in first.exc_text
    assert "stream 2 failed" in second.message and not second.exc_text  # the same, told once


def test_a_stream_too_many_is_refused(address):
    with serving(Catch, address, max_streams=2), Client(address) as client:
        first, second = client.play(), client.play()
        for _ in range(10):  # more than threads that could wait
            code, text = client.stream().failure()
            assert code == CODE.RESOURCE_EXHAUSTED
            assert text.startswith(f"{address} has all the 2 streams") and "--max_streams" in text
        first.step([1, 1, 1])
        assert first.end() == CODE.OK
        client.play()  # at once: the slot was free before the end was told
        second.step([1, 1, 1])


@pytest.mark.parametrize("how", ["cancels unread", "disconnects", "cancels before acting"])
def test_a_client_that_goes_leaves_nothing(address, how):
    count = []
    with serving(lambda: Watched(count), address, max_streams=1), Client(address) as another:
        with Client(address) as client:
            stream = client.play(1) if how == "cancels before acting" else client.stream()
            wait_for(lambda: len(count) > 1)  # the server has begun the stream
            if how != "disconnects":
                stream.cancel()
                wait_for(lambda: not count)
        wait_for(lambda: not count)
        _playing = another.play()  # which would be cancelled without a name
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
        last = client.play()
        assert len(opened) == 2 * N and last.end() == CODE.OK


LOST_CLIENT = """
import sys, time
from tests.support.client import Client
stream = Client(sys.argv[1]).play()
print("connected", flush=True)
time.sleep(3600)
"""


def test_a_client_whose_machine_stops_leaves_nothing(address, monkeypatch):
    """The client does not answer, but closes nothing. The server's usual time limits are longer."""
    names = "keepalive_time keepalive_timeout http2.ping_timeout".split()
    times = [f"grpc.{name}_ms" for name in names]
    assert sum(OPTIONS[name] for name in times) < 60_000
    for name in times:
        monkeypatch.setitem(OPTIONS, name, 1000)
    count = []
    command = [sys.executable, "-c", LOST_CLIENT, address]
    with (
        serving(lambda: Watched(count), address),
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as client,
    ):
        try:
            assert client.stdout.readline() == b"connected\n"
            client.send_signal(signal.SIGSTOP)
            wait_for(lambda: not count)
        finally:
            client.kill()


def test_stopping_closes_all_environments(address):
    count = []
    with serving(lambda: Watched(count), address):
        assert len(count) == 1
    assert not count  # also the one that nobody wanted
    with serving(lambda: Watched(count), address) as server, Client(address) as client:
        first, _second = client.play(), client.play()
        assert len(count) == 6
        server.stop()
        assert not count and first.failure()[0] in (CODE.UNAVAILABLE, CODE.CANCELLED)


def test_stopping_refuses_new_streams_and_ends_running_ones_with_a_reason(address):
    """Streams end at their next action. Those that get no action are ended by force."""
    with serving(Catch, address) as server, Client(address) as client:
        running, idle = client.play(1), client.play()
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
            stream.send(ONES)
            assert stream.failure() == reason
        stopping.join()


def test_an_environment_that_cannot_close_frees_its_slot(address, caplog):
    stuck = type("Stuck", (Catch,), {"close": lambda self: ["the door"].index("is stuck")})
    with serving(stuck, address, max_streams=1), Client(address) as client:
        for _ in range(3):
            assert client.play().end() == CODE.OK
    assert "closing stream 2 failed" in caplog.text and "'is stuck' is not in list" in caplog.text


@pytest.mark.parametrize(
    "limit, text",
    [
        ("open_timeout", "stream 1 took longer than --open_timeout 0.5 to open environment 1 of 1"),
        ("step_timeout", "stream 0 took longer than --step_timeout 0.5 for one step"),
    ],
)
def test_environments_that_hang_cost_their_server(address, monkeypatch, caplog, limit, text):
    """Otherwise they would keep all later streams waiting, or its learner."""
    opened, ended, door = [], [], threading.Event()
    monkeypatch.setattr(watchdog.os, "_exit", lambda code: (ended.append(code), door.set()))

    class Hanging(Catch):
        def __init__(self):
            super().__init__()
            opened.append(self)
            assert (limit, len(opened)) != ("open_timeout", 2) or door.wait(GUARD_S)

        def step(self, action):
            assert limit != "step_timeout" or door.wait(GUARD_S)
            return super().step(action)

    with serving(Hanging, address, 1, **{limit: 0.5}), Client(address) as client:
        _first = client.play(1)
        client.play()
    assert ended[0] == watchdog.HUNG_EXIT_CODE
    assert f"{text}; this process ends" in caplog.text


def test_an_address_that_cannot_be_had(address, tmp_path):
    """One in use, of which localhost may have others besides, which are free; one of another host;
    and a file that is no socket, which is kept."""
    count, port = [], free_port()
    other = f"localhost:{port}"
    own = f"127.0.0.1:{port}"
    with serving(lambda: Watched(count), own), Client(own) as client:
        with pytest.raises(UserError, match=f"Cannot listen on {other}: .*ddress already in use"):
            Server(lambda: Environment(lambda: Watched(count), 3), other)
        assert len(count) == 1  # the other's was closed
        client.play(1)
    with pytest.raises(UserError, match="Cannot listen on 192.0.2.1:7777: .*assign requested"):
        Server(lambda: Environment(Catch, 1), "192.0.2.1:7777")
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
