# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""V-trace and the IMPALA loss against oracles written from the papers, and the laws they obey."""

import numpy as np
import pytest
import torch

import vtrace
from tests.support.losses import impala_loss

GAMMA = 0.9
KWARGS = dict(discounting=GAMMA, baseline_cost=0.7, entropy_cost=0.05, reward_clipping="none")


def oracle(log_rhos, discounts, rewards, values, bootstrap_value, rho_bar, lambda_, real):
    """[IMPALA] eq. 1, the explicit sum over t = s..T-1 with its product of c_s..c_{t-1}; float64.

    Remark 2: c_i = lambda min(1, pi/mu). A transition that is not real has rho = c = 0.
    """
    T = len(log_rhos)
    ratio = np.exp(log_rhos) * real
    rho, c = np.minimum(ratio, rho_bar or np.inf), lambda_ * np.minimum(ratio, 1.0)
    V = np.concatenate([values, bootstrap_value[None]])
    delta = rho * (rewards + discounts * V[1:] - V[:-1])
    v = V.copy()
    for s in range(T):
        for t in range(s, T):
            v[s] += np.prod(discounts[s:t] * c[s:t], axis=0) * delta[t]
    q = rewards + discounts * (lambda_ * v[1:] + (1 - lambda_) * V[1:])
    return v[:-1], q - V[:-1]


def random_arguments(rng, T, B):
    """[T, B] log_rhos, discounts (some 0), rewards, values, and a bootstrap value [B]; float64."""
    return {
        "log_rhos": rng.normal(size=(T, B)),
        "discounts": GAMMA * (rng.random((T, B)) > 0.2),
        "rewards": rng.normal(size=(T, B)),
        "values": rng.normal(size=(T, B)),
        "bootstrap_value": rng.normal(size=B),
    }


def to_tensors(arrays):
    return {k: torch.from_numpy(v) for k, v in arrays.items()}


