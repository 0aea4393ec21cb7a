# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The learner's search for its servers, and its watch on their streams."""

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import libtorchbeast
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv import client
from libtorchbeast.rpcenv.client import ServersLost, StreamMonitor, first_description
from tests.support.envs import Catch
from tests.support.extension import GUARD_S
from tests.support.pools import serving
from tests.support.processes import wait_for


def test_silent_addresses_do_not_stretch_the_timeout(monkeypatch):
    asked, describe = [], libtorchbeast.describe
    watch = lambda address, timeout, _: asked.append(timeout) or describe(address, timeout)
    monkeypatch.setattr(libtorchbeast, "describe", watch)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in silent]
        with pytest.raises(ServersLost, match="no environment server for 1 s"):
            first_description(addresses, 1.0)
    assert asked[0] <= 1.0 and sum(asked) <= 1.0 + 0.1 * len(asked)


def test_servers_that_come_late_are_waited_for(address, monkeypatch, caplog):
    monkeypatch.setattr(client, "Reminder", lambda: SimpleNamespace(due=bool))  # due at once
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(first_description, [address], GUARD_S)
        wait_for(lambda: "Waiting for a server" in caplog.text)
        with serving(Catch, address):
            assert found.result().name == "Test-v0"
    assert f"Waiting for a server. {address}: there is no such socket\n" in caplog.text


class Pool:
    """An ActorPool whose streams are as the test says."""

    ACTIVITIES = ("transport", "actor_waiting")

    def __init__(self, *streams):
        self.streams, self.waited, self.events = streams, 0.0, []
        self.take_events, self.seconds = lambda: self.events, lambda: [1.0, self.waited]

    def status(self):
        names = ("connected", "failures", "last_error", "opening")
        before = dict(address="unix:/s", opening=False)
        return [SimpleNamespace(**before | dict(zip(names, s))) for s in self.streams]  # noqa: B905


@pytest.fixture
def passes(monkeypatch):
    """Returns a function that lets a number of seconds pass in steps, and looks after each."""
    now = 1000.0
    monkeypatch.setattr(client.time, "monotonic", lambda: now)

    def passes(monitor, seconds, step=1.0):
        nonlocal now
        for _ in range(int(seconds / step)):
            now += step
            monitor.check()

    return passes


def test_a_failure_that_repeats_is_told_seldom_and_each_new_one_at_once(passes, caplog):
    pool = Pool(*[(True, 0, "")] * 2)
    monitor = StreamMonitor(pool, timeout=1e6)

    def told(*errors):
        pool.events = [f"actor 1, unix:/s: {error}" for error in errors]
        failures = pool.streams[1][1] + len(errors)
        pool.streams = [(True, 0, ""), (not errors, failures, (*errors, "")[0])]
        caplog.clear()
        passes(monitor, 1)
        failed = [m for m in caplog.messages if m.startswith("Stream failed: ")]
        return [m.removeprefix("Stream failed: actor 1, unix:/s: ") for m in failed]

    gone = [told("gone") for _ in range(50)]
    assert [i for i, texts in enumerate(gone) if texts] == [0, 5, 10, 20, 40]
    assert told("gone", "other", "gone") == ["other"]
    assert told() == []
    assert told("gone") == ["gone"] and told("gone") == []


def test_of_a_server_dtypes_that_numpy_has_and_sets_that_can_be_one_hot_are_taken():
    leaves = {"suit": ((2,), "int64"), "many": ((), "int64"), "image": ((3, 9, 9), "int64")}
    told = dict(name="X", num_envs=1, action_kind="discrete", action_sizes=[2], frames_per_step=1)
    told |= dict(stacks={}, sets={"suit": 4, "many": 2**32 - 1, "image": 4})
    description = SimpleNamespace(**told, observations=leaves)
    assert client.spec_of(description).sets == {"suit": 4}
    leaves["speed"] = ((2,), "bfloat16")
    with pytest.raises(UserError, match="^X: speed: expected a dtype of NumPy, seen bfloat16$"):
        client.spec_of(description)
    del leaves["speed"]
    for name in ("past", "column/new_steps"):
        leaves[name] = ((), "int64")
        with pytest.raises(UserError, match=f"^X: the observation '{name}' has the name of a row"):
            client.spec_of(description)
        del leaves[name]
    leaves["action_mask"] = ((3,), "uint8")
    with pytest.raises(UserError, match=r"^action_mask: expected .* \[2\], .* seen uint8\[3\]"):
        client.spec_of(description)


