# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Kinds of observations and actions: their distributions, their way through the adapter, and that
both beasts learn with them."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import monobeast
import polybeast
import vtrace
from libtorchbeast.distributions import MASKED, Categorical, Gaussian, MultiCategorical
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.models import act_on, forward
from libtorchbeast.spec import Actions, describe_actions, to_space
from tests.support.games import Allowed, Pairs

# =================================================================================== distributions
ALL = [Categorical(5), MultiCategorical((3, 2, 4)), Gaussian(3)]


def torch_distribution(ours, logits):
    """The same by PyTorch's own classes."""
    D = torch.distributions
    if isinstance(ours, Categorical):
        return D.Categorical(logits=logits)
    if isinstance(ours, Gaussian):
        mean, log_std = logits.chunk(2, dim=-1)
        return D.Independent(D.Normal(mean, log_std.exp()), 1)
    return [D.Categorical(logits=x) for x in logits.split(ours.sizes, dim=-1)]


@pytest.mark.parametrize("ours", ALL, ids=lambda d: type(d).__name__)
def test_log_probabilities_and_entropies_are_pytorchs(ours):
    torch.manual_seed(0)
    logits = torch.randn(7, 4, ours.num_logits) / 2
    actions = ours.sample(logits)
    assert actions.shape == (7, 4, *ours.action_shape) and actions.dtype == ours.action_dtype
    theirs = torch_distribution(ours, logits)
    if isinstance(theirs, list):
        log_prob = sum(d.log_prob(a) for d, a in zip(theirs, actions.unbind(-1), strict=True))
        entropy = sum(d.entropy() for d in theirs)
    else:
        log_prob, entropy = theirs.log_prob(actions), theirs.entropy()
    torch.testing.assert_close(ours.log_prob(logits, actions), log_prob)
    torch.testing.assert_close(ours.entropy(logits), entropy)
    assert (ours.log_prob(logits, ours.mode(logits)) >= log_prob - 1e-6).all()
    assert ours.features(actions).shape == (7, 4, ours.num_features)


@pytest.mark.parametrize("ours", ALL, ids=lambda d: type(d).__name__)
def test_samples_have_the_frequencies_that_the_logits_say(ours):
    """The mean of -log pi(a) over samples is the entropy, if and only if they are pi's."""
    torch.manual_seed(0)
    logits = torch.randn(1, ours.num_logits).expand(40_000, -1)
    samples = ours.sample(logits)
    torch.testing.assert_close(
        -ours.log_prob(logits, samples).mean(), ours.entropy(logits)[0], rtol=0, atol=0.03
    )
    assert len(samples.unique(dim=0)) > 1


def test_a_gaussians_spread_is_kept_within_bounds():
    logits = torch.tensor([[0.0, 1e9], [0.0, -1e9]])
    low, high = Gaussian.LOG_STD
    entropies = Gaussian(1).entropy(logits) - 0.5 * math.log(2 * math.pi * math.e)
    assert entropies.tolist() == pytest.approx([high, low])
    assert Gaussian(1).log_prob(logits, torch.zeros(2, 1)).isfinite().all()


@pytest.mark.parametrize("ours", ALL, ids=lambda d: type(d).__name__)
def test_on_policy_the_loss_is_the_same_whatever_the_kind(ours):
    """With pi = mu all rhos are 1: targets and advantages do not depend on the actions' kind, and
    the policy's gradient is that of log pi."""
    torch.manual_seed(0)
    T, B = 5, 3
    logits = torch.randn(T + 1, B, ours.num_logits, requires_grad=True)
    rows = {
        "reward": torch.rand(T + 1, B),
        "done": torch.zeros(T + 1, B, dtype=torch.bool),
        "terminated": torch.zeros(T + 1, B, dtype=torch.bool),
        "policy_logits": logits.detach().clone(),
        "action": ours.sample(logits.detach()),
    }
    values = torch.rand(T + 1, B)
    loss = vtrace.impala_loss(
        rows, {"policy_logits": logits, "baseline": values}, entropy_cost=0.0, distribution=ours
    )
    returns = vtrace.from_importance_weights(
        torch.zeros(T, B), torch.full((T, B), 0.99), rows["reward"][1:], values[:-1], values[-1]
    )
    assert loss.clipped_rho_share == 0
    log_probs = ours.log_prob(logits, rows["action"])[:-1]
    (expected,) = torch.autograd.grad(-(returns.pg_advantages * log_probs).mean(), logits)
    (seen,) = torch.autograd.grad(loss.total, logits)
    torch.testing.assert_close(seen, expected)


