# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Several learners: together they make the update that one would make."""

import copy

import pytest
import torch

import monobeast
from libtorchbeast import models
from libtorchbeast.distributed.gradients import digest
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, Clock
from libtorchbeast.rollouts import batches
from tests.support.actors import make_learner
from tests.support.compare import assert_same
from tests.support.monobeast import IN_ORDER, parse
from tests.support.ranks import in_threads

pytestmark = pytest.mark.usefixtures("one_thread", "as_before")

COLUMNS = 4
ONCE = ("--passes", 1, "--minibatches", 1, "--ppo_clip", 0)
VECTORS = ("--env", "CartPole-v1", *IN_ORDER[2:], "--unroll_length", 12, *ONCE)
SCALED = ("--observation_scaling", "moments", "--reward_scaling", "returns")
UNSCALED = ("--observation_scaling", "none", "--reward_scaling", "none", "--net", "monobeast.Net")


class Life:
    """A network, and batches [T+1, COLUMNS, ...] of rollouts that it has made."""

    def __init__(self, *flags, count=3):
        torch.manual_seed(0)
        self.flags = parse(*VECTORS, *flags)
        self.flags, spec, shapes = monobeast.describe(self.flags)
        self.net = models.make_net(monobeast.Net, spec, self.flags)
        env = monobeast.make_environment(self.flags)
        actor = monobeast.Actor(env, self.net, 0, self.flags, Clock(ACTOR_ACTIVITIES))
        self.batches = []
        for _ in range(count):
            rollout = {k: torch.zeros(shape, dtype=dtype) for k, (shape, dtype) in shapes.items()}
            actor.unroll({k: v.numpy() for k, v in rollout.items()}, version=0)
            (batch,) = batches([(rollout, lambda: None)], COLUMNS)
            self.batches.append({k: v.clone() for k, v in batch.items()})

    def learner(self, of_ranks=None, **others):
        return make_learner(copy.deepcopy(self.net), self.flags, ranks=of_ranks, **others)

    def learn(self, learner, columns=slice(None)):
        """Learns from the columns of each batch. Returns the numbers of each update."""
        parts = [{k: v[:, columns].clone() for k, v in b.items()} for b in self.batches]
        return [learner.update(part, lambda state, version: None) for part in parts]

    def alone(self):
        learner = self.learner()
        return learner, self.learn(learner)

    def together(self, *shares):
        """One rank learns from each of the shares, which are columns."""

        def one(of_ranks):
            learner = self.learner(of_ranks)
            return learner, self.learn(learner, shares[of_ranks.rank])

        return in_threads(len(shares), one)


HALVES = (slice(0, 2), slice(2, 4))


def begin_game(batch, rows, columns):
    """A new game begins in each of these rows, so that no transition leads to them."""
    batch["done"][rows, columns] = True
    batch["episode_step"][rows, columns] = 0


def assert_close(seen, expected):
    """Adam moves a weight by as much as 5e-4 in each update. Where a gradient is almost 0, a
    rounding error moves it by 5e-7 in one of 60 seeds."""
    for name, value in expected.items():
        torch.testing.assert_close(seen[name], value, rtol=1e-4, atol=1e-5, msg=name)


def mean_and_variance(state):
    return {k: v for k, v in state.items() if k.startswith("moments")}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("scaling", [SCALED, UNSCALED], ids=["moments", "unscaled"])
