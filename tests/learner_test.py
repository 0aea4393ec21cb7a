# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The learner's updates: the same for both beasts, and none from numbers that are not finite."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

import monobeast
from libtorchbeast import BatchingQueue, learner, models, skipped
from libtorchbeast.accelerator.devices import CPU
from libtorchbeast.flags import UserError
from libtorchbeast.learner import Learner
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, LEARNER_ACTIVITIES, Clock
from libtorchbeast.losses import learn_from
from libtorchbeast.rollouts import batches
from libtorchbeast.skipped import MAX_SKIPPED_IN_A_ROW
from libtorchbeast.spec import Actions, Spec
from libtorchbeast.update import Updater
from tests.support.actors import (
    OnesNet,
    make_actor,
    make_flags,
    make_learner,
    make_rollouts,
    run_of,
)
from tests.support.compare import assert_same
from tests.support.monobeast import IN_ORDER, beast, parse

pytestmark = pytest.mark.usefixtures("one_thread", "as_before")


def test_an_update_that_hangs_while_a_checkpoint_is_due_ends_the_run(monkeypatch):
    monkeypatch.setattr(learner, "CLOSE_S", 0.1)
    one = make_learner(nn.Linear(1, 1), make_flags())
    asked = iter([False, True])  # a signal comes while the main loop waits for the state
    one.must_end = lambda: next(asked)
    with one._one_at_a_time, pytest.raises(learner.UpdateHung):
        one.state_dict()
    assert one.state_dict()["updates"] == 0


@pytest.mark.parametrize(
    "lstm", [[], ["--use_lstm"], ["--core", "mingru"]], ids=["feed-forward", "lstm", "mingru"]
)
@pytest.mark.parametrize("batch_size", [2, 3, 4])
def test_the_same_rollouts_give_both_learners_the_same_update_bit_for_bit(lstm, batch_size):
    """MonoBeast's rollouts, through its own batches and through PolyBeast's queue."""
    actor = make_actor(OnesNet, *lstm)
    rollouts = make_rollouts(actor, 4)
    mono = batches([(rollout, lambda: None) for rollout in rollouts], batch_size)
    queue = BatchingQueue(batch_size, 100)
    for rollout in rollouts:
        queue.enqueue(rollout)
    actor.net.given = []
    flags = make_flags(*lstm)
    learners = [make_learner(copy.deepcopy(actor.net), flags) for _ in "MP"]
    start = copy.deepcopy(dict(actor.net.state_dict()))
    for batch in mono:
        other = queue.dequeue()
        assert_same(other, dict(batch))
        numbers = [
            learner.update(own, lambda weights, version: None)
            for learner, own in zip(learners, (batch, other), strict=True)
        ]
        assert_same(*numbers)
        assert numbers[0]["grad_norm"] > 0
        assert_same(*[[p.grad for p in learner.net.parameters()] for learner in learners])
        assert_same(*[learner.net.state_dict() for learner in learners])
        assert_same(*[learner.state_dict() for learner in learners])
    assert queue.size() == 12 % batch_size and learners[0].updates == 12 // batch_size
    assert not torch.equal(start["policy.weight"], learners[0].net.policy.weight)


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
    """A learner on CartPole, whose observations are floats, with what it needs for an update."""

    def __init__(self, dump_dir, net=monobeast.Net, *flags):
        once = "--passes 1 --minibatches 1".split()
        flags = parse("--env", "CartPole-v1", *IN_ORDER[2:], *once, *flags)
        flags, spec, shapes = monobeast.describe(flags)
        self.net = models.make_net(net, spec, flags)
        self.learner = make_learner(self.net, flags, dump_dir=str(dump_dir))
        self.published = []
        rollout = {k: torch.zeros(shape, dtype=dtype) for k, (shape, dtype) in shapes.items()}
        env = monobeast.make_environment(flags)
        actor = monobeast.Actor(env, self.net, 0, flags, Clock(ACTOR_ACTIVITIES))
        actor.unroll({k: v.numpy() for k, v in rollout.items()}, version=0)
        (self.batch,) = batches([(rollout, lambda: None)], flags.batch_size)

    def update(self, spoilt=None):
        """An update, with a NaN in the batch's key `spoilt`."""
        batch = {k: v.clone() for k, v in self.batch.items()}
        if spoilt:
            batch[spoilt][3, 1] = float("nan")
        return self.learner.update(batch, lambda weights, version: self.published.append(version))

    def weights(self):
        return {k: v.clone() for k, v in self.net.state_dict().items()}


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_loss_gets_the_share_of_the_steps_that_is_done(tmp_path, schedule):
    flags = ["--total_steps", 1000, "--entropy_schedule", schedule, "--ppo_clip", 0]
    learning, seen = Learning(tmp_path, monobeast.Net, *flags), []
    loss = learning.learner.updater._loss
    spy = lambda batch: (seen.append(batch.progress), loss(batch))[1]
    learning.learner.updater._loss = spy
    for step in (0, 750, 10_000):
        learning.learner.step = step
        learning.update()
    assert seen == [0.0, 0.75, 1.0]


