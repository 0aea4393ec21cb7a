# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Several ranks: as threads of one process, which exchange tensors without a network, and as
torchrun starts them, on one machine or on two."""

import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import torch

from libtorchbeast.distributed.ranks import Ranks
from tests.support.network import HOSTS, ip, on, two_machines
from tests.support.processes import Program, _read

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


class Meeting:
    """Where the threads of `in_threads` exchange tensors."""

    def __init__(self, count):
        self.barrier = threading.Barrier(count, timeout=60)
        self.tensors = [torch.zeros(0)] * count
        self.data = b""


class RankInThread(Ranks):
    """Has a pulse that never fails: threads do not die alone."""

    def __init__(self, rank, meeting):
        self.rank, self.count, self._meeting = rank, meeting.barrier.parties, meeting
        self.pulse = SimpleNamespace(failure=None)
        self.steps, self.sums, self.has_asked = 0, 0, False

    def ask_to_stop(self):
        self.has_asked = True

    def learned(self, steps):
        self.steps += steps

    def sum(self, tensor):
        self.sums += 1
        meeting = self._meeting
        meeting.tensors[self.rank] = tensor.clone()
        meeting.barrier.wait()
        total = sum(meeting.tensors)
        meeting.barrier.wait()
        tensor.copy_(total)

    def from_rank_0(self, data):
        if self.rank == 0:
            self._meeting.data = data
        self._meeting.barrier.wait()
        return self._meeting.data

    def name(self, other=None):
        return f"rank {self.rank if other is None else other} on here"


def in_threads(count, work):
    """Calls `work(ranks)` in one thread for each rank, and returns what they return."""
    meeting = Meeting(count)

    def one(rank):
        try:
            return work(RankInThread(rank, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


class Torchrun(Program):
    """A beast with two ranks on this machine."""

    def __init__(self, savedir, *flags, options=(), **kwargs):
        before = [*TORCHRUN, "--nproc_per_node", 2, "--no-python", *options]
        super().__init__(savedir, *flags, before=before, **kwargs)

    def rank(self, number):
        """The process id of a rank."""
        own = f"RANK={number}".encode()
        for pid in self.session():
            words = _read(f"/proc/{pid}/cmdline").split(b"\0")
            if b"--xpid" in words and b"--no-python" not in words:
                if own in _read(f"/proc/{pid}/environ").split(b"\0"):
                    return pid
        return None


@contextlib.contextmanager
def on_two_machines(folder, *flags, options=()):
    """Yields two programs, each a torchrun with one rank, and a function that sets the cable
    between their machines "down" or "up"."""
    with two_machines() as machines, contextlib.ExitStack() as stack:
        programs = []
        for number, machine in enumerate(machines):
            own = Path(folder) / machine
            own.mkdir()
            words = ["--nnodes", 2, "--node_rank", number, "--master_addr", HOSTS["envs"]]
            before = [*on(machines[machine]), *TORCHRUN, *words, "--no-python", *options]
            program = Program(own, *flags, before=before, GLOO_SOCKET_IFNAME="cable")
            programs.append(stack.enter_context(program))
        yield *programs, lambda state: ip("-n", machines["envs"], "link", "set", "cable", state)
