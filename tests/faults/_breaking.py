# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Servers whose processes can be found, killed and stopped, for the promises about faults."""

import os
import signal
import sys
from pathlib import Path

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

    def stop(self, i):
        """Stops server i with SIGSTOP, so that it does not answer but lives. Returns its id."""
        pid = self.server(i)
        os.kill(pid, signal.SIGSTOP)
        return pid

    def cont(self, i):
        os.kill(self.server(i), signal.SIGCONT)


def local_servers(program, count):
    """Waits for all servers that a learner (a Poly) starts, and returns their addresses."""
    sockets = lambda: list(program.temporary.glob("torchbeast-*/server.*"))
    program.wait_for(lambda: len(sockets()) == count)
    return [f"unix:{path}" for path in sorted(sockets())]


def listener(pids, address):
    """Which of the processes listens on the address, or None. It is found in /proc, as a system
    administrator would find it."""
    for pid in pids:
        try:
            inodes = _listening(pid, address)
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except (FileNotFoundError, ProcessLookupError):  # it has just ended or closed a descriptor
            continue
        if inodes & {link.removeprefix("socket:[").rstrip("]") for link in links}:
            return pid
    return None


def _listening(pid, address):
    """The inodes of the sockets that listen on the address in the process's network namespace."""
    if address.startswith("unix:"):
        path, flag = address.removeprefix("unix:"), "00010000"  # __SO_ACCEPTCON
        rows = _table(f"/proc/{pid}/net/unix")
        return {row[6] for row in rows if row[3] == flag and row[-1] == path}
    port, listens = f":{int(address.rpartition(':')[2]):04X}", "0A"
    rows = _table(f"/proc/{pid}/net/tcp") + _table(f"/proc/{pid}/net/tcp6")
    return {row[9] for row in rows if row[3] == listens and row[1].endswith(port)}


def _table(path):
    return [line.split() for line in Path(path).read_text().splitlines()[1:]]
