# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Processes that notice which of them is lost, or has left."""

import contextlib
import os
import subprocess
import sys

import pytest

from libtorchbeast.distributed.pulse import RankLost
from libtorchbeast.distributed.ranks import Ranks
from tests.support.client import free_port
from tests.support.processes import GUARD_S, ROOT

LOSES_RANK_1 = """
import os, signal, time, torch
from libtorchbeast import workers
from libtorchbeast.distributed import pulse, ranks
own, heard = ranks.Ranks(timeout=4), []
own.pulse.hear = lambda rank, told: heard.append((rank, len(told.get("games", ""))))
own.pulse.tell = lambda: {"games": 100_000 * "x"}  # however long a message is
while own.rank == 0 and not {(1, 100_000), (2, 100_000)} <= {*heard}:
    time.sleep(0.01)
own.pulse.wakeup = workers.PipeEvent()  # as if there were a run to save
ranks.STOP_S = 60  # the loss comes first
if own.rank == 2:
    own.ask_to_stop()
while not own.pulse.wants_to_stop():  # rank 0 hears it from 2, and 1 from 0
    time.sleep(0.01)
x = torch.ones(2)
own.sum(x)
assert x.tolist() == [3, 3] and own.gathered(torch.ones(1)).tolist() == [[1], [1], [1]]
assert own.from_rank_0(b"zero" if own.rank == 0 else b"one") == b"zero"
if own.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    own.sum(x)
except pulse.RankLost as error:
    print(error)
own.close(None)
"""


LEAVES = """
import sys
from libtorchbeast.distributed import ranks
own = ranks.Ranks(timeout=60)
if own.rank == 0:
    sys.exit("a wrong flag")
own.settings()
"""


@contextlib.contextmanager
def started(count, program):
    """So many processes that run the program, a text, as ranks."""
    place = dict(WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    command = [sys.executable, "-c", program]
    own = dict(cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    places = [os.environ | place | dict(RANK=str(i)) for i in range(count)]
    processes = [subprocess.Popen(command, env=each, **own) for each in places]
    try:
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.communicate()


def test_any_rank_may_stop_all_and_all_name_the_rank_that_is_lost():
    """Three processes, because of two the other one is always the one that is lost. One that is
    killed is in several_learners_test.py."""
    with started(3, LOSES_RANK_1) as processes:
        for each in (processes[0], processes[2]):
            printed = each.communicate(timeout=GUARD_S)[0]
            assert each.returncode == 1 and printed.startswith("rank 1 on ")
            assert printed.endswith("has given no sign of life for 4 s (--rank_timeout)\n")


def test_a_rank_that_leaves_before_the_run_says_goodbye():
    with started(2, LEAVES) as processes:
        said = [each.communicate(timeout=GUARD_S)[1].strip() for each in processes]
        assert [each.returncode for each in processes] == [1, 1], said
    assert said[0] == "a wrong flag"  # torch does not abort the process
    assert said[1].endswith("failed: it has ended early, and printed why")


def test_a_rank_that_cannot_connect_says_how_to_name_the_interface(monkeypatch):
    """A machine's name may lead to 127.0.0.1, where the ranks of others do not find it."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none")
    with pytest.raises(RankLost, match="^rank 0 on .* cannot connect .*GLOO_SOCKET_IFNAME can"):
        Ranks(timeout=5)