def random_rollout(seed, T, B, A=3):
    """(rows, outputs) of T+1 rows without an episode's end; the outputs are leaves."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(shape, generator=generator)
    rows = {
        "reward": 2 * normal(T + 1, B),
        "done": torch.zeros(T + 1, B, dtype=torch.bool),
        "terminated": torch.zeros(T + 1, B, dtype=torch.bool),
        "action": torch.randint(A, (T + 1, B), generator=generator),
        "policy_logits": normal(T + 1, B, A),
    }
    outputs = {"policy_logits": normal(T + 1, B, A), "baseline": normal(T + 1, B)}
    return rows, {k: x.requires_grad_() for k, x in outputs.items()}


@pytest.mark.parametrize("lambda_", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("rho_bar", [1.0, 2.5, 0.4, None])
@pytest.mark.parametrize("T, B", [(1, 1), (1, 4), (12, 5)])
def test_equals_the_papers_explicit_sum(lambda_, rho_bar, T, B):
    rng = np.random.default_rng([T, B, int(100 * lambda_)])
    for share_real in (1.0, 0.7, 0.0):
        arguments, real = random_arguments(rng, T, B), rng.random((T, B)) < share_real
        vs, advantages = oracle(**arguments, real=real, lambda_=lambda_, rho_bar=rho_bar)
        own = dict(clip_rho_threshold=rho_bar, lambda_=lambda_, real=torch.from_numpy(real))
        seen = vtrace.from_importance_weights(**to_tensors(arguments), **own)
        np.testing.assert_allclose(seen.vs, vs, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(seen.advantages, advantages, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lambda_, clipping", [(1.0, "none"), (0.9, "abs_one")])
def test_impala_loss_equals_the_oracle_on_any_rollout(lambda_, clipping):
    """Section 4.2 with masks, every term in NumPy; any flag at any row."""
    T, B, A = 9, 6, 3
    rows, outputs = random_rollout(seed=4, T=T, B=B)
    rng = np.random.default_rng(4)
    for name in ("done", "terminated"):
        rows[name] = torch.from_numpy(rng.random((T + 1, B)) < 0.3)
    log_softmax = lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True))
    log_mu = log_softmax(rows["policy_logits"].double().numpy())[:-1]
    log_pi = log_softmax(outputs["policy_logits"].detach().double().numpy())[:-1]
    taken = np.eye(A, dtype=bool)[rows["action"][:-1].numpy()]
    V = outputs["baseline"].detach().double().numpy()
    real, rewards = ~rows["done"][1:].numpy(), rows["reward"][1:].double().numpy()
    log_rhos = (log_pi[taken] - log_mu[taken]).reshape(T, B)
    v, advantages = oracle(
        log_rhos=log_rhos,
        discounts=GAMMA * ~rows["terminated"][1:].numpy(),
        rewards=rewards.clip(-1, 1) if clipping == "abs_one" else rewards,
        values=V[:-1],
        bootstrap_value=V[-1],
        rho_bar=1.2,
        lambda_=lambda_,
        real=real,
    )
    advantages = advantages * np.minimum(np.exp(log_rhos), 1.2)  # section 4.2
    expected = {
        "pg": -(real * advantages * log_pi[taken].reshape(T, B)).sum(),
        "baseline": 0.5 * (real * (v - V[:-1]) ** 2).sum(),
        "entropy": -(real[..., None] * np.exp(log_pi) * log_pi).sum(),
    }
    clip = dict(clip_rho_threshold=1.2, vtrace_lambda=lambda_, reward_clipping=clipping)
    loss = impala_loss(rows, outputs, loss_reduction="sum", **KWARGS | clip)
    assert loss.real_transitions == real.sum()
    assert loss.pg_loss.item() == pytest.approx(expected["pg"], rel=1e-4)
    assert loss.baseline_loss.item() == pytest.approx(expected["baseline"], rel=1e-4)
    assert loss.entropy.item() == pytest.approx(expected["entropy"] / real.sum(), rel=1e-4)
    ratios = np.exp(log_rhos)[real]
    assert loss.clipped_rho_share.item() == pytest.approx((ratios > 1.2).mean(), rel=1e-4)
    assert loss.mean_rho.item() == pytest.approx(np.minimum(ratios, 1.0).mean(), rel=1e-4)
    assert loss.mean_value.item() == pytest.approx(V[:-1][real].mean(), rel=1e-4)
    total = expected["pg"] + 0.7 * expected["baseline"] - 0.05 * expected["entropy"]
    assert loss.total_loss.item() == pytest.approx(total, rel=1e-4)
    loss.total_loss.backward()
    seen = outputs["baseline"].grad[:-1]
    np.testing.assert_allclose(seen, 0.7 * real * (V[:-1] - v), rtol=1e-4, atol=1e-5)
    # d/dlogits of log pi(a) is onehot - pi, of the entropy -pi (log pi + H)
    pi, H = np.exp(log_pi), -(np.exp(log_pi) * log_pi).sum(-1, keepdims=True)
    slope = -advantages[..., None] * (taken - pi) + 0.05 * pi * (log_pi + H)
    seen = outputs["policy_logits"].grad[:-1]
    np.testing.assert_allclose(seen, real[..., None] * slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["discounts", "rewards", "values", "bootstrap_value", "real"])
def test_errors_of_vtrace_name_tensor_seen_and_expected(name):
    """They also name shapes that would broadcast, and a mask of numbers."""
    arguments = to_tensors(random_arguments(np.random.default_rng(0), 4, 3))
    arguments["real"] = torch.ones(4, 3, dtype=torch.bool)
    expected = tuple(arguments[name].shape)
    wrong = arguments | {name: arguments[name][..., :1]}
    with pytest.raises(ValueError) as error:
        vtrace.from_importance_weights(**wrong)
    seen = tuple(wrong[name].shape)
    assert str(error.value) == f"{name} has shape {seen}, expected {expected}"
    with pytest.raises(ValueError, match="real has dtype torch.float32, expected torch.bool"):
        vtrace.from_importance_weights(**arguments | {"real": torch.ones(4, 3)})


def test_a_loss_of_policies_that_disagree_utterly_is_finite():
    """exp(log_rho) is infinite in float32 from 89 on, but the thresholds clip it, and a transition
    that is not real has none."""
    rows, outputs = random_rollout(seed=19, T=6, B=3)
    rows["done"][2:4] = True
    rows["policy_logits"] *= 1e4
    with torch.no_grad():
        outputs["policy_logits"] *= -1e4
    loss = impala_loss(rows, outputs, **KWARGS)
    loss.total_loss.backward()
    assert all(torch.isfinite(part) for part in vars(loss).values())
    assert all(torch.isfinite(output.grad).all() for output in outputs.values())


def test_arguments_and_results_are_torchbeasts_without_the_second_threshold():
    arguments = to_tensors(random_arguments(np.random.default_rng(0), 3, 2))
    result = vtrace.from_importance_weights(*(x.requires_grad_() for x in arguments.values()))
    assert result._fields == ("vs", "advantages") and not any(x.requires_grad for x in result)
    named = vtrace.from_importance_weights(**arguments, clip_rho_threshold=1.0)
    assert all(map(torch.equal, result, named))
    with pytest.raises(TypeError):
        vtrace.from_importance_weights(*arguments.values(), 1.0, 1.0)


# ============================================================================================ PPO
def test_clipped_gains_are_the_policy_gradient_until_the_ratio_leaves_its_bounds():
    ratios = torch.tensor([[1.0, 1.1, 1.3, 1.3, 0.7, 0.7, torch.inf]])
    advantages = torch.tensor([[2.0, -3.0, 2.0, -2.0, -2.0, 2.0, 1.0]])
    log_ratios = ratios.log().clamp(max=100.0).requires_grad_()  # float32 ends at exp(89)
    gains = vtrace.clipped_gains(log_ratios, advantages, 0.2)
    gains.sum().backward()
    assert gains[0].tolist() == pytest.approx([2.0, -3.3, 2.4, -2.6, -1.6, 1.4, 1.2])
    assert log_ratios.grad[0].tolist() == pytest.approx([2.0, -3.3, 0.0, -2.6, 0.0, 1.4, 0.0])


def test_a_value_is_held_near_the_one_before_unless_it_returns():
    values = torch.tensor([0.1, 0.3, -0.3, -0.3], requires_grad=True)
    targets = torch.tensor([1.0, 1.0, 1.0, -1.0])
    errors = vtrace.clipped_errors(values, targets, torch.zeros(4), 0.2)
    errors.sum().backward()
    assert errors.tolist() == pytest.approx([0.81, 0.64, 1.69, 0.64])
    assert values.grad.tolist() == pytest.approx([-1.8, 0.0, -2.6, 0.0])


def test_the_advantage_of_a_single_transition_is_not_standardised_away():
    advantages = torch.tensor([[3.0], [5.0]])
    assert vtrace.standardised(advantages[1:], torch.tensor([[True]])).item() == 5.0
    others = torch.tensor([[True], [False]])  # a batch may have a single real transition
    assert vtrace.standardised(advantages, others)[0].item() == 3.0
    both = vtrace.standardised(advantages, torch.ones(2, 1, dtype=torch.bool))
    torch.testing.assert_close(both, torch.tensor([[-1.0], [1.0]]))
