# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import warpbeast
from examples.tensors.tag import Tag
from libtorchbeast import evaluate, models
from libtorchbeast.agents import added, groups_of, make_net
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.learner import Learner
from libtorchbeast.loggers.timing import Clock
from libtorchbeast.spec import Actions
from libtorchbeast.tensors import TensorRows, TensorVector
from libtorchbeast.transitions import learn_from
from libtorchbeast.update import Updater
from tests.support.compare import assert_same

CPU = torch.device("cpu")
N = 3


def flags_of(text=""):
    small = "--env tag --num_envs 3 --batch_size 3 --unroll_length 4 --precision fp32 --xpid run "
    return warpbeast.parse((small + text).split())


def actor_of(tag, text=""):
    flags, spec = flags_of(text), spec_of(tag)
    rows, net = TensorRows(TensorVector(tag, N), spec, CPU), make_net(warpbeast.Net, spec, flags)
    return warpbeast.Actor(rows, net, 0, flags, Clock(warpbeast.ACTIVITIES))


def spec_of(tag):
    return Environment(lambda: TensorVector(tag, N), N, "tag").spec


def observed(**parts):
    """The observation of five agents, changed: the shape and dtype of parts."""
    parts = {"reward": ((5,), "float32")} | parts
    name = lambda part: part if part == "map" else f"a/{part}"
    return dict(observations={name(part): shape for part, shape in parts.items()})


EQUAL = "the same number of actions for each of 5 agents"