@pytest.mark.parametrize("key", ["frame", "policy_logits", "reward"])
def test_a_non_finite_loss_changes_nothing_and_is_counted_and_dumped(tmp_path, key):
    learning = Learning(tmp_path)
    assert learning.update() is not None  # the optimizer has averages
    before, optimizer = learning.weights(), learning.learner.state_dict()["optimizer"]
    step = learning.learner.step
    assert learning.update(spoilt=key) is None
    assert_same(learning.weights(), before)
    assert_same(learning.learner.state_dict()["optimizer"], optimizer)
    assert learning.published == [1]
    assert (learning.learner.skips.count, learning.learner.step) == (1, step)
    dump = torch.load(tmp_path / "nonfinite-1.tar", weights_only=True)
    assert dump["batch"][key].isnan().any()
    assert_same(dict(dump["model"]), dict(before))
    assert learning.update() is not None and learning.published == [1, 2]
    assert all(tensor.isfinite().all() for tensor in learning.weights().values())


def test_non_finite_losses_end_the_run_only_when_they_persist(tmp_path):
    learning = Learning(tmp_path)
    for _ in range(2):  # a good batch in between starts the count again
        for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
            assert learning.update(spoilt="frame") is None
        assert learning.update() is not None
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        learning.update(spoilt="frame")
    with pytest.raises(UserError, match=f"{MAX_SKIPPED_IN_A_ROW} updates in a row"):
        learning.update(spoilt="frame")
    # Enough to debug, not a full disk; and in any case the one that ended the run.
    last = 3 * MAX_SKIPPED_IN_A_ROW - 2
    names = {f"nonfinite-{number}.tar" for number in (1, 2, 3, last)}
    assert {path.name for path in tmp_path.glob("nonfinite-*.tar")} == names


UNSCALED = "--net monobeast.Net --observation_scaling none --reward_scaling none".split()


def test_very_large_observations_are_named(tmp_path, caplog):
    learning = Learning(tmp_path, monobeast.Net, *UNSCALED)
    assert learning.update(spoilt="frame") is None and "scale it" not in caplog.text
    learning.batch["frame"] *= 1e15
    assert learning.update() is None
    assert re.search(r"'frame' has numbers as large as \S+e\+15, .* scale it down", caplog.text)


def test_a_network_that_is_not_finite_in_the_learner_is_named(tmp_path, caplog):
    learning = Learning(tmp_path, monobeast.Net, *UNSCALED)
    with torch.no_grad():
        learning.net.baseline.bias.fill_(float("nan"))
    assert learning.update() is None
    text = (
        r"Your network returned NaN or infinity in baseline for frame from -\S+ to \S+; expected "
    )
    assert re.search(
        text + r"finite numbers \(forward is \S*/monobeast.py:\d+\)$", caplog.text, re.M
    )


