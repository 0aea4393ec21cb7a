# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about TLS: who may connect to servers, and which servers a learner trusts."""

import contextlib
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import libtorchbeast
import polybeast_env
from benchmarks import transport
from libtorchbeast.rpcenv.local_servers import LocalServers
from libtorchbeast.rpcenv.server import OPTIONS
from libtorchbeast.rpcenv.tls import Tls
from libtorchbeast.tools.certificates import Pair, certify_host, certify_learner, make_ca
from tests.faults.harness import Figure, promise
from tests.support import pools
from tests.support.client import free_port
from tests.support.envs import Catch
from tests.support.processes import wait_for

HOST = "127.0.0.1"


def identity(pair: Pair, ca: Pair) -> Tls:
    return Tls(*pair.texts(), ca.texts()[0])


def learner_of(ca: Pair) -> Tls:
    return identity(certify_learner(ca, days=1), ca)


def host_of(ca: Pair) -> Tls:
    return identity(certify_host(ca, HOST, days=1), ca)


def strangers(ca: Pair) -> dict[str, Tls | None]:
    """Clients that servers of this CA must refuse."""
    return {
        "no certificate": Tls(b"", b"", ca.texts()[0]),
        "a certificate of another CA": identity(certify_learner(make_ca(1), 1), ca),
        "an expired certificate": identity(certify_learner(ca, -1), ca),
        "a host's certificate": host_of(ca),
        "plaintext": None,
    }


def impostors(ca: Pair) -> dict[str, Tls | None]:
    """Servers that a learner of this CA must not trust."""
    return {
        "another host's name": identity(certify_host(ca, "envs-1", 1), ca),
        "another host's IP address": identity(certify_host(ca, "127.0.0.2", 1), ca),
        "a certificate of another CA": identity(certify_host(make_ca(1), HOST, 1), ca),
        "an expired certificate": identity(certify_host(ca, HOST, -1), ca),
        "the learner's certificate": learner_of(ca),
        "plaintext": None,
    }


def knock(address: str, tls: Tls | None) -> str:
    """The error that the real client gets there, or "" if the server accepts it."""
    try:
        libtorchbeast.describe(address, 10.0, tls)
    except libtorchbeast.StreamError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def serving(tls: Tls | None, create_env: Callable = Catch, address: str | None = None):
    """Yields the address of a server."""
    address = address or f"{HOST}:{free_port()}"
    with pools.serving(create_env, address, tls=tls):
        yield address


class Player:
    """A stream of a learner that plays all the time. A context manager."""

    def __init__(self, address: str, tls: Tls):
        self._sink = transport.Sink(num_envs=2, columns=2)
        description = libtorchbeast.describe(address, 10.0, tls)
        self.pool = libtorchbeast.ActorPool(
            transport.T, self._sink.queue, self._sink.batcher, [address], (), description, tls=tls
        )

    def __enter__(self) -> "Player":
        wait_for(lambda: self._sink.steps)
        return self

    def __exit__(self, *exc_info) -> None:
        self.pool.close()
        self._sink.join()

    def speed_beside(self, act: Callable[[], object]) -> float:
        """Steps per second while `act` runs and until the next rollout arrives."""
        before, start = self._sink.steps, time.monotonic()
        act()
        after = self._sink.steps
        wait_for(lambda: self._sink.steps > after)
        return (self._sink.steps - before) / (time.monotonic() - start)


