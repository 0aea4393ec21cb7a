# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The learner's updates: the same for both beasts, and none from numbers that are not finite."""

import re
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

import monobeast
from libtorchbeast import learner, models
from libtorchbeast.accelerator.devices import CPU
from libtorchbeast.flags import UserError
from libtorchbeast.learner import Learner
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.loggers.timing import LEARNER_ACTIVITIES, Clock
from libtorchbeast.spec import Actions, Spec
from libtorchbeast.transitions import learn_from
from libtorchbeast.update import Updater
from tests.support.actors import (
    CallsNet,
    Counting,
    N,
    make_actor,
    make_flags,
    make_learner,
    make_rollouts,
    run_of,
)
from tests.support.compare import assert_same
from tests.support.small_nets import Flicker

pytestmark = pytest.mark.usefixtures("as_before")


def test_an_update_that_hangs_while_a_checkpoint_is_due_ends_the_run(monkeypatch):
    monkeypatch.setattr(learner, "CLOSE_S", 0.1)
    one = make_learner(nn.Linear(1, 1), make_flags())
    asked = iter([False, True])  # a signal comes while the main loop waits for the state
    one.must_end = lambda: next(asked)
    with ThreadPoolExecutor(1) as other:
        other.submit(one._one_at_a_time.acquire).result()
        with pytest.raises(learner.UpdateHung):
            one.state_dict()
        other.submit(one._one_at_a_time.release).result()
    assert one.state_dict()["updates"] == 0


class LearnedNet(monobeast.Net):
    """Its initial state is a parameter."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.first = nn.Parameter(torch.ones(2, self.core.num_layers, 1, self.core.hidden_size))

    def initial_state(self, batch_size):
        return tuple(self.first.expand(2, -1, batch_size, -1))


def test_an_initial_state_may_be_learned():
    actor = make_actor(LearnedNet, "--use_lstm")
    for rollout in make_rollouts(actor):
        assert not any(tensor.requires_grad for tensor in rollout.values())
        flags = make_flags("--use_lstm")
        both = monobeast.targets, monobeast.loss
        learn_from(actor.net, rollout, None, *both, flags, 0.0)["total_loss"].backward()
    assert actor.net.first.grad.abs().sum() > 0


class Learning:
    """A learner, and a batch [T+1, N, ...] for its updates."""

    def __init__(self, dump_dir, net=monobeast.Net, *flags, env=Counting):
        words = [str(word) for word in flags]
        actor = make_actor(net, *words, create_env=env)
        self.net = actor.net
        self.learner = make_learner(self.net, make_flags(*words), dump_dir=str(dump_dir))
        self.published = []
        (self.batch,) = make_rollouts(actor, 1)

    def update(self, spoilt=None):
        """An update, with a NaN in the batch's key `spoilt`."""
        batch = {k: v.clone() for k, v in self.batch.items()}
        if spoilt:
            batch["done"][3, 1] = batch["done"][4, 1] = False
            batch[spoilt][3, 1] = float("nan")
        return self.learner.update(batch, lambda weights, version: self.published.append(version))

    def weights(self):
        return {k: v.clone() for k, v in self.net.state_dict().items()}

    def spy(self, function):
        """The loss becomes `function(batch, loss)`."""
        updater, loss = self.learner.updater, self.learner.updater._loss
        updater._loss = lambda batch: function(batch, loss)


def test_a_loss_gets_the_share_of_the_steps_that_is_done(tmp_path):
    learning, seen = Learning(tmp_path, monobeast.Net, "--total_steps", 1000), []
    learning.spy(lambda batch, loss: seen.append(batch.progress) or loss(batch))
    for step in (0, 750, 10_000):
        learning.learner.step = step
        learning.update()
    assert seen == [0.0, 0.75, 1.0]


@pytest.mark.parametrize("key", ["frame", "policy_logits", "reward"])
def test_a_non_finite_loss_changes_nothing_and_is_counted_and_dumped(tmp_path, key):
    learning = Learning(tmp_path, CallsNet)
    assert learning.update() is not None  # the optimizer has averages
    before, state = learning.weights(), learning.learner.state_dict()
    assert before["calls"] > 0
    assert learning.update(spoilt=key) is None
    assert_same(learning.learner.state_dict(), state | {"skipped": 1})
    assert learning.published == [1]
    dump = torch.load(tmp_path / "nonfinite-1.tar", weights_only=True)
    assert dump["batch"][key].isnan().any()
    assert_same(dict(dump["model"]), before)
    assert learning.update() is not None and learning.published == [1, 2]
    assert all(tensor.isfinite().all() for tensor in learning.weights().values())


@pytest.mark.parametrize("ranks, updates", [(None, 3), (Mock(), 10)])
def test_the_passes_that_are_left_end_when_the_learner_is_closed(tmp_path, ranks, updates):
    """All of them may take longer than a close waits. A rank goes on until all ranks agree."""
    learning = Learning(tmp_path, monobeast.Net, "--passes", 10)
    learning.learner._ranks = ranks
    close = lambda weights, version: version < 3 or learning.learner.close()
    assert learning.learner.update(learning.batch, close) is not None
    assert learning.learner.updates == updates and learning.learner.step > 0


