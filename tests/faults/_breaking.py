# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Servers whose processes can be found and killed, for the promises about faults."""

import contextlib
import os
import signal
import sys

import psutil

from tests.support.processes import Command


class ServerFleet(Command):
    """`python -m polybeast_env` with a server on each of `addresses`, which are Unix sockets in
    `folder` by default. Its supervisor restarts servers that end. Used as a context manager."""

    def __init__(self, folder, *flags, count=4, addresses=None, before=(), **environment):
        self.addresses = addresses or [f"unix:{folder}/server.{i}" for i in range(count)]
        command = [*before, sys.executable, "-m", "polybeast_env", *flags]
        command += ["--server_addresses", ",".join(self.addresses)]
        super().__init__(folder, command, **environment)

    def server(self, i):
        """Waits for a process that serves on address i, and returns its id."""
        return self.wait_for(lambda: listener(self.session(), self.addresses[i]))

    def kill(self, i):
        os.kill(self.server(i), signal.SIGKILL)


def listener(pids, address):
    """Which of the processes serves on the address, or None."""
    kind, _, place = address.rpartition(":")
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # it has just ended
            sockets = psutil.Process(pid).net_connections("unix" if kind == "unix" else "tcp")
            if kind == "unix":
                found = [socket.laddr for socket in sockets]
            else:
                found = [str(s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN]
            if place in found:
                return pid
    return None
