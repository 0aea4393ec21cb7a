# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a loss gets, and PPO's loss, in which the targets come before the loss."""

from argparse import Namespace

import pytest
import torch

import monobeast
import vtrace
from libtorchbeast.distributions import Categorical
from libtorchbeast.flags import UserError
from libtorchbeast.net_check import check_rows
from libtorchbeast.transitions import call_targets, learn_from, results_of, transitions_of
from libtorchbeast.update import read
from tests.support.actors import make_actor, make_flags, make_rollouts
from tests.support.losses import impala_loss, transitions

A = 3
SHARED = dict(discounting=0.9, vtrace_lambda=0.8, reward_clipping="none", entropy_cost=0.1)


def make_rollout(T=5, B=3, num_actions=A):
    """(rows, outputs) of a policy that acts and learns, in which episodes end."""
    torch.manual_seed(0)
    rows = dict(
        reward=torch.randn(T + 1, B), done=torch.rand(T + 1, B) < 0.2,
        terminated=torch.rand(T + 1, B) < 0.2, action=torch.randint(num_actions, (T + 1, B)),
        policy_logits=torch.randn(T + 1, B, num_actions),
    )  # fmt: skip
    assert 0 < rows["done"][1:].sum() < T * B
    return rows, dict(policy_logits=rows["policy_logits"], baseline=torch.randn(T + 1, B))


def leaves(outputs):
    return {k: v[:-1].clone().requires_grad_() for k, v in outputs.items()}


def targets_of(rows, outputs, **flags):
    return call_targets(transitions(rows, outputs, **SHARED | flags), monobeast.targets)[0]


def ppo_loss(rows, outputs, targets, **flags):
    batch = transitions(rows, outputs, ppo_clip=0.2, **SHARED | flags)
    return results_of(batch, targets, monobeast.targets, monobeast.loss)


# =========================================================================================== rows
def test_each_row_has_its_place_and_only_there():
    """What a transition t begins with is in `now`, what it leads to in `next`."""
    row = torch.arange(5.0).view(-1, 1).expand(-1, 2)
    names = ("frame", "reward", "discount", "terminated", "truncated", "last_action", "action")
    rows = {name: row.clone() for name in (*names, "policy_logits", "policy_version")}
    rows["done"] = torch.zeros(5, 2, dtype=torch.bool)
    batch = transitions(rows, {"policy_logits": row[..., None] + 10, "baseline": row + 20})
    assert batch.now.keys() == {"frame", "last_action", "action", "policy_version"}
    assert batch.next.keys() == {"frame", "reward", "discount", "terminated", "truncated"}
    assert batch.behavior.keys() == {"policy_logits"}
    for name, x in batch.now.items() | batch.behavior.items():
        assert torch.equal(x, row[:-1]), name
    for name, x in batch.next.items():
        assert torch.equal(x, row[1:]), name


class Describing(monobeast.Net):
    """Has two outputs of its own, of which one does not travel in rows."""

    def forward(self, inputs, core_state=()):
        outputs, core_state = super().forward(inputs, core_state)
        own = inputs["frame"] + self.baseline.bias.detach()
        return outputs | {"seen": own, "loss/seen": own.sum(-1)}, core_state


def test_all_outputs_reach_targets_and_loss():
    """Those of the network in training are `outputs`, those of the one that acted `behavior`."""
    actor = make_actor(Describing)
    (rollout,) = make_rollouts(actor, 1)
    with torch.no_grad():
        actor.net.baseline.bias += 1
    calls = []

    def note(batch, rows):
        calls.append(batch)
        assert batch.outputs["seen"].shape[0] == batch.outputs["loss/seen"].shape[0] == rows
        T = len(batch.real)
        torch.testing.assert_close(batch.outputs["seen"][:T], batch.behavior["seen"] + 1)
        assert "loss/seen" not in batch.behavior and "seen" not in batch.now | batch.next

    def targets(batch):
        note(batch, len(batch.real) + 1)
        return {"goal": batch.outputs["loss/seen"][:-1]}

    def loss(batch):
        note(batch, len(batch.real))
        assert torch.equal(batch.targets["goal"], batch.outputs["loss/seen"])
        return dict(total_loss=batch.mean(batch.outputs["baseline"]))

    learn_from(actor.net, rollout, None, targets, loss, make_flags(), 0.0)
    assert len(calls) == 2


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_mean_takes_a_number_for_each_transition_and_the_real_ones_only(reduction):
    rows, outputs = make_rollout()
    batch = transitions(rows, outputs, loss_reduction=reduction)
    terms = torch.randn(5, 3)
    real = ~rows["done"][1:]
    expected = terms[real].sum() if reduction == "sum" else terms[real].mean()
    torch.testing.assert_close(batch.mean(terms), expected)
    for terms in (torch.zeros(3), torch.zeros(5, 1), torch.zeros(6, 3), torch.zeros(5, 3, A)):
        with pytest.raises(ValueError, match=r"mean: expected a number for each .* \[5, 3\], seen"):
            batch.mean(terms)


def test_the_bonus_for_entropy_falls_with_progress():
    rows, outputs = make_rollout()
    on_device = torch.tensor(0.75)
    for schedule, progress, share in (("constant", 0.75, 1), ("linear", on_device, 0.25)):
        flags = dict(entropy_cost=0.4, entropy_schedule=schedule)
        outputs = {k: x.requires_grad_() for k, x in outputs.items()}
        found = impala_loss(rows, outputs, progress=progress, **flags)
        expected = found.pg_loss + 0.5 * found.baseline_loss - 0.4 * share * found.entropy
        torch.testing.assert_close(found.total_loss, expected)