def test_the_loss_refuses_actions_and_logits_of_another_kind():
    rows = {
        "reward": torch.zeros(2, 1),
        "done": torch.zeros(2, 1, dtype=torch.bool),
        "terminated": torch.zeros(2, 1, dtype=torch.bool),
        "policy_logits": torch.zeros(2, 1, 4),
        "action": torch.zeros(2, 1, dtype=torch.int64),
    }
    outputs = {"policy_logits": torch.zeros(2, 1, 4), "baseline": torch.zeros(2, 1)}
    with pytest.raises(ValueError, match=r"action has shape \(2, 1\), expected \(2, 1, 2\)"):
        vtrace.impala_loss(rows, outputs, distribution=Gaussian(2))
    with pytest.raises(ValueError, match=r"policy_logits has shape .*4\), expected \(2, 1, 5\)"):
        vtrace.impala_loss(rows, outputs, distribution=Categorical(5))


# =========================================================================================== masks
class Obedient(nn.Module):
    """Wants action 0 at any price."""

    distribution = Categorical(4)

    def forward(self, inputs, core_state):
        shape = inputs["action_mask"].shape[:2]
        logits = torch.tensor([50.0, 0, 0, 0]).expand(*shape, 4)
        return {"policy_logits": logits, "baseline": torch.zeros(shape)}, core_state


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8])
@pytest.mark.parametrize("greedy", [False, True])
def test_a_forbidden_action_is_never_taken_and_nothing_becomes_infinite(dtype, greedy):
    mask = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).to(dtype)
    for _ in range(20):
        outputs, _ = act_on(Obedient(), {"action_mask": mask}, (), greedy)
        allowed = outputs["action"].tolist()
        assert allowed[0] in (1, 3) and allowed[1] == 2 and allowed[2] == 0
    logits = outputs["policy_logits"]
    assert logits.isfinite().all() and logits[0, 0] == MASKED
    entropy = Categorical(4).entropy(logits)
    assert entropy[0].item() == pytest.approx(math.log(2)) and entropy[1] == 0
    assert entropy[3].item() == pytest.approx(math.log(4))  # of a row that nobody acts on


def test_the_learner_sees_the_policy_through_the_same_mask():
    mask = torch.tensor([[[0, 1, 1, 0]]], dtype=torch.int8)
    outputs, _ = forward(Obedient(), {"action_mask": mask}, ())
    acted, _ = act_on(Obedient(), {"action_mask": mask[0]}, ())
    assert outputs["policy_logits"][0].equal(acted["policy_logits"])


@pytest.mark.parametrize(
    "action_space, mask",
    [
        (spaces.Discrete(4), spaces.MultiBinary(5)),
        (spaces.Discrete(4), spaces.Box(0, 1, (4,), np.float32)),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiBinary((2, 3))),
        (spaces.Box(-1, 1, (4,)), spaces.MultiBinary(4)),
    ],
    ids=str,
)
def test_an_action_mask_that_is_none_is_refused(action_space, mask):
    class Wrong(Allowed):
        observation_space = spaces.Dict(action_mask=mask)

    Wrong.action_space = action_space
    with pytest.raises(ValueError, match="action_mask: expected .* for each action"):
        Environment(Wrong, 1)