def test_heads_in_bfloat16_are_named_in_the_learner(tmp_path, monkeypatch):
    """A machine without bf16 does not find them at the start, but its GPU computes in bf16."""
    learning = Learning(tmp_path)
    forward = learning.net.forward
    in_bf16 = lambda *inputs: ({k: v.bfloat16() for k, v in forward(*inputs)[0].items()}, ())
    monkeypatch.setattr(learning.net, "forward", in_bf16)
    with pytest.raises(UserError, match="^Your network returned `policy_logits` in bfloat16"):
        learning.update()


class CountingNet(monobeast.Net):
    """Normalises observations by their running mean, as a fork may do."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs, core_state=()):
        self.mean.lerp_(inputs["frame"].mean((0, 1)), 0.1)
        return super().forward(inputs, core_state)


def test_a_skipped_batch_leaves_no_trace_in_running_means(tmp_path):
    learning = Learning(tmp_path, CountingNet)
    learning.update()
    before = learning.weights()
    assert before["mean"].abs().sum() > 0
    assert learning.update(spoilt="frame") is None
    assert_same(learning.weights(), before)


def test_a_batch_without_a_real_transition_changes_nothing(tmp_path):
    """It has a gradient of 0, but the optimizer's averages would move the weights."""
    learning = Learning(tmp_path, CountingNet)
    assert learning.update() is not None
    before, state = learning.weights(), learning.learner.state_dict()
    real = learning.batch
    learning.batch = real | {"done": torch.ones_like(real["done"])}
    assert learning.update() is None
    assert_same(learning.weights(), before)
    assert_same(learning.learner.state_dict(), state)  # `skipped` is in it
    assert learning.published == [1] and not list(tmp_path.iterdir())
    learning.batch = real
    assert learning.update() is not None and learning.published == [1, 2]


@pytest.mark.parametrize("core", [["--net", "monobeast.Net"], ["--use_lstm"]], ids=["", "lstm"])
def test_passes_are_updates_from_the_same_batch_which_counts_once(tmp_path, core):
    """The targets stay those of the first, whatever the loss."""
    flags = "--ppo_clip 0 --observation_scaling none --reward_scaling none --passes 3".split()
    learning, seen, totals = Learning(tmp_path, monobeast.Net, *core, *flags), [], []
    loss = learning.learner.updater._loss

    def spy(batch):
        seen.append((batch.targets["v"].flatten(), batch.outputs["baseline"].detach().flatten()))
        found = loss(batch)
        totals.append(found["total_loss"].item())
        return found

    learning.learner.updater._loss = spy
    numbers = learning.update()
    assert learning.published == [1, 2, 3]
    assert learning.learner.step == int((~learning.batch["done"][1:]).sum())
    assert numbers["lag_max"] == 0
    assert numbers["total_loss"] == pytest.approx(sum(totals) / 3) and len(set(totals)) == 3
    assert torch.equal(seen[0][0], seen[1][0]) and torch.equal(seen[0][0], seen[2][0])
    assert not torch.allclose(seen[0][1], seen[2][1])  # the values have moved


@pytest.mark.parametrize("lstm", [False, True])
def test_minibatches_divide_a_batch_anew_in_each_pass_and_targets_stay(tmp_path, lstm):
    """Transitions, or columns if the network is recurrent. The rewards tell them apart."""
    own = ["--use_lstm"] if lstm else ["--net", "monobeast.Net"]
    scaled = "--observation_scaling moments --reward_scaling returns"
    flags = f"--ppo_clip 0.2 --passes 2 --minibatches 3 {scaled}".split()
    learning, seen = Learning(tmp_path, monobeast.Net, *own, *flags), []
    rewards = learning.batch["reward"]
    rewards[:] = torch.arange(rewards.numel()).view(rewards.shape)
    learning.batch["done"][2, 1] = True
    loss = learning.learner.updater._loss

    def spy(batch):
        inputs = {"reward": batch.rows["reward"][:-1], "next": batch.next["reward"]}
        seen.append({**inputs, "target": batch.targets["v"], "real": batch.real})
        return loss(batch)

    learning.learner.updater._loss = spy
    learning.update()
    T, B = rewards[:-1].shape
    passes = [
        {k: torch.cat([x[k] for x in part], 1) for k in seen[0]} for part in (seen[:3], seen[3:])
    ]
    assert passes[0]["reward"].shape == ((T, B) if lstm else (1, T * B))
    assert not torch.equal(passes[0]["reward"], passes[1]["reward"])  # in another order
    for k in ("reward", "next", "target"):
        assert torch.equal(*(each[k].flatten().sort().values for each in passes))
    assert passes[0]["reward"].sum() == rewards[:-1].sum()  # of the network's input, not scaled
    assert (passes[0]["next"] - passes[0]["reward"] == B).all()  # of the row after it
    assert learning.learner.step == int(passes[0]["real"].sum())
    assert learning.learner.step == int((~learning.batch["done"][1:]).sum()) < T * B
    assert learning.published == [1, 2, 3, 4, 5, 6]
    assert learning.net.moments.count == learning.learner.step