def test_streams_that_open_slowly_are_told_and_not_lost(passes, caplog):
    pool = Pool((False, 0, ""), (False, 3, "UNAVAILABLE: gone"))
    monitor = StreamMonitor(pool, timeout=60.0)
    passes(monitor, 500, 5.0)
    told = [text.partition(" no stream")[0] for text in caplog.messages]
    assert told == [f"After {seconds} s" for seconds in (5, 10, 20, 40, 80, 160, 320)]
    assert "(--envs_per_server)" in caplog.text
    pool.streams = [(False, 1, "INTERNAL: slow"), (False, 4, "UNAVAILABLE: gone")]
    passes(monitor, 60, 5.0)
    passes(monitor, 100, 100.0)  # this program was stopped, and perhaps the servers with it
    with pytest.raises(ServersLost, match="for 60 s"):
        passes(monitor, 1)


def test_a_server_that_came_back_in_time_may_open_its_environments(passes):
    """Its own limit is --open_timeout for each of them. Whatever begins later is too late: else
    servers whose environments fail again and again would never be lost."""
    pool = Pool((True, 0, ""))
    monitor = StreamMonitor(pool, timeout=60.0)
    for seconds, *stream in [
        (1, True, 0, ""),
        (50, False, 9, "UNAVAILABLE: gone"),
        (500, False, 9, "UNAVAILABLE: gone", True),
        (1, True, 9, "UNAVAILABLE: gone"),
        (30, False, 10, "UNAVAILABLE: gone"),
        (30, False, 11, "INTERNAL: the door is locked", True),
    ]:
        pool.streams = [stream]
        passes(monitor, seconds)
    pool.streams = [(False, 12, "INTERNAL: the door is locked", True)]
    with pytest.raises(ServersLost, match="for 60 s"):
        passes(monitor, 1)


ALIKE = "INTERNAL: Traceback\n{}\nRuntimeError: the sofa".format


def test_local_streams_that_all_fail_alike_end_the_run():
    pool = Pool((False, 1, ALIKE("in step")), (False, 1, ALIKE("in reset")))
    StreamMonitor(pool, 60.0).check()  # other machines have time
    with pytest.raises(UserError, match="no stream has .* alike: RuntimeError: the sofa$"):
        StreamMonitor(pool, 60.0, are_local=True).check()
    pool.streams = [(False, 1, "INTERNAL: Traceback\nUserError: Reward: expected")] * 2
    with pytest.raises(UserError, match="alike: Reward: expected$"):
        StreamMonitor(pool, 60.0, are_local=True).check()
    pool.waited = 0.1  # for the learner, with a complete rollout
    StreamMonitor(pool, 60.0, are_local=True).check()


def test_local_streams_that_may_recover_are_tried_again():
    for streams in (
        [(False, 1, ALIKE("a single stream, once"))],
        [(False, 5, ALIKE("")), (False, 0, "")],  # one has not failed
        [(False, 5, ALIKE("")), (False, 1, ALIKE("") + " and the table")],
        [(False, 5, "UNAVAILABLE: Socket closed")] * 2,  # killed servers
    ):
        StreamMonitor(Pool(*streams), 60.0, are_local=True).check()


def test_a_socket_that_a_stranger_has_taken_since_is_refused(passes, monkeypatch):
    monitor = StreamMonitor(Pool((True, 0, "")), timeout=10.0)
    passes(monitor, 2)
    refuse = Mock(side_effect=UserError("unix:/s: expected a server of user 1"))
    monkeypatch.setattr(client, "check_owner", refuse)
    with pytest.raises(UserError, match="expected a server of user 1"):
        passes(monitor, 1)
    refuse.assert_called_once_with("unix:/s")
