# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Several learners: together they make the update that one would make."""

import copy

import pytest
import torch

import monobeast
from libtorchbeast import models
from libtorchbeast.distributed.gradients import digest
from tests.support.actors import Counting, make_actor, make_flags, make_learner, make_rollouts
from tests.support.compare import assert_same
from tests.support.ranks import in_threads
from tests.support.small_nets import Flicker

pytestmark = pytest.mark.usefixtures("as_before")

SCALED = ("--observation_scaling", "moments", "--reward_scaling", "returns")


class Life:
    def __init__(self, *flags, count=3, env=Counting):
        words = [str(word) for word in flags]
        self.flags = make_flags(*words)
        actor = make_actor(monobeast.Net, *words, create_env=env)
        self.net, self.batches = actor.net, make_rollouts(actor, count)

    def learner(self, of_ranks=None, **others):
        return make_learner(copy.deepcopy(self.net), self.flags, ranks=of_ranks, **others)

    def learn(self, learner, columns=slice(None)):
        """Learns from the columns of each batch. Returns the numbers of each update."""
        parts = [{k: v[:, columns].clone() for k, v in b.items()} for b in self.batches]
        return [learner.update(part, lambda state, version: None) for part in parts]

    def alone(self):
        learner = self.learner()
        return learner, self.learn(learner)

    def together(self, change=None, **others):
        """One rank learns from each of the SHARES. `change(batch, rank, results)` may change what
        the loss returns. Returns the learners, which agree, and the numbers of their updates."""

        def one(of_ranks):
            learner = self.learner(of_ranks, **others)
            loss = learner.updater._loss
            if change:
                learner.updater._loss = lambda batch: change(batch, of_ranks.rank, loss(batch))
            return learner, self.learn(learner, SHARES[of_ranks.rank])

        learners, numbers = zip(*in_threads(2, one), strict=True)
        assert_same(*[learner.state_dict() for learner in learners])
        return learners[0], numbers


SHARES = (slice(0, 1), slice(1, 3))  # the columns of two ranks


def begin_game(batch, rows, columns):
    """A new game begins in each of these rows, so that no transition leads to them."""
    batch["done"][rows, columns] = True
    batch["episode_step"][rows, columns] = 0