def test_ranks_make_the_update_of_one_learner(scaling, reduction):
    life = Life(*scaling, "--loss_reduction", reduction)
    # One rank has fewer real transitions, and in the last batch it has none.
    begin_game(life.batches[1], slice(4, 8), 2)
    begin_game(life.batches[2], slice(1, None), slice(0, 2))
    alone, numbers = life.alone()
    (first, seen), (second, _) = life.together(*HALVES)
    assert_same(first.state_dict(), second.state_dict())
    assert_close(first.net.state_dict(), alone.net.state_dict())
    assert (first.step, first.updates) == (alone.step, alone.updates)
    for one, other in zip(seen[:2], numbers[:2], strict=True):
        for name in ("total_loss", "grad_norm", "pg_loss", "baseline_loss", "entropy"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    # One sum for each update, and one for the moments of each batch.
    has_moments = hasattr(life.net, "moments")
    assert first._ranks.sums == len(life.batches) * (1 + has_moments)


def test_minibatches_of_ppo_keep_the_ranks_together():
    """Each rank draws its own minibatches, and standardises the advantages in them."""
    life = Life(*SCALED, "--ppo_clip", 0.2, "--passes", 2, "--minibatches", 3)
    (first, _), (second, _) = life.together(*HALVES)
    alone, _ = life.alone()
    assert_same(first.state_dict(), second.state_dict())
    assert (first.step, first.updates) == (alone.step, alone.updates)
    assert first.updates == len(life.batches) * 2 * 3


def test_unequal_shares_are_no_other_law():
    life = Life(*UNSCALED)
    alone, _ = life.alone()
    (first, _), (second, _) = life.together(slice(0, 1), slice(1, 4))
    assert_same(first.state_dict(), second.state_dict())
    assert_close(first.net.state_dict(), alone.net.state_dict())


def test_weights_with_the_channels_last_in_memory_get_the_same_update(monkeypatch):
    """torch's fused Adam takes gradients to lie in memory as their weights do."""
    monkeypatch.setattr(models, "_channels_last", lambda shape: len(shape) == 3)
    life = Life("--env", "MinAtar/Asterix-v1", "--net", "monobeast.Net", "--optimizer", "adam")
    assert not life.net.trunk[0].weight.is_contiguous()
    alone, _ = life.alone()
    (first, _), (second, _) = life.together(*HALVES)
    assert_same(first.state_dict(), second.state_dict())
    assert_close(first.net.state_dict(), alone.net.state_dict())


def test_a_nan_in_one_rank_is_skipped_by_all(caplog):
    life = Life(*SCALED)
    life.batches[1]["frame"][3, 3] = float("nan")
    (first, _), (second, _) = life.together(*HALVES)
    assert_same(first.state_dict(), second.state_dict())
    assert (first.skips.count, first.updates) == (1, 2)
    del life.batches[1]
    without, _ = life.alone()
    assert_close(first.net.state_dict(), without.net.state_dict())


def test_batches_without_a_real_transition_in_any_rank_change_nothing():
    life = Life(*SCALED, count=1)
    life.batches[0]["done"][1:] = True
    (first, (numbers,)), (second, _) = life.together(*HALVES)
    assert numbers is None and first.updates == first.skips.count == 0
    assert_same(dict(first.net.state_dict()), dict(life.net.state_dict()))
    assert_same(first.state_dict(), second.state_dict())


def test_all_stop_after_the_same_update():
    """One rank has one batch less. It stops, and the others learn from their last batch alone."""
    life = Life(*SCALED)

    def one(of_ranks):
        learner = life.learner(of_ranks)
        for batch in life.batches[: 2 if of_ranks.rank else None]:
            part = {k: v[:, HALVES[of_ranks.rank]].clone() for k, v in batch.items()}
            learner.update(part, lambda state, version: None)
        if of_ranks.rank == 0:  # all have stopped, so nobody would answer one more sum
            assert learner.update(part, lambda state, version: None) is None
        learner.close()
        learner.close()  # once is enough
        return learner

    first, second = in_threads(2, one)
    assert_same(first.state_dict(), second.state_dict())
    assert first.updates == 3
    begin_game(life.batches[2], slice(1, None), slice(2, None))
    alone, _ = life.alone()
    assert_close(first.net.state_dict(), alone.net.state_dict())


@pytest.mark.parametrize("passes", [(), ("--passes", 2, "--minibatches", 2)], ids=["once", "more"])
def test_the_steps_that_batches_say_they_add_are_those_of_all_ranks(passes):
    """If each rank counted its own, their learning rates would differ, and so their weights."""
    life = Life(*UNSCALED, *passes)
    life.batches[0]["column/new_steps"] = torch.tensor([[0, 0, 7, 7]])  # for the second rank alone
    life.batches[1]["column/new_steps"] = torch.tensor([[1, 1, 2, 2]])
    (first, _), (second, _) = life.together(*HALVES)
    assert_same(first.state_dict(), second.state_dict())
    assert first.step == 7 + 3 + int((~life.batches[2]["done"][1:]).sum())


def test_a_frozen_parameter_does_not_travel():
    life = Life(*UNSCALED, count=1)
    whole = life.together(*HALVES)[0][0].updater.of_ranks._flat
    life.net.fc.requires_grad_(False)
    before = copy.deepcopy(life.net.fc.state_dict())
    (first, _), (second, _) = life.together(*HALVES)
    assert_same(first.state_dict(), second.state_dict())
    assert_same(dict(first.net.fc.state_dict()), dict(before))
    frozen = sum(p.numel() for p in life.net.fc.parameters())
    assert len(whole) - len(first.updater.of_ranks._flat) == frozen > 0


def test_a_number_that_only_some_ranks_tell_is_the_mean_over_these():
    """An update in which no rank tells it has none, whatever was told before."""
    life = Life(*UNSCALED)
    told = {0: [2.0, None, None], 1: [5.0, 4.0, None]}

    def one(of_ranks):
        learner = life.learner(of_ranks, scalars=["late"], means=["later"])
        values = iter(told[of_ranks.rank])
        loss = learner.updater._loss

        def phases(batch):
            value = next(values)
            late = {} if value is None else {"late": batch.count * 0 + value}
            terms = {} if value is None else {"later": batch.real * value}
            return loss(batch) | late | terms

        learner.updater._loss = phases
        return life.learn(learner, HALVES[of_ranks.rank])

    for batch in life.batches:
        batch["done"][:] = False  # as many real transitions in both ranks
    for seen in in_threads(2, one):
        for name in ("late", "later"):
            assert [numbers.get(name) for numbers in seen] == [3.5, 4.0, None], name


def test_a_term_that_only_some_ranks_have_moves_the_weights_of_all_alike():
    life = Life(*UNSCALED)

    def one(of_ranks):
        learner = life.learner(of_ranks)
        loss = learner.updater._loss

        def phases(batch):  # without it the policy has no gradient in rank 0
            results = loss(batch)
            if of_ranks.rank == 0:
                results["total_loss"] = results["baseline_loss"]
            return results

        learner.updater._loss = phases
        life.learn(learner, HALVES[of_ranks.rank])
        return learner.net.state_dict()

    first, second = in_threads(2, one)
    assert_same(first, second)
    assert not torch.equal(first["policy.weight"], life.net.state_dict()["policy.weight"])


def test_a_rank_that_ends_early_waits_for_the_others_as_after_a_signal():
    """And not until it gives its update up, and with it what is not saved yet."""
    life = Life(*SCALED, count=1)

    def one(of_ranks, share_left):
        learner = life.learner(of_ranks)
        learner.step = int(life.flags.total_steps * (1 - share_left))
        learner.close()
        return of_ranks.has_asked

    assert in_threads(2, lambda of_ranks: one(of_ranks, 0.5)) == [True, True]
    assert in_threads(2, lambda of_ranks: one(of_ranks, 0.0)) == [False, False]


def test_weights_that_differ_become_those_of_rank_0(monkeypatch, caplog):
    monkeypatch.setattr("libtorchbeast.distributed.gradients.COMPARE_EVERY", 2)
    life = Life(*SCALED)

    def one(of_ranks):
        learner = life.learner(of_ranks)
        with torch.no_grad():
            next(learner.net.parameters()).view(-1)[0] += 1e-6 * of_ranks.rank
        life.learn(learner)
        return learner

    first, second = in_threads(2, one)
    assert first.updater.of_ranks.deviations == second.updater.of_ranks.deviations == 1
    assert "The weights of 1 ranks differ" in caplog.text
    assert_same(dict(first.net.state_dict()), dict(second.net.state_dict()))


def test_a_digest_changes_with_any_bit():
    tensors = [torch.randn(100), torch.randn(3, 4)]
    before = digest(tensors)
    assert torch.equal(before, digest([t.clone() for t in tensors]))
    tensors[1].view(torch.int32)[2, 3] ^= 1
    assert not torch.equal(before, digest(tensors))
