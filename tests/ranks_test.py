# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Ranks: what they may do, what each gets, and how their rows become one. gradients_test.py has
their updates, pulse_test.py how they notice each other, and several_learners_test.py runs and
loses them."""

from types import SimpleNamespace

import pytest

import monobeast
from libtorchbeast.checkpoint import parse_for_run
from libtorchbeast.distributed import ranks
from libtorchbeast.distributed.pulse import RankLost
from libtorchbeast.flags import UserError
from tests.support.monobeast import beast, refusal
from tests.support.ranks import Meeting, RankInThread


def test_the_rows_of_ranks_become_one():
    """The numbers of updates are of all ranks already: those of other ranks are only older."""
    updates = dict(total_loss=1.0, grad_norm=2.0, mean_rho=0.5, temperature=3.0)
    older = {name: 10 * value for name, value in updates.items()}
    assert ranks.merged([updates, older]) == updates
    own = dict(step=10.0, updates=3.0, streams=4.0, lag_max=1.0, share_learning=0.2, rank_sps=50.0)
    other = dict(step=9.0, streams=5.0, lag_max=3.0, share_learning=0.4, rank_sps=40.0)
    assert ranks.merged([own, other]) == pytest.approx(
        dict(step=10, updates=3, streams=9, lag_max=3, share_learning=0.3)
        | dict(slowest_rank=1, sps_min=40, sps_max=50)
    )


@pytest.fixture
def place(monkeypatch):
    """Returns a function that tells this process which rank it is, as torchrun would."""
    return lambda **place: [monkeypatch.setenv(k, str(v)) for k, v in place.items()]


@pytest.mark.parametrize(
    "flags, text",
    [
        (("--num_actors", 0), "expected at least 1"),
        (("--mode", "test"), "expected train"),
        (("--learner_device", "cuda:0"), "expected no number"),
        (("--inference_device", "cuda:1"), "expected no number"),
    ],
)
def test_what_several_learners_cannot_do_is_refused(tmp_path, place, flags, text):
    place(WORLD_SIZE=2, RANK=0)
    assert f"{flags[0]} {flags[1]}: {text}" in refusal(tmp_path, *flags)


def test_nor_may_they_resume_a_run_in_order(savedir, place, monkeypatch):
    place(WORLD_SIZE=2, RANK=0)
    monkeypatch.setattr(ranks, "join", lambda draft: None)
    with pytest.raises(UserError, match="--num_actors 0: expected at least 1"):
        parse_for_run(monobeast.make_parser, ["--savedir", str(savedir), "--xpid", "run"])


def test_a_run_that_restarts_needs_a_name(place):
    place(WORLD_SIZE=2)
    ranks.check_flags(monobeast.make_parser().parse_args([]))
    place(TORCHELASTIC_MAX_RESTARTS=3)
    ranks.check_flags(monobeast.make_parser().parse_args(["--xpid", "a"]))
    with pytest.raises(UserError, match="--xpid None: expected a name"):
        ranks.check_flags(monobeast.make_parser().parse_args([]))


@pytest.mark.parametrize("flags", [("--batch_sise", 8), ("--num_actors", 0)])
def test_a_machine_says_once_what_is_wrong_with_a_command_line(tmp_path, place, flags):
    place(WORLD_SIZE=4, RANK=2, LOCAL_RANK=0)
    assert flags[0] in refusal(tmp_path, *flags)
    place(LOCAL_RANK=1)
    with pytest.raises(SystemExit) as refused:
        beast(tmp_path, *flags)
    assert refused.value.code == 1  # Python prints nothing


def test_a_batch_and_servers_are_divided(place):
    place(WORLD_SIZE=3, RANK=1)
    assert ranks.share(6) == 2
    with pytest.raises(UserError, match="--batch_size 8: expected a multiple of 3"):
        ranks.share(8)
    assert ranks.own_part([*"abcd"], True) == ["b"] and len(ranks.own_part("abcd", False)) == 4
    with pytest.raises(UserError, match="--server_addresses: 1 for 3 ranks"):
        ranks.own_part(["a"], True)


def test_ranks_with_different_numbers_of_actors_share_no_seed(place):
    numbers = []
    for rank, count in enumerate((4, 4, 2)):
        place(WORLD_SIZE=3, RANK=rank)
        numbers += [ranks.own_number(), *map(ranks.own_number, range(count))]
    assert len(set(numbers)) == len(numbers) and numbers[1:5] == [0, 1, 2, 3]


def test_a_sum_on_a_device_is_broken_off_when_a_rank_is_lost():
    aborted, lost = [], RankLost("rank 1 on there has ended")
    own = RankInThread(0, Meeting(2))
    own._timeout, own._group = 60, SimpleNamespace(abort=lambda: aborted.append(True))
    own.pulse.failure = lost
    with pytest.raises(RankLost) as error:
        own._finish(lambda: SimpleNamespace(is_completed=lambda: False), on_cpu=False)
    assert error.value is lost and aborted == [True]
