# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Private folders, locks of sockets, and addresses that somebody listens on."""

import contextlib
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv.server import Server
from libtorchbeast.rpcenv.sockets import check_owner, claimed, locked, make_private
from tests.support.client import Client
from tests.support.envs import Catch
from tests.support.makefile import printed


def test_a_folder_is_made_that_nobody_else_may_enter(tmp_path):
    folder = tmp_path / "private"
    for _ in range(2):  # the second time it is there
        make_private(str(folder))
        assert folder.stat().st_mode & 0o777 == 0o700


OTHERS = {
    "open to others": lambda folder: folder.mkdir(mode=0o750),
    "a link": lambda folder: folder.symlink_to("/"),
    "a file": lambda folder: folder.touch(0o600),
    "somebody else's": lambda folder: (folder.mkdir(mode=0o700), os.chown(folder, 12345, -1)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_folder_is_refused(tmp_path, what):
    if what == "somebody else's" and os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    OTHERS[what](folder := tmp_path / "private")
    with pytest.raises(UserError, match=f"{folder}: expected a folder of user .* seen .*remove it"):
        make_private(str(folder))


def test_a_socket_of_another_user_is_refused(tmp_path, monkeypatch):
    address = f"unix:{tmp_path}/s"
    check_owner(address)  # nobody listens yet
    check_owner("127.0.0.1:5000")
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner == 0:  # root's are trusted
        check_owner(address)
        os.chown(tmp_path, 12345, -1)
    with pytest.raises(UserError, match=f"^{address}: expected .* or of root, seen {tmp_path} of"):
        check_owner(address)


def test_a_lock_whose_file_its_owner_removes_meanwhile_is_none(tmp_path):
    path, owner, alone = str(tmp_path / "s"), threading.Lock(), []

    def take(_):
        with contextlib.suppress(BlockingIOError), locked(path):
            alone.append(owner.acquire(blocking=False))
            owner.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(2000)))
    assert alone and all(alone) and not list(tmp_path.iterdir())


def test_a_child_that_ends_leaves_its_parents_lock(tmp_path):
    forks = """
import os, sys
from libtorchbeast.rpcenv.sockets import locked
with locked(sys.argv[1]):
    if os.fork() == 0:
        sys.exit()
    os.wait()
    print(os.listdir(os.path.dirname(sys.argv[1])))
"""
    assert printed(sys.executable, "-c", forks, str(tmp_path / "s")).strip() == "['.s.lock']"
    assert not list(tmp_path.iterdir())


def test_the_socket_of_a_living_server_is_refused_and_that_of_a_dead_one_is_not(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        in_use = pytest.raises(UserError, match="address already in use, by a server that lives")
        with in_use, claimed(f"unix:{path}"):
            pass
        assert list(tmp_path.iterdir()) == [path]  # a refused claim keeps no lock
    assert path.exists()
    with claimed(f"unix:{path}"):
        pass


@pytest.mark.parametrize("address", ["a..b:5000", "unix:no/such/folder"])
def test_an_address_that_cannot_be_is_named(address):
    with pytest.raises(UserError, match=f"^Cannot listen on {address}: "), claimed(address):
        pass


def test_of_servers_that_start_at_once_one_has_the_socket_and_keeps_it(tmp_path):
    address, number = f"unix:{tmp_path}/s", 4

    def start(barrier):
        try:
            return Server(lambda: barrier.wait() * 0 or Environment(Catch, 1), address)
        except UserError as error:
            assert "address already in use, by a server that lives" in str(error)

    for _ in range(3):
        with ThreadPoolExecutor(number) as pool:
            servers = [*filter(None, pool.map(start, [threading.Barrier(number)] * number))]
        try:
            assert len(servers) == 1
            servers[0].start()
            with Client(address) as client:
                client.describe()
        finally:
            for server in servers:
                server.stop()
        assert not list(tmp_path.iterdir())
