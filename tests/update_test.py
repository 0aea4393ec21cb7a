# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The order of what a network may add to an update: statistics, step, after_step, publishing."""

import copy
import math

import pytest
import torch

import monobeast
from libtorchbeast.flags import UserError
from tests.support.actors import Counting, make_actor, make_flags, make_learner, make_rollouts
from tests.support.compare import assert_same
from tests.support.monobeast import IN_ORDER, beast
from tests.support.ranks import in_threads

ONCE = ("--passes", "1", "--minibatches", "1", "--ppo_clip", "0")
PASSES = ("--passes", "2", "--minibatches", "3", "--ppo_clip", "0.2")


class Watching(monobeast.Net):
    """Keeps the mean reward of all real transitions, and notes what is called."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.calls = []
        self.register_buffer("sum", torch.zeros(()))
        self.register_buffer("count", torch.zeros(()))

    def statistics(self, batch):
        assert batch.targets.keys() == {"v", "advantage", "value"}
        assert not torch.is_grad_enabled()
        self.calls.append("statistics")
        return {"sum": (batch.weights * batch.reward).sum(), "count": batch.weights.sum()}

    def take_statistics(self, sums):
        self.calls.append("take")
        self.sum += sums["sum"]
        self.count += sums["count"]

    def after_step(self, updates):
        self.calls.append(f"after {updates}")
        with torch.no_grad():
            self.policy.bias.zero_()


def learner_of(*argv):
    actor = make_actor(Watching, *argv, create_env=Counting)
    learner = make_learner(actor.net, make_flags(*argv))
    actor.net.calls.clear()
    return learner, make_rollouts(actor, 3)


def update(learner, batch):
    def publish(state, version):
        learner.net.calls.append(f"publish {version}")
        assert not state["policy.bias"].any()

    return learner.update(batch, publish)


@pytest.mark.parametrize("argv, updates", [(ONCE, 1), (PASSES, 6)], ids=["once", "passes"])
def test_a_batch_has_its_statistics_once_taken_after_a_step_and_before_it_is_published(
    argv, updates
):
    learner, rollouts = learner_of(*argv)
    calls = learner.net.calls
    for batch in rollouts:
        update(learner, batch)
    assert calls[:4] == ["statistics", "take", "after 1", "publish 1"]
    assert calls.count("statistics") == calls.count("take") == 3
    assert calls[-2:] == [f"after {3 * updates}", f"publish {3 * updates}"]
    real = sum(int((~batch["done"][1:]).sum()) for batch in rollouts)
    assert learner.net.count == real == learner.step
    calls.clear()
    batch["policy_logits"][:] = float("nan")  # a skipped update takes nothing in
    assert update(learner, batch) is None
    assert calls == ["statistics"] and learner.net.count == real


def test_a_process_that_has_turned_gradients_off_learns():
    learner, (batch, *_) = learner_of(*ONCE)
    with torch.no_grad():  # as an environment of this process may leave it
        assert update(learner, batch)["grad_norm"] > 0


def test_a_first_minibatch_without_a_real_transition_leaves_the_statistics_to_the_next():
    """Minibatches of a recurrent network are columns, and here only one of them has transitions."""
    learner, (batch, *_) = learner_of("--use_lstm", *PASSES[:2], "--minibatches", "4")
    batch["done"][1:, 1:], batch["done"][1:, 0] = True, False
    for number in range(6):  # so that the column is drawn first and later
        torch.manual_seed(number)
        learner.net.calls.clear()
        update(learner, batch)
        assert learner.net.calls[:2] == ["statistics", "take"]
        assert learner.net.calls.count("take") == 1
    assert learner.net.count == learner.step == 6 * (len(batch["done"]) - 1)


@pytest.mark.parametrize("argv", [ONCE, PASSES], ids=["once", "passes"])
def test_statistics_are_those_of_all_ranks(argv):
    """Also where one has a batch less: it stops, and takes in what the other has."""
    alone, batches = learner_of(*argv)
    batches = [{k: v.clone() for k, v in batch.items()} for batch in batches]
    for batch in batches:
        batch["reward"] = torch.randn(batch["reward"].shape)
        update(alone, batch)

    net = learner_of(*argv)[0].net

    def one(of_ranks):
        own = copy.deepcopy(net), make_flags(*argv)
        learner = make_learner(*own, ranks=of_ranks, sums=["sum", "count"])
        columns = slice(0, 1) if of_ranks.rank else slice(1, None)
        for batch in batches[: 2 if of_ranks.rank else None]:
            update(learner, {k: v[:, columns].clone() for k, v in batch.items()})
        learner.close()
        return learner

    first, second = in_threads(2, one)
    last = ~batches[2]["done"][1:, :1]
    lost = torch.where(last, batches[2]["reward"][1:, :1].clamp(-1, 1), 0.0).sum()
    for learner in (first, second):
        assert learner.net.count == alone.net.count - last.sum()
        torch.testing.assert_close(learner.net.sum, alone.net.sum - lost, rtol=1e-4, atol=1e-4)
    assert_same(dict(first.net.state_dict()), dict(second.net.state_dict()))


class Noting(monobeast.Net):
    told: list[int] = []

    def after_step(self, updates):
        self.told.append(updates)


def test_only_a_new_run_begins_with_a_call_after_0_updates(tmp_path, monkeypatch):
    monkeypatch.setattr(Noting, "told", [])
    flags = [*IN_ORDER, *ONCE, "--eval_every", 0, "--net", "tests.update_test.Noting"]
    beast(tmp_path, *flags, "--total_steps", 300)
    before = list(Noting.told)
    assert before == list(range(len(before))) and len(before) > 2
    beast(tmp_path, "--total_steps", 600)
    assert Noting.told == list(range(len(Noting.told))) and len(Noting.told) > len(before)


def test_targets_without_a_tensor_are_not_computed_again_for_each_part():
    learner, (batch, *_) = learner_of(*PASSES)
    shapes = []
    learner.updater._targets = lambda batch: shapes.append(batch.real.shape) or {}
    learner.updater._loss = lambda batch: dict(total_loss=batch.mean(batch.outputs["baseline"]))
    learner.net.statistics = lambda batch: dict(sum=batch.count, count=batch.count)
    update(learner, batch)
    assert shapes == [batch["done"][1:].shape]
    assert learner.net.calls.count("take") == 1


def test_a_skipped_minibatch_leaves_the_numbers_of_those_before_it():
    learner, (batch, *_) = learner_of(*PASSES)
    loss, calls = learner.updater._loss, []

    def third_is_bad(batch):
        calls.append(batch)
        results = loss(batch) | dict(number=torch.tensor(float(len(calls))))
        return results | dict(total_loss=results["total_loss"] * (math.nan if calls[2:] else 1))

    learner.updater._loss = third_is_bad
    numbers = update(learner, batch)
    assert len(calls) == 3 and learner.updates == 2 and learner.skips.count == 1
    assert numbers["number"] == 1.5


def test_statistics_may_be_whole_numbers_and_must_be_tensors():
    learner, (batch, *_) = learner_of(*ONCE)
    taken = []
    learner.net.statistics = lambda batch: dict(count=batch.real.sum())
    learner.net.take_statistics = taken.append
    update(learner, batch)
    assert taken == [{"count": (~batch["done"][1:]).sum()}]
    assert taken[0]["count"].dtype == torch.float32  # as ranks add them up
    learner.net.statistics = lambda batch: dict(sum=1.0)
    with pytest.raises(UserError, match=r"statistics\(\) returned sum a float; expected a tensor"):
        update(learner, batch)
