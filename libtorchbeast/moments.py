# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Scales observations and rewards by their running moments, as a part of the network.

The moments are buffers of a module that `models.make_net` puts into the network, as `net.moments`.
So they are in its `state_dict`: they travel with the weights to actors, inference threads and
evaluations, and are in checkpoints. Only the learner updates them, once for each batch. In the test
modes and in an exported policy they stay as they are.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from libtorchbeast.flags import Flags
from libtorchbeast.spec import Spec, prefers_channels_last
from vtrace import scan_backwards

LIMIT = 10.0  # scaled observations and rewards lie in [-LIMIT, LIMIT]
TINY = 1e-8
PIXEL_LIMIT, PIXEL_TINY = 5.0, 1.0  # the same for bytes, most of which hardly change in many games
EVERY = 8  # of a batch's images each eighth is enough: those of neighbouring rows are alike
HUGE = 1e15  # larger numbers count as this, because their squares would overflow

Gathered = Callable[[Tensor], Tensor]  # takes a tensor and returns those of all ranks, stacked


class Moments(nn.Module):
    """Running means and variances over all real transitions that the learner has seen.

    Args:
        spec: gives the observation's parts (`Spec.scalable`, and images of bytes).
        flags: --observation_scaling, --reward_scaling, and --discounting for the returns.
        pixels: whether images may be scaled. A network without `models.Parts` expects bytes.
    """

    mean: Tensor  # [F] float32, of all numbers of the scaled parts, one after the other
    variance: Tensor  # [F] float32
    return_mean: Tensor  # [1] float32, of discounted returns (`discounted_returns`)
    return_variance: Tensor  # [1] float32
    count: Tensor  # [] float32, the number of transitions that they are taken over

    def __init__(self, spec: Spec, flags: Flags, pixels: bool = False):
        super().__init__()
        images = spec.images if pixels and flags.observation_scaling == "pixels" else {}
        self.pixels = [name for name in images if spec.observations[name][1] == "uint8"]
        self.names = [*spec.scalable, *self.pixels] if flags.observation_scaling != "none" else []
        self.scales_rewards = flags.reward_scaling == "returns"
        self.discounting = flags.discounting
        width = sum(torch.Size(spec.observations[name][0]).numel() for name in self.names)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("return_mean", torch.zeros(1))
        self.register_buffer("return_variance", torch.ones(1))
        self.register_buffer("count", torch.zeros(()))

    def scaled(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the rows [T, B, ...] with scaled observations, float32."""
        rows, start = dict(rows), 0
        for name in self.names:
            x, shape = rows[name], rows[name].shape
            part = slice(start, start + shape[2:].numel())
            tiny, limit = (PIXEL_TINY, PIXEL_LIMIT) if name in self.pixels else (TINY, LIMIT)
            mean, variance = (m[part].view(shape[2:]) for m in (self.mean, self.variance))
            scale = (variance + tiny).rsqrt()
            if name in self.pixels and prefers_channels_last(tuple(shape[2:])):
                x, mean, scale = map(laid_out, (x, mean, scale))  # bytes are cheap to move
            x = x.to(torch.float32, copy=True).sub_(mean)  # in place: one allocation
            rows[name] = x.mul_(scale).clamp_(-limit, limit)
            start = part.stop
        return rows

    def scaled_rewards(self, rewards: Tensor) -> Tensor:
        """Returns the rewards [T, B] for the loss. The baseline predicts their discounted sum."""
        if not self.scales_rewards:
            return rewards
        return (rewards * (self.return_variance + TINY).rsqrt()).clamp(-LIMIT, LIMIT)

    @torch.no_grad()
    def update(self, rows: dict[str, Tensor], gathered: Gathered | None = None) -> None:
        """Takes in the real transitions of a batch [T+1, B, ...]: the observations of their rows,
        and the returns to which their rewards lead. With several ranks it takes in those of all
        ranks (see `ranks.Ranks.gathered`); a rank that has no batch gives no rows."""
        own = self._of_batch(rows) if rows else self.mean.new_zeros(3 + 2 * len(self.mean))
        for each in [own] if gathered is None else gathered(own):
            sizes = [1, len(self.mean), len(self.mean), 1, 1]
            n, mean, variance, return_mean, return_variance = each.split(sizes)
            share = n / (self.count + n).clamp(min=1.0)
            self.count += n[0]
            _merge(self.mean, self.variance, mean, variance, share)
            # Also without --reward_scaling, with which the run may resume.
            _merge(self.return_mean, self.return_variance, return_mean, return_variance, share)

    def _of_batch(self, rows: dict[str, Tensor]) -> Tensor:
        """The number of real transitions, and the moments of the batch: [1 + 2 F + 2]."""
        real = (~rows["done"][1:]).float().unsqueeze(-1)  # [T, B, 1]
        returns = discounted_returns(rows, self.discounting).unsqueeze(-1)
        each = []
        for name in self.names:
            x = rows[name][:-1:EVERY] if name in self.pixels else rows[name][:-1]
            weights = real
            if name in self.pixels:  # perhaps no eighth row has a real transition
                weights = torch.where(real[::EVERY].sum() > 0, real[::EVERY], 1.0)
            each.append(_moments(x.reshape(*x.shape[:2], -1), weights))
        means, variances = zip(*each, strict=True) if each else ((), ())
        return torch.cat([real.sum().view(1), *means, *variances, *_moments(returns, real)])


def laid_out(images: Tensor) -> Tensor:
    """Returns images [..., C, H, W] with the channels last in memory."""
    flat = images.reshape(-1, *images.shape[-3:])
    is_last = flat.is_contiguous(memory_format=torch.channels_last)
    if images.dtype == torch.uint8 and images.device.type == "cpu" and not is_last:
        # Twice as fast as what follows, with 2 to 8 channels.
        return torch.stack(flat.unbind(1), dim=-1).movedim(-1, 1).view(images.shape)
    return flat.contiguous(memory_format=torch.channels_last).view(images.shape)


def _moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The means and the variances [F] of x [T, B, F]. The weights [T, B, 1] float are 1 for
    numbers that count and 0 for the others."""
    n, x = weights.sum().clamp(min=1.0), x.float().clamp(-HUGE, HUGE)
    mean = (weights * x).sum(dim=(0, 1)) / n
    return mean, (weights * (x - mean) ** 2).sum(dim=(0, 1)) / n


def _merge(
    mean: Tensor, variance: Tensor, own_mean: Tensor, own_variance: Tensor, share: Tensor
) -> None:
    """Merges the moments of new numbers into `mean` and `variance` [F] (Chan et al. 1979, "Updating
    formulae and a pairwise algorithm for computing sample variances"). `share` [1] is the share of
    the new numbers among all so far."""
    delta = own_mean - mean
    mean += share * delta
    variance += share * (own_variance - variance) + share * (1 - share) * delta**2


def discounted_returns(rows: dict[str, Tensor], discounting: float) -> Tensor:
    """The rewards of each episode so far, the older ones discounted: G_t = r_t + gamma G_{t-1}.

    A rollout does not have the rewards before its row 0. Unless that row begins an episode, each of
    them is taken to be their mean, which is its `episode_return` divided by its `episode_step`.
    Where lives end episodes, row 0 counts as the middle of a life of mean length. If lives differ
    much, rewards are rare, or an `episode_return` has rewards of two players who move in turn, the
    deviation is then wrong: 0.5 to 1.3 times the true one was seen.

    Args:
        rows: `reward`, `episode_return` [T+1, B] float32, `done` [T+1, B] bool and `episode_step`
            [T+1, B] int32. `discount` [T+1, B] float32, if the environment has discounts of its
            own: their size counts, since a reward of the opponent's has the same scale.

    Returns:
        [T, B] float32, those of rows 1 to T.
    """
    steps = rows["episode_step"][0]
    mean = rows["episode_return"][0] / steps.clamp(min=1)
    real = ~rows["done"]
    # In a game a life begins after one row that is not real; an agent that comes was away for more.
    begins = (real[2:] > real[1:-1]) & real[:-2]
    lost = torch.logical_and(begins, rows["episode_step"][1:-1]).sum()  # not those of games
    T = len(begins) + 1  # row 0 may begin a life, too, but does not show it
    length = real[1:].sum() / (2 * T / max(T - 1, 1) * lost)
    steps = steps.fmin(length)  # infinite or NaN where no life is lost
    past = (1 - discounting**steps) / (1 - discounting) if discounting < 1 else steps
    factors = discounting * real
    if "discount" in rows:
        factors = factors * rows["discount"].abs()
        gamma = factors.sum() / real.sum().clamp(min=1)  # the mean, also before row 0
        past = torch.where(gamma < 1, (1 - gamma**steps) / (1 - gamma), steps)
    terms = rows["reward"][1:].clone()
    terms[0] += factors[1] * mean * past * real[0]
    return scan_backwards(factors[1:].flip(0), terms.flip(0)).flip(0)