def test_a_rank_whose_loss_raises_joins_no_sum_any_more(tmp_path):
    """Nobody knows which sum the other ranks wait for; with another one gloo aborts them all."""
    learning, sums = Learning(tmp_path, monobeast.Net), []
    ranks = learning.learner._ranks = Mock()
    ranks.pulse.failure = None
    learning.learner.updater.take_in = sums.append
    assert learning.update() is not None and len(sums) == 1
    learning.spy(Mock(side_effect=MemoryError("none left")))
    with pytest.raises(UserError, match="MemoryError: none left"):
        learning.update()
    learning.learner.close()
    assert len(sums) == 2


def test_a_rank_that_has_ended_makes_a_last_update_with_the_others(tmp_path):
    learning, sums = Learning(tmp_path, monobeast.Net), []
    ranks = learning.learner._ranks = Mock()
    ranks.pulse.failure = None
    learning.learner.updater.take_in = sums.append
    assert learning.update() is not None
    learning.learner._update_once = Mock(return_value={})
    learning.learner.close()
    assert len(sums) == 2 and learning.learner._update_once.call_count == 1


def test_what_was_not_finite_in_the_learner_is_named(tmp_path, caplog):
    """A network's outputs, or an observation that is so large that these overflow."""
    learning = Learning(tmp_path, monobeast.Net, "--net", "monobeast.Net")
    assert learning.update(spoilt="policy_logits") is None
    assert "scale it" not in caplog.text and "returned NaN" not in caplog.text
    with torch.no_grad():
        for head in (learning.net.policy, learning.net.baseline):
            head.bias.fill_(float("nan"))
    assert learning.update() is None
    said = r"in policy_logits and baseline for frame from -\S+ to \S+; .*/monobeast.py:\d+\)$"
    assert re.search("Your network returned NaN or infinity " + said, caplog.text, re.M)
    learning.batch["frame"] *= 1e16
    assert learning.update() is None
    assert re.search(r"'frame' has numbers as large as \S+e\+16, .* scale it down", caplog.text)


def test_heads_in_bfloat16_are_named_in_the_learner(tmp_path, monkeypatch):
    """A machine without bf16 does not find them at the start, but its GPU computes in bf16."""
    learning = Learning(tmp_path)
    forward = learning.net.forward
    in_bf16 = lambda *inputs: ({k: v.bfloat16() for k, v in forward(*inputs)[0].items()}, ())
    monkeypatch.setattr(learning.net, "forward", in_bf16)
    with pytest.raises(UserError, match="^Your network returned `policy_logits` in bfloat16"):
        learning.update()


def test_a_batch_without_a_real_transition_changes_nothing(tmp_path):
    """It has a gradient of 0, but the optimizer's averages would move the weights."""
    learning = Learning(tmp_path, CallsNet)
    assert learning.update() is not None
    state, real = learning.learner.state_dict(), learning.batch
    learning.batch = real | {"done": torch.ones_like(real["done"])}
    assert learning.update() is None
    assert_same(learning.learner.state_dict(), state)  # `skipped` is in it
    assert learning.published == [1] and not list(tmp_path.iterdir())
    learning.batch = real
    assert learning.update() is not None and learning.published == [1, 2]


@pytest.mark.parametrize("minibatches", [1, 3])
@pytest.mark.parametrize("core", [["--net", "monobeast.Net"], ["--core", "lstm"]], ids=["", "lstm"])
def test_passes_are_updates_from_the_same_batch_which_counts_once(tmp_path, core, minibatches):
    """So do its moments, and the targets stay those of the first, whatever the loss."""
    flags = [*core, *f"--ppo_clip 0 --passes 3 --minibatches {minibatches}".split()]
    flags += "--observation_scaling moments --reward_scaling returns".split()
    learning, targets, values, totals = Learning(tmp_path, monobeast.Net, *flags), [], [], []

    def note(batch, loss):
        targets.append(batch.targets["v"].flatten())
        values.append(batch.outputs["baseline"].detach().flatten())
        found = loss(batch)
        totals.append(found["total_loss"].item())
        return found

    learning.spy(note)
    numbers = learning.update()
    updates = 3 * minibatches
    assert learning.published == [*range(1, updates + 1)]
    real = (~learning.batch["done"][1:]).sum()
    assert learning.learner.step == learning.net.moments.count == real
    assert numbers["lag_max"] == 0
    assert numbers["total_loss"] == pytest.approx(sum(totals) / updates)
    assert len(set(totals)) == updates

    def of_pass(number, seen):
        start = number * minibatches
        return torch.cat(seen[start : start + minibatches]).sort().values

    for later in (1, 2):
        assert torch.equal(of_pass(0, targets), of_pass(later, targets))
        assert not torch.allclose(of_pass(0, values), of_pass(later, values))  # they have moved


def test_the_largest_reward_is_that_of_all_minibatches(tmp_path):
    learning = Learning(tmp_path, monobeast.Net, "--minibatches", 4, "--reward_clipping", "none")
    learning.batch["reward"][3, 1], learning.batch["done"][:] = 7.0, False
    assert learning.update()["largest_reward"] == 7.0