def test_each_kind_of_result_has_its_place():
    """Scalars are as they are, of [T, B] the mean over real transitions, vectors go back."""
    rows, outputs = make_rollout()
    terms = torch.randn(5, 3)

    def loss(batch):
        vector = torch.arange(3.0)
        return dict(total_loss=batch.outputs["baseline"].sum(), a=batch.count, b=terms, c=vector)

    outputs["baseline"].requires_grad_()
    found = results_of(transitions(rows, outputs), None, monobeast.targets, loss)
    real = ~rows["done"][1:]
    assert found["total_loss"].requires_grad
    assert found["scalars"] == {"a": real.sum()} and found["vectors"]["c"].tolist() == [0, 1, 2]
    torch.testing.assert_close(found["means"]["b"], terms[real].mean())
    assert "mean_rho" in found["means"]  # `targets` used the importance weights
    numbers = read(found)
    assert numbers["c"] == [0, 1, 2] and numbers["real_transitions"] == real.sum()
    without = results_of(transitions(rows, outputs), None, lambda batch: {}, loss)
    assert "mean_rho" not in without["means"]


WRONG = [
    ("done", lambda x: x.to(torch.uint8), r"uint8\[6, 3\]; expected bool\[6, 3\]"),
    ("done", lambda x: x[:-1], r"bool\[5, 3\]; expected bool\[6, 3\]"),
    ("terminated", lambda x: x.int(), r"int32\[6, 3\]; expected bool\[6, 3\]"),
    ("reward", lambda x: x[:, :1], r"float32\[6, 1\]; expected float32\[6, 3\]"),
    ("action", lambda x: x.int(), r"int32\[6, 3\]; expected int64\[6, 3\]"),
    ("policy_logits", lambda x: x[..., :2], r"float32\[6, 3, 2\]; expected float32\[6, 3, 4\]"),
]


@pytest.mark.parametrize("name, change, said", WRONG)
def test_errors_of_a_batch_name_tensor_seen_and_expected(name, change, said):
    rows, net = make_rollout(num_actions=4)[0], Namespace(distribution=Categorical(4))
    check_rows(rows, net.distribution)
    with pytest.raises(UserError, match=f"^A batch has {name} {said}$"):
        transitions_of(net, rows | {name: change(rows[name])}, Namespace(), 0.0)


# ============================================================================================ PPO
def test_on_policy_the_targets_are_those_of_vtrace_and_the_advantages_are_standardised():
    rows, outputs = make_rollout()
    targets = targets_of(rows, outputs)
    trace = vtrace.from_importance_weights(
        torch.zeros(5, 3), 0.9 * (~rows["terminated"][1:]).float(), rows["reward"][1:],
        outputs["baseline"][:-1], outputs["baseline"][-1], lambda_=0.8, real=~rows["done"][1:],
    )  # fmt: skip
    real = ~rows["done"][1:]
    torch.testing.assert_close(targets["v"], trace.vs)
    x = trace.advantages[real]
    torch.testing.assert_close(targets["advantage"][real], x)

    now = leaves(outputs)
    ppo_loss(rows, now, targets, entropy_cost=0.0)["total_loss"].backward()
    taken = torch.eye(A)[rows["action"]][:-1] - now["policy_logits"].detach().softmax(-1)
    scaled = ((x - x.mean()) / x.std(correction=0)).unsqueeze(-1)
    gradient = now["policy_logits"].grad
    torch.testing.assert_close(gradient[real], -scaled * taken[real] / real.sum())
    assert (gradient[~real] == 0).all() and (now["baseline"].grad[~real] == 0).all()


def test_transitions_as_columns_of_their_own_have_the_same_loss():
    rows, outputs = make_rollout()
    targets = targets_of(rows, outputs)
    now = {k: v + 0.3 * torch.randn_like(v) for k, v in leaves(outputs).items()}
    flat = lambda each: {k: v.flatten(0, 1).unsqueeze(0) for k, v in each.items()}
    pairs = {k: torch.stack([v[:-1].flatten(0, 1), v[1:].flatten(0, 1)]) for k, v in rows.items()}
    whole, single = ppo_loss(rows, now, targets), ppo_loss(pairs, flat(now), flat(targets))
    for name in ("total_loss", "real_transitions", "scalars", "means"):
        torch.testing.assert_close(whole[name], single[name])


def test_without_a_real_transition_the_loss_is_0_and_finite():
    rows, outputs = make_rollout()
    rows["done"][1:] = True
    now = leaves(outputs)
    found = ppo_loss(rows, now, targets_of(rows, outputs))
    found["total_loss"].backward()
    assert found["total_loss"] == found["real_transitions"] == 0
    assert all(torch.isfinite(x) for kind in ("scalars", "means") for x in found[kind].values())
    assert all((each.grad == 0).all() for each in now.values())


def test_values_that_have_moved_too_far_have_no_gradient():
    rows, outputs = make_rollout()
    targets = targets_of(rows, outputs)
    now, sizes = leaves(outputs), torch.linspace(0.1, 0.5, 15).view(5, 3)
    towards = targets["v"] - targets["value"]
    now["baseline"] = (targets["value"] + sizes * towards.sign()).requires_grad_()
    ppo_loss(rows, now, targets, entropy_cost=0.0)["total_loss"].backward()
    near = 0.2 * towards.sign() - towards  # how far the clipped value is from its target
    moves = (sizes <= 0.2) | ((sizes - towards.abs()).abs() > near.abs())
    moves &= ~rows["done"][1:]
    assert torch.equal(now["baseline"].grad != 0, moves) and 0 < moves.sum() < 10