def assert_close(seen, expected):
    """Adam moves a weight by as much as 5e-4 in each update. Where a gradient is almost 0, a
    rounding error moves it by 5e-7 in one of 60 seeds."""
    for name, value in expected.items():
        torch.testing.assert_close(seen[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("flags", [SCALED, ("--loss_reduction", "sum", "--net", "monobeast.Net")])
def test_ranks_make_the_update_of_one_learner(flags):
    life = Life(*flags)
    # One rank has fewer real transitions, and in the last batch it has none.
    begin_game(life.batches[1], 2, 1)
    begin_game(life.batches[2], slice(1, None), 0)
    alone, numbers = life.alone()
    first, (seen, _) = life.together()
    assert_close(first.net.state_dict(), alone.net.state_dict())
    assert (first.step, first.updates) == (alone.step, alone.updates)
    for one, other in zip(seen[:2], numbers[:2], strict=True):
        for name in ("total_loss", "grad_norm", "pg_loss", "baseline_loss", "entropy"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    # One sum for each update, and one for the moments of each batch.
    assert first._ranks.sums == len(life.batches) * (1 + hasattr(life.net, "moments"))


def test_weights_with_the_channels_last_in_memory_get_the_same_update(monkeypatch):
    """torch's fused Adam takes gradients to lie in memory as their weights do."""
    monkeypatch.setattr(models, "prefers_channels_last", lambda shape: len(shape) == 3)
    life = Life(env=Flicker)
    assert any(not weight.is_contiguous() for weight in life.net.parameters())
    alone, _ = life.alone()
    assert_close(life.together()[0].net.state_dict(), alone.net.state_dict())


def test_a_nan_in_one_rank_is_skipped_by_all():
    life = Life(*SCALED)
    life.batches[1]["policy_logits"][:, 2] = float("nan")
    first, _ = life.together()
    assert (first.skips.count, first.updates) == (1, 2)
    del life.batches[1]
    without, _ = life.alone()
    assert_close(first.net.state_dict(), without.net.state_dict())


def test_batches_without_a_real_transition_in_any_rank_change_nothing():
    life = Life(*SCALED, count=1)
    life.batches[0]["done"][1:] = True
    first, numbers = life.together()
    assert numbers == ([None], [None]) and first.updates == first.skips.count == 0
    assert_same(dict(first.net.state_dict()), dict(life.net.state_dict()))


def test_all_stop_after_the_same_update():
    """One rank has one batch less. It stops, and the others learn from their last batch alone."""
    life = Life(*SCALED)

    def one(of_ranks):
        learner = life.learner(of_ranks)
        for batch in life.batches[: 2 if of_ranks.rank else None]:
            part = {k: v[:, SHARES[of_ranks.rank]].clone() for k, v in batch.items()}
            learner.update(part, lambda state, version: None)
        if of_ranks.rank == 0:  # all have stopped, so nobody would answer one more sum
            assert learner.update(part, lambda state, version: None) is None
        learner.close()
        learner.close()  # once is enough
        return learner

    first, second = in_threads(2, one)
    assert_same(first.state_dict(), second.state_dict())
    assert first.updates == 3
    begin_game(life.batches[2], slice(1, None), SHARES[1])
    alone, _ = life.alone()
    assert_close(first.net.state_dict(), alone.net.state_dict())


PPO = (*SCALED, "--ppo_clip", 0.2, "--passes", 2, "--minibatches", 3)


@pytest.mark.parametrize("flags, each", [((), 1), (PPO, 6)], ids=["once", "PPO"])
def test_the_steps_that_batches_say_they_add_are_those_of_all_ranks(flags, each):
    """If each rank counted its own, their learning rates would differ, and so their weights. For
    PPO, each rank draws minibatches of its own, and standardises the advantages in them."""
    life = Life(*flags)
    life.batches[0]["column/new_steps"] = torch.tensor([[0, 7, 7]])  # for the second rank alone
    life.batches[1]["column/new_steps"] = torch.tensor([[1, 2, 2]])
    first, _ = life.together()
    assert first.step == 7 + 3 + int((~life.batches[2]["done"][1:]).sum())
    assert first.updates == len(life.batches) * each


def test_a_frozen_parameter_does_not_travel():
    life = Life("--net", "monobeast.Net", count=1)
    whole = life.together()[0].updater.gradient_sum._flat
    life.net.fc.requires_grad_(False)
    first, _ = life.together()
    assert_same(dict(first.net.fc.state_dict()), dict(life.net.fc.state_dict()))
    frozen = sum(p.numel() for p in life.net.fc.parameters())
    assert len(whole) - len(first.updater.gradient_sum._flat) == frozen > 0


def test_a_number_that_only_some_ranks_tell_is_the_mean_over_these():
    """An update in which no rank tells it has none, whatever was told before."""
    life = Life()
    told = [iter([2.0, None, None]), iter([5.0, 4.0, None])]

    def tell(batch, rank, results):
        if (value := next(told[rank])) is None:
            return results
        return results | {"late": batch.count * 0 + value, "later": batch.real * value}

    for batch in life.batches:  # as many real transitions in both ranks
        batch["done"][:] = False
        batch["done"][1:, 1] = True
    _, numbers = life.together(tell, scalars=["late"], means=["later"])
    for seen in numbers:
        for name in ("late", "later"):
            assert [update.get(name) for update in seen] == [3.5, 4.0, None], name


def test_a_term_that_only_some_ranks_have_moves_the_weights_of_all_alike():
    life = Life("--net", "monobeast.Net")

    def without_policy(batch, rank, results):  # so that it has no gradient in rank 0
        return results | ({} if rank else {"total_loss": results["baseline_loss"]})

    first, _ = life.together(without_policy)
    assert not torch.equal(first.net.policy.weight, life.net.policy.weight)


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
    assert first.updater.gradient_sum.deviations == second.updater.gradient_sum.deviations == 1
    assert "The weights of 1 ranks differ" in caplog.text
    assert_same(dict(first.net.state_dict()), dict(second.net.state_dict()))


def test_a_digest_changes_with_any_bit():
    tensors = [torch.randn(100), torch.randn(3, 4)]
    before = digest(tensors)
    assert torch.equal(before, digest([t.clone() for t in tensors]))
    tensors[1].view(torch.int32)[2, 3] ^= 1
    assert not torch.equal(before, digest(tensors))