@pytest.mark.parametrize(
    "changes, expected",
    [
        (dict(actions=Actions("discrete", (7,))), EQUAL),
        (dict(actions=Actions("box", (7,))), EQUAL),
        (
            dict(actions=Actions("multi_discrete", (5, 5, 3, 5, 5))),
            r"expected the same actions for the 4 agents of taggers, seen \(5, 5, 3, 5\)",
        ),
        (observed(frame=((4, 5), "float32")), r"expected a/frame \[5, ...\], for 5 agents"),
        (observed(map=((4, 5), "float32")), "in one of the groups a, seen map"),
        (observed(reward=((5,), "float64")), "a/reward float32, seen float64"),
        (observed(action_mask=((5, 4), "bool")), "action_mask: expected .* for each action"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(changes, expected):
    with pytest.raises(UserError, match=expected):
        groups_of(dataclasses.replace(spec_of(Tag()), **changes))


def compute_loss(net, batch, flags):
    return learn_from(net, batch, None, warpbeast.targets, warpbeast.loss, flags, 0.0)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("lstm", ["", "--use_lstm"])
def test_a_loss_is_the_sum_of_the_groups_own(continuous, lstm):
    """Each group's is that of a plain network on the rows of its agents."""
    actor = actor_of(Tag(3, 2, continuous=continuous), lstm)
    rollout, net, flags = actor.unroll(0), actor.net, actor.flags
    total = compute_loss(net, rollout, flags)
    losses = []
    for (name, A), first in zip({"taggers": 3, "runners": 2}.items(), (0, 3), strict=True):
        own = net.nets[name]
        width, agents = own.distribution.num_logits, slice(first, first + A)
        columns = lambda x, A=A: x.reshape(5, N * A, *x.shape[3:])
        share = lambda x, agents=agents: x.reshape(5, N, 5, -1)[:, :, agents].flatten(1, 2)
        shape = (5, N * A, *own.distribution.action_shape)
        batch = {
            "frame": columns(rollout[f"{name}/frame"]),
            "reward": columns(rollout[f"{name}/reward"]),
            "policy_logits": share(rollout["policy_logits"]),
            "action": share(rollout["action"]).view(shape),
            "last_action": share(rollout["last_action"]).view(shape),
        }
        assert batch["policy_logits"].shape == (5, N * A, width)
        for k in ("done", "terminated"):
            batch[k] = rollout[k].repeat_interleave(A, 1)
        if lstm:
            states = [rollout[f"core_state/{i + 2 * (first > 0)}"] for i in range(2)]
            batch |= {f"core_state/{i}": x.flatten(1, 2) for i, x in enumerate(states)}
        losses.append(compute_loss(own, batch, flags))
    sums = lambda loss: [loss["total_loss"], loss["real_transitions"], *loss["scalars"].values()]
    of_groups = zip(*map(sums, losses), strict=True)
    torch.testing.assert_close(sums(total), [x + y for x, y in of_groups])
    torch.testing.assert_close(total["means"]["mean_rho"], torch.tensor(1.0))
    assert total["largest_reward"] == max(loss["largest_reward"] for loss in losses)
    entropies = sum(loss["means"]["entropy"] * loss["real_transitions"] for loss in losses)
    torch.testing.assert_close(total["means"]["entropy"], entropies / total["real_transitions"])
    total["total_loss"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.parametrize("continuous", [False, True])
def test_the_joint_distribution_is_that_of_independent_agents(continuous):
    net = actor_of(Tag(3, 2, continuous=continuous)).net
    joint, one = net.distribution, net.nets["taggers"].distribution
    torch.manual_seed(0)
    logits = torch.randn(2, N, joint.num_logits)
    each = logits.view(2, N, 5, one.num_logits)
    torch.manual_seed(1)
    actions = joint.sample(logits)
    assert actions.shape == (2, N, *joint.action_shape) and actions.dtype == joint.action_dtype
    torch.manual_seed(1)
    alone = torch.cat([one.sample(each[:, :, :3]), one.sample(each[:, :, 3:])], dim=2)
    assert torch.equal(actions.view(2, N, 5, *one.action_shape), alone)
    assert torch.equal(joint.mode(logits).view(2, N, 5, *one.action_shape), one.mode(each))


def test_each_agent_obeys_its_own_mask():
    class Masked(Tag):
        """An agent i may choose action i only."""

        def __init__(self):
            super().__init__(3, 1)
            self.observations = {**self.observations, "taggers/action_mask": ((3, 5), "bool")}

        def observe(self, state):
            mask = torch.eye(5, dtype=torch.bool)[:3].expand(N, 3, 5)
            return {**super().observe(state), "taggers/action_mask": mask}

    actor = actor_of(Masked())
    rollout = actor.unroll(0)
    assert (rollout["action"][..., :3] == torch.arange(3)).all()
    loss = compute_loss(actor.net, rollout, actor.flags)
    assert loss["means"]["mean_rho"].item() == pytest.approx(1, abs=1e-5)


def test_an_environments_own_discount_is_that_of_each_agent():
    actor, seen = actor_of(Tag(3, 2), "--discounting 0.8"), []
    batch = actor.unroll(0)
    batch["discount"] = torch.tensor([1.0, 0.25, 0.5]).expand_as(batch["reward"])

    def targets(batch):
        seen.append(batch.discount[0].tolist())
        return warpbeast.targets(batch)

    learn_from(actor.net, batch, None, targets, warpbeast.loss, actor.flags, 0.0)
    assert seen == [pytest.approx([0.8] * A + [0.2] * A + [0.4] * A) for A in (3, 2)]


def test_a_scale_of_returns_needs_the_returns_of_agents():
    expected = "--reward_scaling returns: expected none, unless each group of agents has a part"
    with pytest.raises(UserError, match=expected):
        actor_of(Tag(), "--reward_scaling returns")


def test_two_groups_train_and_play(tmp_path):
    text = "--passes 2 --minibatches 2 --observation_scaling moments"
    few = f"--total_steps 400 --eval_every 0 --torch_threads 1 --savedir {tmp_path} {text}"
    run = warpbeast.train(flags_of(few))
    assert run.complete() and run.learner.updates >= 400 // (3 * 4 * 5)
    play = f"{text} --savedir {tmp_path} --num_episodes 2 --mode test_render --max_episode_steps 5"
    games = evaluate.play_newest(flags_of(play), warpbeast.player)
    assert len(games) == 2 and np.isfinite([game.score for game in games]).all()
    assert (tmp_path / "run" / "test.mp4").stat().st_size > 1000


# =============================================================== optional methods of their networks
class Hooked(warpbeast.Net):
    """Has all methods that a network may have. Of the critic only the bias is trained."""

    def for_loss(self, spec, flags):
        self.steps, self.taken, self.seen = [], [], spec.observations["frame"][0]
        return dict(critic=nn.Linear(1, 1))

    def parameter_groups(self, flags):
        still = dict(params=[self.critic.weight], lr=0.0)
        return [dict(params=self.parameters()), still, dict(params=[self.critic.bias])]

    def statistics(self, batch):
        return dict(count=batch.real.sum(), reward=(batch.real * batch.next["reward"]).sum())

    def take_statistics(self, sums):
        self.taken.append({name: x.item() for name, x in sums.items()})

    def after_step(self, updates):
        self.steps.append(updates)


def loss_with_critic(batch):
    batch.net.weights = batch.columns["weight"].tolist()
    results = warpbeast.loss(batch)
    guess = batch.net.critic(batch.outputs["baseline"].detach().unsqueeze(-1)).squeeze(-1)
    errors = batch.columns["weight"] * (guess - batch.reward) ** 2
    return results | {"total_loss": results["total_loss"] + batch.mean(errors)}


def learner_of(net, loss, text=""):
    spec, flags = spec_of(Tag(3, 2)), flags_of(text)
    models.add_for_loss(net, spec, flags)
    return Learner(Updater(net, flags, CPU, None, warpbeast.targets, loss))


def test_the_optional_methods_of_each_groups_network_are_called():
    actor = actor_of(Tag(3, 2), "--net tests.agents_test.Hooked --learning_rate 0.01")
    learner = learner_of(actor.net, loss_with_critic, "--learning_rate 0.01")
    rollout, published = actor.unroll(0), []
    rollout["taggers/reward"][1:] = 0.5
    batch = rollout | {"column/weight": torch.tensor([[1.0, 2.0, 3.0]])}
    before = learner.state_dict()
    assert learner.update(batch, lambda state, version: published.append(state)) is not None
    after = learner.state_dict()
    real = int((~rollout["done"][1:]).sum())
    for name, agents in (("taggers", 3), ("runners", 2)):
        net = actor.net.nets[name]
        assert net.weights == [1] * agents + [2] * agents + [3] * agents
        assert net.steps == [1] and net.seen == actor.net.groups[0].spec.observations["frame"][0]
        rewards = (~rollout["done"][1:]).unsqueeze(-1) * rollout[f"{name}/reward"][1:]
        expected = dict(count=real * agents, reward=rewards.sum().item())
        assert net.taken == [pytest.approx(expected)]
        weight, bias = (f"of_{name}.critic.{k}" for k in ("weight", "bias"))
        assert torch.equal(after["loss"][weight], before["loss"][weight])
        assert not torch.equal(after["loss"][bias], before["loss"][bias])
    assert not any("critic" in key for key in (*published[0], *after["model"]))
    assert [len(x["params"]) for x in after["optimizer"]["param_groups"]][1:3] == [1, 1]
    assert len(after["optimizer"]["param_groups"]) == 6

    other = actor_of(Tag(3, 2), "--net tests.agents_test.Hooked").net
    resumed = learner_of(other, loss_with_critic)
    resumed.load_state_dict(after)
    for part in ("model", "loss"):
        assert_same(resumed.state_dict()[part], after[part])


@pytest.mark.parametrize("agents", [2, 3])  # of the runners, of the taggers
def test_a_column_may_be_of_one_group_only_and_a_vector_is_refused(agents):
    actor = actor_of(Tag(3, 2))
    batch = actor.unroll(0)

    def loss(batch):
        is_own = batch.real.shape[1] == N * agents
        own = dict(term=batch.weights, number=batch.count) if is_own else {}
        return warpbeast.loss(batch) | own

    numbers = learner_of(actor.net, loss).update(batch, lambda state, version: None)
    assert numbers["term"] == 1 and numbers["number"] == (~batch["done"][1:]).sum() * agents
    loss_with_vector = lambda batch: warpbeast.loss(batch) | dict(of_columns=batch.weights.sum(0))
    with pytest.raises(UserError, match=r"vectors \['of_columns', .*; expected none with groups"):
        learner_of(actor.net, loss_with_vector).update(batch, lambda state, version: None)


def test_groups_without_a_real_transition_have_means_of_0():
    nothing = {kind: {} for kind in ("vectors", "sums", "scalars")}
    nothing |= dict.fromkeys(("total_loss", "largest_reward", "real_transitions"), torch.zeros(()))
    assert added([nothing | {"means": {"entropy": torch.zeros(())}}])["means"]["entropy"] == 0


def test_without_such_methods_all_groups_have_one_gradient_to_clip():
    net = actor_of(Tag(3, 2)).net
    (group,) = learner_of(net, warpbeast.loss).state_dict()["optimizer"]["param_groups"]
    assert len(group["params"]) == len([*net.parameters()])


def test_statistics_that_nobody_takes_are_refused_in_one_sentence():
    actor = actor_of(Tag(3, 2))
    for net in actor.net.nets.values():
        net.statistics = lambda batch: dict(count=batch.real.sum())
    learner = learner_of(actor.net, warpbeast.loss)
    with pytest.raises(UserError, match="AttributeError.*take_statistics.* in take_statistics"):
        learner.update(actor.unroll(0), lambda state, version: None)


def test_the_networks_of_groups_may_choose_the_actions_themselves(monkeypatch):
    class Own(warpbeast.Net):
        def forward(self, inputs, core_state=()):
            outputs, core_state = super().forward(inputs, core_state)
            action = torch.full_like(outputs["baseline"], 2).long()
            return outputs | {"action": action}, core_state

    monkeypatch.setattr(warpbeast, "Net", Own)
    rollout = actor_of(Tag(3, 2)).unroll(version=0)
    assert rollout["action"].shape == (5, N, 5) and (rollout["action"] == 2).all()


def test_a_group_may_have_the_name_of_a_method():
    spec = spec_of(Tag(3, 2))
    own = {"taggers": "train_", "runners": "train"}
    named = lambda key: "/".join([own[key.split("/")[0]], *key.split("/")[1:]])
    parts = {named(k): x for k, x in spec.observations.items()}
    net = make_net(warpbeast.Net, dataclasses.replace(spec, observations=parts), flags_of())
    assert [group.name for group, _ in net.members()] == ["train_", "train"]
