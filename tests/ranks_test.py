# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Ranks: what they may do, what each gets, and how their rows become one. gradients_test.py has
their updates, several_learners_test.py runs them, and faults_ranks_test.py loses them."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

import monobeast
from libtorchbeast import ranks
from libtorchbeast.flags import UserError
from tests.support.client import free_port
from tests.support.monobeast import beast, refusal
from tests.support.processes import GUARD_S, ROOT


def test_the_rows_of_ranks_become_one():
    own = dict(step=10.0, updates=3.0, streams=4.0, lag_max=1.0, share_learning=0.2, rank_sps=50.0)
    other = dict(step=9.0, streams=5.0, lag_max=3.0, share_learning=0.4, rank_sps=40.0)
    assert ranks.merged([own, other]) == pytest.approx(
        dict(step=10, updates=3, streams=9, lag_max=3, share_learning=0.3)
        | dict(slowest_rank=1, sps_min=40, sps_max=50)
    )


@pytest.mark.parametrize(
    "flags, text",
    [
        (("--num_actors", 0), "--num_actors 0: expected at least 1"),
        (("--autotune",), "--autotune 10.0: expected none"),
        (("--mode", "test"), "--mode test: expected train"),
        (("--learner_device", "cuda:0"), "--learner_device cuda:0: expected cpu, or none"),
    ],
)
def test_what_several_learners_cannot_do_is_refused(tmp_path, monkeypatch, flags, text):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert text in refusal(tmp_path, *flags)


def test_a_run_that_restarts_needs_a_name(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks.check_flags(monobeast.make_parser().parse_args([]))
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    ranks.check_flags(monobeast.make_parser().parse_args(["--xpid", "a"]))
    with pytest.raises(UserError, match="--xpid None: expected a name"):
        ranks.check_flags(monobeast.make_parser().parse_args([]))


@pytest.mark.parametrize("flags", [("--batch_sise", 8), ("--num_actors", 0)])
def test_a_machine_says_once_what_is_wrong_with_a_command_line(tmp_path, monkeypatch, flags):
    for name, value in dict(WORLD_SIZE="4", RANK="2", LOCAL_RANK="0").items():
        monkeypatch.setenv(name, value)
    assert flags[0] in refusal(tmp_path, *flags)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit) as refused:
        beast(tmp_path, *flags)
    assert refused.value.code == 1  # Python prints nothing


def test_a_batch_and_servers_are_divided(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    assert ranks.share(6) == 2
    with pytest.raises(UserError, match="--batch_size 8: expected a multiple of 3"):
        ranks.share(8)
    assert ranks.own_part([*"abcd"], True) == ["b"] and len(ranks.own_part("abcd", False)) == 4
    with pytest.raises(UserError, match="--server_addresses: 1 for 3 ranks"):
        ranks.own_part(["a"], True)


LOSES_RANK_1 = """
import os, sys, torch
from libtorchbeast import ranks, workers
own = ranks.Ranks(timeout=4)
own.wakeup = workers.PipeEvent()  # as if there were a run to save
x = torch.ones(2)
own.sum(x)
assert x.tolist() == [3, 3] and own.gathered(torch.ones(1)).tolist() == [[1], [1], [1]]
assert own.from_rank_0(b"zero" if own.rank == 0 else b"one") == b"zero"
if own.rank == 1:
    os.kill(os.getpid(), int(sys.argv[1]))
try:
    own.sum(x)
except ranks.RankLost as error:
    print(error)
own.close(None)
"""


LEAVES = """
import sys
from libtorchbeast import ranks
own = ranks.Ranks(timeout=60)
if own.rank == 0:
    sys.exit("a wrong flag")
own.settings()
"""


@contextlib.contextmanager
def started(count, program, *words):
    """So many processes that run the program, a text, as ranks."""
    place = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-c", program, *map(str, words)]
    own = dict(cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    places = [os.environ | place | {"RANK": str(i)} for i in range(count)]
    processes = [subprocess.Popen(command, env=each, **own) for each in places]
    try:
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_all_name_the_rank_that_is_lost(number):
    """Three processes, because of two the other one is always the one that is lost."""
    with started(3, LOSES_RANK_1, int(number)) as processes:
        for each in (processes[0], processes[2]):
            printed = each.communicate(timeout=GUARD_S)[0]
            assert each.returncode == 1
            stopped = "has given no sign of life for 4 s (--rank_timeout)"
            why = stopped if number == signal.SIGSTOP else "has ended or cannot be reached any more"
            assert printed.startswith("rank 1 on ") and printed.strip().endswith(why)


def test_a_rank_that_leaves_before_the_run_says_goodbye():
    with started(2, LEAVES) as processes:
        said = [each.communicate(timeout=GUARD_S)[1].strip() for each in processes]
        assert [each.returncode for each in processes] == [1, 1], said
    assert said[0] == "a wrong flag"  # torch does not abort the process
    assert said[1].endswith("failed: it has ended before its run began")