def test_the_largest_reward_is_that_of_all_minibatches(tmp_path):
    learning = Learning(tmp_path, monobeast.Net, "--minibatches", 4, "--reward_scaling", "none")
    learning.batch["reward"][3, 1], learning.batch["done"][:] = 7.0, False
    assert learning.update()["largest_reward"] == 7.0


def test_minibatches_without_a_real_transition_change_nothing(tmp_path):
    """Columns whose environments have left may be all that a minibatch has."""
    flags = "--use_lstm --ppo_clip 0.2 --minibatches 4".split()
    learning = Learning(tmp_path, monobeast.Net, *flags)
    learning.batch["done"][:] = False
    learning.update()
    learning.published.clear()
    learning.batch["policy_version"][:] = learning.learner.updates
    learning.batch["done"][:, 1:] = True
    numbers = learning.update()
    assert learning.published == [5] and numbers["mean_rho"] > 0.5


def test_batches_without_a_real_transition_end_the_run_only_when_they_persist(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(skipped, "MAX_EMPTY_IN_A_ROW", 3)
    learning = Learning(tmp_path)
    real = learning.batch
    empty = real | {"done": torch.ones_like(real["done"])}
    for batch in (empty, empty, real, empty, empty):  # a real one starts the count again
        learning.batch = batch
        learning.update()
    with pytest.raises(RuntimeError, match="3 batches in a row had no transition to learn from"):
        learning.update()


def test_a_run_goes_on_after_batches_without_a_real_transition(tmp_path):
    """Here every second batch has none: the environments' resets fall together."""
    env = ("--env", "tests.support.envs:OneStepCatch-v0", "--unroll_length", 1)
    beast(tmp_path, *IN_ORDER, *env, "--total_steps", 100)
    state = torch.load(tmp_path / "run" / "model.tar", weights_only=True)
    assert (state["step"], state["updates"], state["skipped"]) == (100, 25, 0)


def test_bf16_with_a_gaussian_policy_is_obeyed_with_a_warning(caplog):
    flags = make_flags("--precision", "bf16")
    spec = Spec("some", 1, {"frame": ((4,), "uint8")}, Actions("box", (2,)))
    net = models.make_net(monobeast.Net, spec, flags)
    make_learner(net, flags)
    assert "--precision bf16: with Box actions the importance weights are noisy" in caplog.text
    with models.autocast(net, flags.precision, torch.device("cpu")):
        assert torch.is_autocast_enabled("cpu")


HUGE = "--learning_rate 1000 --grad_norm_clipping 1e12 --epsilon 1e-12".split()


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_no_gradient_makes_weights_infinite_within_the_flags_ranges(tmp_path, optimizer):
    """The gradient is huge and finite in the first update, and 0 in the next ones."""
    learning = Learning(tmp_path, monobeast.Net, *HUGE, "--optimizer", optimizer)
    for number in range(3):
        for weight in learning.net.parameters():
            weight.grad = torch.full_like(weight, 0.0 if number else 1e12)
        learning.learner.updater.optimizer._own.step()
        for tensor in tensors_of(learning.learner.state_dict()):
            assert tensor.isfinite().all()


def test_averages_that_were_saved_on_a_device_go_on_elsewhere(tmp_path, monkeypatch):
    """Copied from there they are contiguous. torch's fused Adam takes them to lie in memory as the
    weights do, which have the channels last."""
    monkeypatch.setattr(models, "_channels_last", lambda shape: len(shape) == 3)
    image = ["--env", "MinAtar/Asterix-v1", "--net", "monobeast.Net", "--optimizer", "adam"]
    learning = Learning(tmp_path, monobeast.Net, *image)
    learning.update()
    state = tree_map_only(torch.Tensor, torch.Tensor.contiguous, learning.learner.state_dict())
    learning.update()
    expected = learning.weights()
    learning.learner.load_state_dict(state)
    learning.update()
    assert_same(learning.weights(), expected)


def tensors_of(state):
    moments = [x for s in state["optimizer"]["state"].values() for x in s.values()]
    return [*state["model"].values(), *(x for x in moments if torch.is_tensor(x))]


# =============================================================================== another algorithm
def counted_loss(batch):
    """A loss of a fork, with a number of its own, which hands a number of each column back."""
    columns = torch.arange(batch.real.shape[1]) + 0.5
    return dict(
        total_loss=batch.outputs["baseline"].mean(), sizes=columns, seven=batch.count * 0 + 7
    )


def learner_of(learning):
    return Learner(Updater(learning.net, make_flags(), CPU, None, lambda batch: {}, counted_loss))


def test_another_loss_is_used_and_hands_vectors_back(tmp_path):
    learning = Learning(tmp_path)
    one = learner_of(learning)
    numbers = one.update(learning.batch, lambda weights, version: None)
    assert numbers["sizes"] == [0.5, 1.5, 2.5, 3.5] and numbers["grad_norm"] > 0
    assert numbers["seven"] == 7 and one.updates == 1
    learning.batch["frame"] *= float("nan")
    assert one.update(learning.batch, lambda weights, version: None) is None
    assert one.skips.count == 1


def test_a_batch_may_say_how_many_steps_it_adds(tmp_path):
    """As a replay does, or demonstrations, which add none."""
    learning = Learning(tmp_path, monobeast.Net, "--passes", 2, "--minibatches", 2)
    for new in (0, 5):
        learning.batch["column/new_steps"] = torch.full((1, 4), new)
        assert learning.update() is not None
    assert learning.learner.step == 5 and learning.learner.updates == 8


def test_a_number_that_only_some_updates_tell_is_the_mean_over_these(tmp_path):
    learning, stats = Learning(tmp_path), Stats(4)
    loss = learning.learner.updater._loss
    told = iter([1.0, None, 5.0])

    def phases(batch):
        value = next(told)
        return loss(batch) | ({} if value is None else {"late": torch.tensor(value)})

    learning.learner.updater._loss = phases
    for _ in range(3):
        stats.add_update(learning.update())
    assert stats.take()["late"] == 3.0


class Twice(learner.Direct):
    """Lies between rollouts and learner: each batch is learned from twice."""

    def __init__(self):
        self.sizes = []

    def batches(self, rollouts):
        for batch in rollouts:
            yield from (batch, batch)

    def learned(self, batch, numbers):
        self.sizes.append(numbers and numbers["sizes"])


def test_what_lies_between_rollouts_and_learner(tmp_path):
    """Games are counted in new rollouts only."""
    learning, between, stats = Learning(tmp_path), Twice(), Stats(4)
    one = learner_of(learning)
    learning.batch["episode_over"][1:, 0] = torch.arange(learning.batch["done"].shape[0] - 1) == 2
    run, args = run_of(one, stats, between), (lambda *_: None, Clock(LEARNER_ACTIVITIES))
    learner.learn(run, [learning.batch] * 3, *args)
    assert one.updates == len(between.sizes) == 6 and None not in between.sizes
    row = stats.take()
    assert row["games"] == 3 * learning.batch["episode_over"][1:].sum()
    assert "pg_loss" not in row and "total_loss" in row
    learning.batch["frame"] *= float("nan")
    learner.learn(run, [learning.batch], *args)
    assert between.sizes[6:] == [None, None]  # the updates were skipped
