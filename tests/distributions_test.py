# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Distributions of actions, against PyTorch's own."""

import math
from types import SimpleNamespace

import pytest
import torch

from libtorchbeast.distributions import Categorical, Gaussian, MultiCategorical

ALL = [Categorical(5), MultiCategorical((3, 2, 4)), Gaussian(3)]


def torch_distribution(ours, logits):
    D = torch.distributions
    if isinstance(ours, Categorical):
        return D.Categorical(logits=logits)
    if isinstance(ours, Gaussian):
        mean, raw = logits.chunk(2, dim=-1)
        log_std = -5 + 7 * torch.sigmoid(4 / 7 * raw + math.log(5 / 2))
        return D.Independent(D.Normal(mean, log_std.exp()), 1)
    parts = [D.Categorical(logits=x) for x in logits.split(ours.sizes, dim=-1)]
    log_prob = lambda x: sum(d.log_prob(a) for d, a in zip(parts, x.unbind(-1), strict=True))
    return SimpleNamespace(log_prob=log_prob, entropy=lambda: sum(d.entropy() for d in parts))


each_kind = pytest.mark.parametrize("ours", ALL, ids=lambda d: type(d).__name__)


@each_kind
def test_log_probabilities_and_entropies_are_pytorchs(ours):
    torch.manual_seed(0)
    logits = torch.randn(7, 4, ours.num_logits) / 2
    actions = ours.sample(logits)
    assert actions.shape == (7, 4, *ours.action_shape) and actions.dtype == ours.action_dtype
    theirs = torch_distribution(ours, logits)
    log_prob = theirs.log_prob(actions)
    torch.testing.assert_close(ours.log_prob(logits, actions), log_prob)
    torch.testing.assert_close(ours.entropy(logits), theirs.entropy())
    assert (ours.log_prob(logits, ours.mode(logits)) >= log_prob - 1e-6).all()
    assert ours.features(actions).shape == (7, 4, ours.num_features)


@each_kind
def test_samples_have_the_frequencies_that_the_logits_say(ours):
    """The mean of -log pi(a) over samples is the entropy, if and only if pi made the samples."""
    torch.manual_seed(0)
    logits = torch.randn(1, ours.num_logits).expand(40_000, -1)
    samples = ours.sample(logits)
    torch.testing.assert_close(
        -ours.log_prob(logits, samples).mean(), ours.entropy(logits)[0], rtol=0, atol=0.03
    )
    assert len(samples.unique(dim=0)) > 1


def test_samples_are_those_of_multinomial():
    """With the same random numbers. So the numbers of older runs can be made again."""
    logits, ours = 3 * torch.randn(50, 4, 6), Categorical(6)
    logits[..., 2] = -1e9  # a masked action
    for seed in range(20):
        torch.manual_seed(seed)
        expected = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1).view(50, 4)
        torch.manual_seed(seed)
        seen = ours.sample(logits)
        assert torch.equal(seen, expected) and not (seen == 2).any()


@each_kind
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_raise_nothing_on_the_device(ours, bad):
    """Whoever acts checks them on the host. An assertion on a GPU would end its use for good."""
    logits = torch.full((3, 2, ours.num_logits), bad)
    for choose in (ours.sample, ours.mode):
        actions = choose(logits)
        assert actions.shape == (3, 2, *ours.action_shape)
        if actions.dtype == torch.int64:
            assert ((actions >= 0) & (actions < ours.num_logits)).all()


def log_std_of(raw):
    """The logarithms of the standard deviations that a network's numbers [...] give."""
    logits = torch.stack([torch.zeros_like(raw), raw], dim=-1)
    return Gaussian(1).entropy(logits) - 0.5 * math.log(2 * math.pi * math.e)


def test_a_gaussians_spread_is_kept_within_bounds_and_has_a_slope_everywhere():
    """So a policy that an entropy bonus has made wide can become narrow again."""
    raw = torch.linspace(-100, 100, 2001, requires_grad=True)
    log_std = log_std_of(raw)
    (slope,) = torch.autograd.grad(log_std.sum(), raw)
    assert slope.min() > 0 and slope.max() == pytest.approx(1, abs=1e-3)
    assert log_std.diff().min() >= 0
    exact = raw.detach().double().requires_grad_()
    expected = -5 + 7 * torch.sigmoid(4 / 7 * exact + math.log(5 / 2))
    (expected_slope,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(log_std.double(), expected, rtol=0, atol=1e-6)
    middle = raw.abs() < 20  # where float64 does not round the slope to 0
    torch.testing.assert_close(slope[middle].double(), expected_slope[middle], rtol=1e-4, atol=0)
    assert log_std_of(torch.zeros(1)).item() == pytest.approx(0, abs=1e-6)
    low, high = Gaussian.LOG_STD
    assert log_std_of(torch.tensor([-1e9, 1e9])).tolist() == pytest.approx([low, high])
    extreme = torch.tensor([[0.0, 1e9], [0.0, -1e9]])
    assert Gaussian(1).log_prob(extreme, torch.zeros(2, 1)).isfinite().all()
