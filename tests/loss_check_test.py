# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A wrong loss ends in one sentence, before an actor starts."""

import re

import pytest
import torch
from torch import nn

import monobeast
from libtorchbeast.flags import UserError
from libtorchbeast.loss_check import check_loss
from libtorchbeast.models import make_net
from tests.support.actors import CallsNet, make_actor, make_flags
from tests.support.compare import assert_same
from tests.support.monobeast import IN_ORDER, beast

PASSES = ("--passes", "2", "--minibatches", "2", "--ppo_clip", "0.2")
RIGHT = monobeast.loss


def checked(targets, loss, *argv):
    flags = make_flags("--passes", "1", "--minibatches", "1", *argv)
    spec = make_actor(monobeast.Net).env.spec
    return check_loss(make_net(monobeast.Net, spec, flags), spec, flags, targets, loss, {})


def and_more(**more):
    return lambda batch: RIGHT(batch) | {k: f(batch) for k, f in more.items()}


@pytest.mark.parametrize("argv", [(), PASSES, ("--use_lstm",), ("--use_lstm", *PASSES)])
def test_it_gives_the_columns_of_the_loss_and_changes_nothing(argv):
    """Not a buffer either, nor if the loss fails."""
    spec = make_actor(monobeast.Net).env.spec
    flags = make_flags(*argv)
    net = make_net(CallsNet, spec, flags)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    loss = and_more(novelty=lambda b: b.mean(torch.rand_like(b.reward)), total=lambda b: b.reward)
    results, columns = check_loss(net, spec, flags, monobeast.targets, loss, {})
    assert sorted(columns) == ["novelty", "total"]
    assert results["scalars"].keys() == {"pg_loss", "baseline_loss", "novelty"}
    with pytest.raises(UserError):
        check_loss(net, spec, flags, monobeast.targets, raises, {})
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(dict(net.state_dict()), before)
    assert all(p.grad is None for p in net.parameters())
    assert check_loss(net, spec, flags, monobeast.targets, RIGHT, {})[1] == []  # it has meanings


def lacks_the_total(batch):
    return dict(pg_loss=batch.mean(batch.reward))


def raises(batch):
    return dict(total_loss=batch.outputs["embedding"].mean())


NET = (
    r" \(\S*loss_check_test.py:\d+\); the network is libtorchbeast.models.VectorNet, by "
    r"Net.for_vectors \(without that line it is Net\), with policy_logits, baseline; batch.now has "
    r"frame, .*$"
)
WRONG = {
    "no dict": (lambda b: b.reward.mean(), r"returned float32\[\]; expected a dict"),
    "no total": (lacks_the_total, r"returned \['pg_loss'\]; expected total_loss among"),
    "no gradient": (
        lambda b: dict(total_loss=b.mean(b.reward)),
        r"returned total_loss float32\[\]; expected a scalar of floats with a gradient",
    ),
    "no scalar": (
        lambda b: dict(total_loss=b.outputs["baseline"]),
        r"returned total_loss float32\[3, 2\]; expected a scalar of floats",
    ),
    "shape": (
        and_more(kl=lambda b: torch.zeros(3, 2, 5)),
        r"returned kl float32\[3, 2, 5\]; expected a scalar, a tensor \[3, 2\], or a vec",
    ),
    "nameless": (and_more(**{"": lambda b: b.reward}), r"returned \[''\], which are taken"),
    "a number": (and_more(kl=lambda b: 0.5), r"returned kl a float; expected a tensor"),
    "no name": (
        lambda b: RIGHT(b) | {1: b.count, "a\nb": b.count},
        r"returned a dict with the keys \[1, 'a\\nb'\]; expected names",
    ),
    "taken": (
        and_more(step=lambda b: b.count, stops=lambda b: b.count, rating=lambda b: b.count),
        r"returned \['rating', 'step', 'stops'\], which are taken; expected other names",
    ),
    "prefix": (and_more(game_kl=lambda b: b.count), r"returned \['game_kl'\]; expected names"),
    "another output": (raises, rf"raised KeyError: 'embedding'{NET}"),
    "another target": (
        lambda b: dict(total_loss=b.mean(b.targets["velue"])),
        r"raised KeyError: 'velue' .*; batch.targets has v, advantage, value$",
    ),
    "another flag": (
        lambda b: dict(total_loss=b.flags.novelty_cost * b.outputs["baseline"].mean()),
        r"raised AttributeError: there is no flag --novelty_c",
    ),
    "broadcast": (
        lambda b: dict(total_loss=b.mean(b.reward.sum(0))),
        r"raised ValueError: mean: expected a number for each",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_loss_is_named(wrong):
    loss, said = WRONG[wrong]
    with pytest.raises(UserError) as error:
        checked(monobeast.targets, loss)
    assert re.match(rf"loss\(\) {said}", str(error.value)), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("argv", [(), PASSES])
@pytest.mark.parametrize("targets, said", [
    (lambda b: dict(v=b.outputs["baseline"]), r"v float32\[4, 2\]; expected \[3, 2, \.\.\.\]"),
    (lambda b: None, "a NoneType; expected a dict"),
    (raises, "KeyError: 'embedding'"),
], ids=["all rows", "None", "error"])  # fmt: skip
def test_wrong_targets_are_named(argv, targets, said):
    with pytest.raises(UserError, match=rf"targets\(\) (returned|raised) {said}"):
        checked(targets, RIGHT, *argv)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_run_with_a_wrong_loss_ends_in_one_sentence(tmp_path, monkeypatch, from_the_start):
    """If it is wrong from the start, before anything is written."""
    later = lambda batch: (lacks_the_total if batch.progress else RIGHT)(batch)
    monkeypatch.setattr(monobeast, "loss", lacks_the_total if from_the_start else later)
    with pytest.raises(SystemExit) as error:
        beast(tmp_path, *IN_ORDER, "--env", "CartPole-v1")
    said = r"error: loss\(\) returned \['pg_loss'\]; expected total_loss among"
    assert re.search(said, error.value.code) and "\n" not in error.value.code
    assert bool(list(tmp_path.rglob("logs.csv"))) != from_the_start


def test_what_cannot_read_zeros_is_called_with_ones():
    def loss(batch):
        classes = batch.next["frame"].long().sum(-1) - 1  # -1 for zeros
        own = nn.functional.one_hot(classes, 10).float().sum(-1)
        found = monobeast.loss(batch)
        return found | dict(total_loss=found["total_loss"] + batch.mean(own))

    checked(monobeast.targets, loss)


def test_vectors_are_refused_with_passes():
    loss = and_more(priorities=lambda batch: batch.weights.sum(0))
    checked(monobeast.targets, loss)
    with pytest.raises(UserError, match=r"vectors \['priorities'\]; expected none with --passes"):
        checked(monobeast.targets, loss, *PASSES)