def test_the_steps_that_a_batch_says_it_adds_count_once(tmp_path):
    learning = Learning(tmp_path, monobeast.Net, "--minibatches", 4)
    learning.batch["column/new_steps"] = torch.full((1, N), 7)
    learning.update()
    assert (learning.learner.step, learning.learner.updates) == (7, 4)


def test_minibatches_without_a_real_transition_change_nothing_but_the_moments(tmp_path):
    """Columns whose environments have left may be all that a minibatch has."""
    flags = "--minibatches 20 --observation_scaling moments --reward_scaling none".split()
    learning = Learning(tmp_path, monobeast.Net, *flags)
    learning.batch["done"][:] = True
    learning.batch["done"][2, 1] = False
    for updates in range(1, 9):  # in one of twenty it is the first
        learning.batch["policy_version"][:] = learning.learner.updates
        assert learning.update()["mean_rho"] > 0.5
        assert learning.net.moments.count == learning.learner.updates == updates


def test_bf16_with_a_gaussian_policy_is_obeyed_with_a_warning(caplog):
    flags = make_flags("--precision", "bf16")
    spec = Spec("some", 1, {"frame": ((4,), "uint8")}, Actions("box", (2,)))
    make_learner(models.make_net(monobeast.Net, spec, flags), flags)
    assert "--precision bf16: with Box actions the importance weights are noisy" in caplog.text


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_no_gradient_makes_weights_infinite_within_the_flags_ranges(tmp_path, optimizer):
    flags = "--learning_rate 1000 --grad_norm_clipping 1e12 --epsilon 1e-12 --optimizer".split()
    learning = Learning(tmp_path, monobeast.Net, *flags, optimizer)
    for number in range(3):
        for weight in learning.net.parameters():
            weight.grad = torch.full_like(weight, 0.0 if number else 1e12)
        learning.learner.updater.optimizer._own.step()
        tensors = filter(torch.is_tensor, tree_leaves(learning.learner.state_dict()))
        assert all(tensor.isfinite().all() for tensor in tensors)


def test_averages_that_were_saved_on_a_device_go_on_elsewhere(tmp_path, monkeypatch):
    """Copied from there they are contiguous. torch's fused Adam takes them to lie in memory as the
    weights do, which have the channels last."""
    monkeypatch.setattr(models, "prefers_channels_last", lambda shape: len(shape) == 3)
    learning = Learning(tmp_path, env=Flicker)
    learning.update()
    state = tree_map_only(torch.Tensor, torch.Tensor.contiguous, learning.learner.state_dict())
    learning.update()
    expected = learning.weights()
    learning.learner.load_state_dict(state)
    learning.update()
    assert_same(learning.weights(), expected)


# =============================================================================== another algorithm
def counted_loss(batch):
    """A loss of a fork, with a number of its own, which hands a number of each column back."""
    columns = torch.arange(batch.real.shape[1]) + 0.5
    total = batch.outputs["baseline"].mean()
    return dict(total_loss=total, sizes=columns, seven=batch.count * 0 + 7)


def test_a_number_that_only_some_updates_tell_is_the_mean_over_these(tmp_path):
    learning, stats = Learning(tmp_path), Stats(N)
    late = iter([{"late": torch.tensor(1.0)}, {}, {"late": torch.tensor(5.0)}])
    learning.spy(lambda batch, loss: loss(batch) | next(late))
    for _ in range(3):
        stats.add_update(learning.update())
    assert stats.take()["late"] == 3.0


class Twice(learner.Between):
    """Lies between rollouts and learner: each batch is learned from twice."""

    def __init__(self):
        self.sizes = []

    def batches(self, rollouts):
        for batch in rollouts:
            yield from (batch, batch)

    def learned(self, batch, numbers):
        self.sizes.append(numbers and numbers["sizes"])


def test_what_lies_between_rollouts_and_learner(tmp_path):
    """It gets the vectors of a loss. Games are counted in new rollouts only."""
    learning, between, stats = Learning(tmp_path), Twice(), Stats(N)
    parts = learning.net, make_flags(), CPU, None, lambda batch: {}, counted_loss
    one = Learner(Updater(*parts))
    learning.batch["episode_over"][1:, 0] = torch.arange(learning.batch["done"].shape[0] - 1) == 2
    run, args = run_of(one, stats, between), (lambda *_: None, Clock(LEARNER_ACTIVITIES))
    learner.learn(run, [learning.batch] * 3, *args)
    assert one.updates == 6 and between.sizes == [[0.5, 1.5, 2.5]] * 6
    row = stats.take()
    assert row["seven"] == 7 and row["grad_norm"] > 0
    assert row["games"] == 3 * learning.batch["episode_over"][1:].sum()
    assert "pg_loss" not in row and "total_loss" in row
    learning.batch["frame"] *= float("nan")
    learner.learn(run, [learning.batch], *args)
    assert between.sizes[6:] == [None, None]  # the updates were skipped
    run.finished = lambda: True
    learner.learn(run, [learning.batch], *args)
    assert between.sizes[8:] == [None]  # it gets back what nobody learns from any more
