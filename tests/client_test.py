# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The learner's search for its servers, and its watch on their streams."""

import contextlib
import socket
from types import SimpleNamespace

import pytest

import libtorchbeast
from libtorchbeast.rpcenv import client
from libtorchbeast.rpcenv.client import ServersLost, StreamMonitor, first_description


def test_silent_addresses_do_not_stretch_the_timeout(tmp_path):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in silent]
        asked = []
        with pytest.MonkeyPatch.context() as patch:
            describe = libtorchbeast.describe
            watch = lambda address, timeout, _: asked.append(timeout) or describe(address, timeout)
            patch.setattr(libtorchbeast, "describe", watch)
            with pytest.raises(ServersLost, match="no environment server for 1 s"):
                first_description(addresses, 1.0)
    assert asked[0] <= 1.0 and sum(asked) <= 1.0 + 0.1 * len(asked)


class Pool:
    """An ActorPool whose streams are as the test says."""

    ACTIVITIES = ("transport", "actor_waiting")

    def __init__(self, *streams):
        self.streams, self.waited = streams, 0.0

    def status(self):
        names = ("connected", "failures", "last_error")
        return [SimpleNamespace(address="unix:/s", **dict(zip(names, s))) for s in self.streams]  # noqa: B905

    def take_events(self):
        return []

    def seconds(self):
        return [1.0, self.waited]


def test_streams_that_open_slowly_are_not_lost(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(client.time, "monotonic", lambda: now)
    pool = Pool((False, 0, ""), (False, 3, "UNAVAILABLE: gone"))
    monitor = StreamMonitor(pool, timeout=60.0)
    for _ in range(10):
        now += 50.0
        monitor.check()
    pool.streams = [(False, 1, "INTERNAL: slow"), (False, 4, "UNAVAILABLE: gone")]
    now += 60.0
    monitor.check()
    now += 1.0
    with pytest.raises(ServersLost, match="for 60 s"):
        monitor.check()
