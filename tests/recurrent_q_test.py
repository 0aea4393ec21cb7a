# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The equations of R2D2 against oracles that are written from the papers, against what DeepMind's
rlax makes of them (data/make_rlax.py), and their laws."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import r2d2
from libtorchbeast import transitions
from libtorchbeast.distributions import MASKED, Categorical
from libtorchbeast.flags import replace
from libtorchbeast.q_learning import recurrent_q
from libtorchbeast.q_learning.recurrent_q import rescale, unrescale

GAMMA, A = 0.9, 3
FLAGS = r2d2.parse(f"--env CartPole-v1 --burn_in 0 --discounting {GAMMA} --precision fp32".split())
RLAX = json.loads((Path(__file__).parent / "data/rlax.json").read_text())


# ========================================================================================== oracles
def h(x):
    """Pohlen et al. 2018, in Python's float64."""
    return math.copysign(1, x) * (math.sqrt(abs(x) + 1) - 1) + 1e-3 * x


def h_inverse(y):
    """Found by bisection, not by a formula."""
    low, high = -1e9, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < y else (low, middle)
    return (low + high) / 2


def target(rows, t, b, n, online, other):
    """Walks along one episode from row t, as one would with a pencil."""
    total, factor = 0.0, 1.0
    for step in range(1, n + 1):
        if t + step == len(rows["reward"]) or rows["done"][t + step, b]:  # nothing follows
            step -= 1
            break
        total += factor * float(rows["reward"][t + step, b])
        factor *= GAMMA
        if rows["terminated"][t + step, b]:
            return h(total)
    best = int(np.argmax(online[t + step, b]))
    return h(total + factor * h_inverse(float(other[t + step, b, best])))


def oracle(rows, online, other, chances, n):
    """Returns the loss, and the errors of each sequence's real transitions."""
    weights = (chances.min() / chances) ** r2d2.IMPORTANCE_EXPONENT
    T, B = len(rows["reward"]) - 1, len(chances)
    errors = [[] for _ in range(B)]
    for b in range(B):
        for t in range(T):
            if not rows["done"][t + 1, b]:
                q = float(online[t, b, int(rows["action"][t, b])])
                errors[b].append(target(rows, t, b, n, online, other) - q)
    count = sum(map(len, errors))
    loss = sum(w / 2 * e * e for w, own in zip(weights.tolist(), errors, strict=True) for e in own)
    return loss / count, errors


def random_rows(T, B, seed):
    """Episodes of random lengths, which terminate or are truncated; some have one row only."""
    generator = np.random.default_rng(seed)
    ends = generator.random((T + 1, B)) < 0.25
    terminated = ends & (generator.random((T + 1, B)) < 0.5)
    done = np.concatenate([generator.random((1, B)) < 0.5, ends[:-1]])
    reward = np.where(done, 0, generator.normal(0, 3, (T + 1, B))).astype(np.float32)
    action = generator.integers(A, size=(T + 1, B))
    rows = dict(reward=reward, done=done, terminated=terminated, action=action)
    online, other = generator.normal(0, 2, (2, T + 1, B, A)).astype(np.float32)
    chances = generator.uniform(0.01, 1, B).astype(np.float32)
    rows = {name: torch.from_numpy(values) for name, values in rows.items()}
    return rows, *map(torch.from_numpy, (online, other, chances))


class Table(nn.Module):
    """A network that gives these Q-values."""

    distribution = Categorical(A)

    def __init__(self, q):
        super().__init__()
        self.q = q

    def initial_state(self, batch_size):
        return ()

    def forward(self, inputs, core_state):
        q = self.q[: len(inputs["reward"])]
        return dict(policy_logits=q, baseline=q.amax(-1)), ()


def learned(rows, online, other, chances, n=5):
    """The results of the targets and the loss of R2D2."""
    net = Table(online)
    net.__dict__["target"] = Table(other)
    batch = rows | {"column/chance": chances[None]}
    flags = replace(FLAGS, n_steps=n)
    return transitions.learn_from(net, batch, None, r2d2.targets, r2d2.loss, flags, 0.0)


# =============================================================================================== h
def test_h_and_its_inverse_are_those_of_the_paper_and_undo_each_other():
    x = torch.tensor([-1e6, -300, -1, -1e-3, 0, 1e-6, 0.5, 2, 1e4])
    expected = torch.tensor([h(v) for v in x.tolist()])
    torch.testing.assert_close(rescale(x), expected, rtol=1e-6, atol=0)
    y = torch.tensor([-50, -1.0, -1e-3, 0, 1e-5, 0.3, 7, 200])
    expected = torch.tensor([h_inverse(v) for v in y.tolist()])
    torch.testing.assert_close(unrescale(y), expected, rtol=1e-5, atol=1e-9)
    x = torch.logspace(-7, 6, 1000)  # near 0 the formula of the paper is wrong by a tenth
    for values in (x, -x):
        torch.testing.assert_close(unrescale(rescale(values)), values, rtol=2e-6, atol=0)


