# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PPO's loss: its objective, its targets, and what it has in common with IMPALA's."""

import pytest
import torch

import vtrace
from libtorchbeast import ppo
from libtorchbeast.distributions import Categorical

A = 3
SHARED = dict(clip_rho_threshold=1.0, distribution=Categorical(A))
TARGETS = SHARED | dict(discounting=0.9, lambda_=0.8, clip_rewards=False)
LOSS = SHARED | dict(epsilon=0.2, baseline_cost=0.5, entropy_cost=0.1, reduction="mean")


def make_rollout(T=5, B=3):
    """(rows, outputs) of a policy that acts and learns, in which episodes end."""
    torch.manual_seed(0)
    rows = dict(
        reward=torch.randn(T + 1, B), done=torch.rand(T + 1, B) < 0.2,
        terminated=torch.rand(T + 1, B) < 0.2, action=torch.randint(A, (T + 1, B)),
        policy_logits=torch.randn(T + 1, B, A),
    )  # fmt: skip
    assert 0 < rows["done"][1:].sum() < T * B
    return rows, dict(policy_logits=rows["policy_logits"], baseline=torch.randn(T + 1, B))


def leaves(outputs):
    return {k: v[:-1].clone().requires_grad_() for k, v in outputs.items()}


def test_the_objective_is_the_policy_gradient_until_the_ratio_leaves_its_bounds():
    ratios = torch.tensor([[1.0, 1.1, 1.3, 1.3, 0.7, 0.7, 1e30]])
    advantages = torch.tensor([[2.0, -3.0, 2.0, -2.0, -2.0, 2.0, 1.0]])
    log_rhos = ratios.log().requires_grad_()
    objective = ppo.objective(log_rhos, advantages, 0.2)
    objective.sum().backward()
    assert objective[0].tolist() == pytest.approx([2.0, -3.3, 2.4, -2.6, -1.6, 1.4, 1.2])
    assert log_rhos.grad[0].tolist() == pytest.approx([2.0, -3.3, 0.0, -2.6, 0.0, 1.4, 0.0])


def test_a_value_is_held_near_the_one_before_unless_it_returns():
    values = torch.tensor([0.1, 0.3, -0.3, -0.3], requires_grad=True)
    targets = torch.tensor([1.0, 1.0, 1.0, -1.0])
    errors = ppo.clipped_errors(values, targets, torch.zeros(4), 0.2)
    errors.sum().backward()
    assert errors.tolist() == pytest.approx([0.81, 0.64, 1.69, 0.64])
    assert values.grad.tolist() == pytest.approx([-1.8, 0.0, -2.6, 0.0])


def test_on_policy_the_targets_are_those_of_vtrace_and_the_advantages_are_standardised():
    rows, outputs = make_rollout()
    prepared = ppo.with_targets(rows, outputs, **TARGETS)
    trace = vtrace.from_logits(
        rows["policy_logits"][:-1], outputs["policy_logits"][:-1], rows["action"][:-1],
        0.9 * (~rows["terminated"][1:]).float(), rows["reward"][1:], outputs["baseline"][:-1],
        outputs["baseline"][-1], lambda_=0.8, real=~rows["done"][1:],
    )  # fmt: skip
    real = prepared["ppo/real"]
    torch.testing.assert_close(prepared["ppo/target"], trace.vs)
    x = trace.pg_advantages[real]
    torch.testing.assert_close(prepared["ppo/advantage"][real], x)

    now = leaves(outputs)
    ppo.loss(prepared, now, **LOSS | {"entropy_cost": 0.0}).total.backward()
    taken = torch.eye(A)[rows["action"]][:-1] - now["policy_logits"].detach().softmax(-1)
    scaled = ((x - x.mean()) / x.std(correction=0)).unsqueeze(-1)
    gradient = now["policy_logits"].grad
    torch.testing.assert_close(gradient[real], -scaled * taken[real] / real.sum())
    assert (gradient[~real] == 0).all() and (now["baseline"].grad[~real] == 0).all()


def test_transitions_as_columns_of_their_own_have_the_same_loss():
    rows, outputs = make_rollout()
    prepared = ppo.with_targets(rows, outputs, **TARGETS)
    now = {k: v + 0.3 * torch.randn_like(v) for k, v in leaves(outputs).items()}
    flat = [{k: v.flatten(0, 1).unsqueeze(0) for k, v in each.items()} for each in (prepared, now)]
    torch.testing.assert_close(ppo.loss(prepared, now, **LOSS), ppo.loss(*flat, **LOSS))


def test_without_a_real_transition_the_loss_is_0_and_finite():
    rows, outputs = make_rollout()
    rows["done"][1:] = True
    now = leaves(outputs)
    loss = ppo.loss(ppo.with_targets(rows, outputs, **TARGETS), now, **LOSS)
    loss.total.backward()
    assert loss.total == 0 and all(torch.isfinite(number) for number in loss)
    assert all((each.grad == 0).all() for each in now.values())