# =========================================================================================== knocks
def client_hello() -> bytes:
    outgoing, context = ssl.MemoryBIO(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def scan(address: str, number: int) -> None:
    """Makes one connection as in a port scan, and closes it at once."""
    chance = random.Random(number)
    said = [
        b"",
        chance.randbytes(chance.randrange(1, 2000)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(100),
        client_hello(),
        client_hello()[: chance.randrange(1, 200)],
        client_hello() + chance.randbytes(1000),
    ][number % 7]
    with idler(address) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(said)


def idler(address: str) -> socket.socket:
    return socket.create_connection((HOST, int(address.rpartition(":")[2])), timeout=60.0)


def idle_for_good(address: str, count: int, meanwhile: Callable[[], None]) -> float:
    """Opens connections that send nothing or half of a handshake. Waits until the server has closed
    them all, and returns the seconds that it took. Raises TimeoutError if it does not."""
    with contextlib.ExitStack() as stack:
        idlers = [stack.enter_context(idler(address)) for _ in range(count)]
        start = time.monotonic()
        for connection in idlers[::2]:
            connection.sendall(client_hello())
        meanwhile()
        for connection in idlers:
            with contextlib.suppress(ConnectionError):
                while connection.recv(4096):
                    pass
        return time.monotonic() - start


def may_connect(path: Path, user: int) -> bool:
    """Whether a process of that user may connect to the Unix socket."""
    code = (
        "import os, socket, sys; path, user = sys.argv[1], int(sys.argv[2])\n"
        "os.setgroups([]); os.setgid(user); os.setuid(user)\n"  # now: Python may be root's
        "socket.socket(socket.AF_UNIX).connect(path)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, path, str(user)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 or "PermissionError" in done.stderr, done.stderr
    return done.returncode == 0


@promise("no other user gets in", broken_by="another user at a Unix socket, with umask 0")
def no_other_user_gets_in(user: int = 65534) -> list[Figure]:
    """The sockets are those of local servers, and of a server in a folder that everyone may enter.
    Only root can check this, because only root can become another user."""
    flags = polybeast_env.parse("--env CartPole-v1 --num_servers 1".split())
    with contextlib.ExitStack() as stack:
        umask = os.umask(0)
        stack.callback(os.umask, umask)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o777)
        with socket.socket(socket.AF_UNIX) as control:
            control.bind(str(folder / "control"))
            control.listen()
            assert may_connect(folder / "control", user), "it may connect nowhere"
        server = stack.enter_context(pools.serving(Catch, f"unix:{folder}/server"))
        servers = stack.enter_context(LocalServers(flags))
        servers.describe(60.0)
        paths = [Path(a.removeprefix("unix:")) for a in (server.address, *servers.addresses)]
        assert all(may_connect(path, os.getuid()) for path in paths)
        open_to_others = sum(may_connect(path, user) for path in paths)
    return [Figure("sockets open to another user", open_to_others, at_most=0)]


@promise(
    "no stranger gets in",
    broken_by="no, a wrong, an expired certificate; a host's shown by a learner; plaintext to TLS; "
    "a port scan; connections that idle or leave a handshake half done; servers with another name "
    "or CA, an expired certificate, or plaintext",
)
def no_stranger_gets_in(knocks: int = 100, scans: int = 3000, idle: int = 200) -> list[Figure]:
    ca, opened = make_ca(1), []
    learner, hang_up_s = learner_of(ca), OPTIONS["grpc.server_handshake_timeout_ms"] / 1000

    def create_env() -> Catch:
        opened.append(Catch())
        return opened[-1]

    def admitted(tls: Tls | None, count: int = 1) -> int:
        return sum(knock(address, tls) == "" for _ in range(count))

    with serving(host_of(ca), create_env) as address, Player(address, learner) as player:
        own, counts, friends, seconds = len(opened), [], [], []
        for tls in strangers(ca).values():
            player.speed_beside(lambda: counts.append(admitted(tls, knocks)))  # noqa: B023
        player.speed_beside(lambda: [scan(address, i) for i in range(scans)])
        alone = player.speed_beside(lambda: time.sleep(2.0))
        meanwhile = lambda: friends.append(admitted(learner))
        be_idle = lambda: seconds.append(idle_for_good(address, idle, meanwhile))
        beside = player.speed_beside(be_idle)
        failures = sum(stream.failures for stream in player.pool.status())
        opened_by_strangers = len(opened) - own
    believed = 0
    for tls in impostors(ca).values():
        with serving(tls) as address:
            believed += admitted(learner, knocks)
    return [
        Figure("strangers admitted", sum(counts) + opened_by_strangers, at_most=0),
        Figure("impostors believed", believed, at_most=0),
        Figure("friends admitted beside the idle", sum(friends), at_least=1),
        Figure("failures of the running stream", failures, at_most=0),
        Figure("its speed beside the idle, to that alone", beside / alone, at_least=0.5),
        Figure("until the idle were hung up on", seconds[0], "s", at_most=hang_up_s + 5),
    ]