# ========================================================================================== targets
def test_a_row_without_an_allowed_action_has_the_value_0():
    """A truncated episode bootstraps from it."""
    q = torch.tensor([[1.0, 3.0], [MASKED, MASKED], [MASKED, -2.0]])
    assert recurrent_q.double_q_values(q, q).tolist() == [3.0, 0.0, -2.0]
    assert recurrent_q.best_value(q).tolist() == [3.0, 0.0, -2.0]


@pytest.mark.parametrize("n", [1, 5, 50])
def test_loss_errors_and_priorities_are_the_oracles(n):
    for seed in range(3):
        rows, online, other, chances = random_rows(11, 7, seed)
        results = learned(rows, online.requires_grad_(), other, chances, n)
        online = online.detach().numpy()
        expected, errors = oracle(rows, online, other.numpy(), chances.numpy(), n)
        assert results["total_loss"].item() == pytest.approx(expected, rel=1e-4)
        assert results["real_transitions"] == sum(map(len, errors))
        sizes = [np.abs(own) for own in errors]
        td_error = results["means"]["td_error"]
        assert td_error.item() == pytest.approx(np.concatenate(sizes).mean(), rel=1e-4)
        priorities = [0.9 * own.max() + 0.1 * own.mean() for own in sizes]
        assert results["vectors"]["priorities"].tolist() == pytest.approx(priorities, rel=1e-4)


@pytest.mark.parametrize("n", RLAX["errors"])
def test_errors_are_those_of_rlax(n):
    """Which has no resets: an episode ends in a discount of 0, and the row after it is no other's.
    Errors are compared where a transition is real."""
    rows = {name: torch.tensor(values) for name, values in RLAX["rows"].items()}
    online, other = rows.pop("online_q"), rows.pop("target_q")
    rows["done"] = torch.cat(
        [torch.zeros(1, online.shape[1], dtype=torch.bool), rows["terminated"][:-1]]
    )
    q_taken = online.gather(-1, rows["action"][..., None]).squeeze(-1)[:-1]
    values = recurrent_q.double_q_values(online, other)
    errors = recurrent_q.targets(rows, values, RLAX["gamma"], int(n)) - q_taken
    real = ~rows["done"][1:]
    assert (~real).sum() == 2
    expected = torch.tensor(RLAX["errors"][n])
    torch.testing.assert_close(errors[real], expected[real], rtol=1e-6, atol=2e-6)


def test_only_the_chosen_actions_of_real_transitions_get_a_gradient():
    rows, online, other, chances = random_rows(9, 5, 3)
    online.requires_grad_()
    other.requires_grad_()
    learned(rows, online, other, chances)["total_loss"].backward()
    assert other.grad is None
    chosen = torch.zeros_like(online, dtype=torch.bool)
    chosen[:-1] = nn.functional.one_hot(rows["action"][:-1], A).bool()
    chosen[:-1] &= ~rows["done"][1:, :, None]
    assert torch.equal(online.grad != 0, chosen)


def test_a_batch_without_real_transitions_has_a_loss_of_0():
    rows, online, *others = random_rows(4, 2, 0)
    rows["done"][:] = True
    results = learned(rows, online.requires_grad_(), *others)
    assert results["total_loss"] == results["real_transitions"] == 0
    assert not results["vectors"]["priorities"].any()


# ============================================================================ weights and epsilons
def test_importance_weights_and_epsilons():
    probabilities = torch.tensor([0.5, 0.25, 0.125])
    weights = recurrent_q.importance_weights(probabilities, 0.5)
    torch.testing.assert_close(weights, torch.tensor([0.5, 0.5**0.5, 1.0]))
    assert (recurrent_q.importance_weights(probabilities, 0.0) == 1).all()
    expected = [0.4 ** (1 + 7 * i / 7) for i in range(8)]
    torch.testing.assert_close(recurrent_q.epsilons(8), torch.tensor(expected))
    assert recurrent_q.epsilons(1).tolist() == pytest.approx([0.4])


@pytest.mark.parametrize("name", ["reward", "done", "terminated"])
def test_a_wrong_shape_or_dtype_is_named(name):
    rows, online, other, _ = random_rows(4, 2, 0)
    values = recurrent_q.double_q_values(online, other)
    wrong = [rows | {name: rows[name][1:]}, rows | {name: rows[name].double()}]
    for rows in wrong:
        with pytest.raises(ValueError, match=f"^{name} has "):
            recurrent_q.targets(rows, values, GAMMA, 5)