# ========================================================================================= actions
@pytest.mark.parametrize(
    "space, expected",
    [
        (spaces.Discrete(3), Actions("discrete", (3,))),
        (spaces.MultiDiscrete([2, 5]), Actions("multi_discrete", (2, 5))),
        (spaces.MultiDiscrete([[2, 5], [3, 4]]), Actions("multi_discrete", (2, 5, 3, 4))),
        (spaces.Box(-1, 1, (2, 3)), Actions("box", (6,))),
        (spaces.Box(-1, 1, ()), Actions("box", (1,))),
    ],
    ids=str,
)
def test_action_spaces(space, expected):
    assert describe_actions(space) == expected
    zeros = expected.zeros(4)
    expected.check(zeros, 4)
    assert all(space.contains(action) for action in to_space(zeros, space))


def test_a_box_is_reached_from_end_to_end_and_never_left():
    low, high = np.array([-2.0, 0.0, -np.inf, 1.0]), np.array([2.0, 10.0, np.inf, np.inf])
    space = spaces.Box(low, high, dtype=np.float64)
    actions = np.array([[-1, -1, -1, -1], [0, 0, 0, 0], [1, 1, 1, 1], [9, -9, 9, 9]], np.float32)
    seen = to_space(actions, space)
    assert seen.dtype == np.float64
    assert seen.tolist() == [[-2, 0, -1, 1], [0, 5, 0, 1], [2, 10, 1, 1], [2, 0, 9, 9]]


def test_vectors_of_actions_reach_each_environment_of_either_kind():
    """The same steps from single environments and from gymnasium's vector of them."""
    rng = np.random.default_rng(0)
    steps = rng.integers((3, 4), size=(30, 5, 2))
    vector = gymnasium.vector.SyncVectorEnv([Pairs] * 5)
    rows = []
    for create, num_envs in ((Pairs, 5), (lambda: vector, 5)):
        env = Environment(create, num_envs)
        assert env.spec.actions == Actions("multi_discrete", (3, 4))
        env.initial(7)
        rows.append([{k: v.copy() for k, v in env.step(actions).items()} for actions in steps])
    for single, vectored in zip(*rows, strict=True):
        assert single.keys() == vectored.keys()
        for name in single:
            np.testing.assert_array_equal(single[name], vectored[name], err_msg=name)
    assert any(row["done"].any() for row in rows[0])
    done = next(row for row in rows[0] if row["done"].any())
    assert not done["last_action"][done["done"]].any() and done["last_action"].shape == (5, 2)


# ======================================================================================== learning
BEASTS = {
    "monobeast": (monobeast, "--num_actors 1 --envs_per_actor 32"),
    "polybeast": (polybeast, "--num_servers 1 --envs_per_server 32 --net monobeast.Net"),
}
GAMES = {"Pairs": (6.0, -2.7), "Allowed": (7.0, 2.5), "Target": (5.0, 0.0)}  # wanted; by chance


@pytest.mark.parametrize("beast", BEASTS)
@pytest.mark.parametrize("game", GAMES)
def test_both_beasts_learn_it(game, beast, tmp_path):
    wanted, by_chance = GAMES[game]
    program, more = BEASTS[beast]
    argv = f"--env tests.support.games:{game}-v0 --xpid t --seed 1 {more}".split()
    argv += ["--savedir", str(tmp_path)]
    program.main([*argv, "--total_steps", "60_000"])
    test = program.parse([*argv, "--mode", "test", "--greedy", "--num_episodes", "30"])
    mean = np.mean([game.score for game in program.test(test, set())])
    assert mean > wanted > by_chance


def test_the_deep_network_says_what_it_reads(tmp_path):
    env = Environment(Pairs, 1, "Pairs")
    with pytest.raises(UserError, match="polybeast.Net reads images"):
        polybeast.Net(env.spec, polybeast.parse(["--env", "CartPole-v1"]))
