# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PopArt for several tasks.

[PopArt]     van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714
[multi-task] Hessel et al. 2018, https://arxiv.org/abs/1809.04474
"""

import torch
from torch import Tensor, nn

LIMITS = (1e-4, 1e6)  # of the scales, those of [multi-task]


class ValueHeads(nn.Linear):
    """A value head for each of K tasks, whose own outputs are normalised returns. The values are

        V_k(x) = scale_k (w_k x + b_k) + mean_k

    in units of return. Mean and scale are those of the task's returns, and follow them slowly. When
    they change, w_k and b_k change so that no value does.

    Args:
        inputs: F, the width of x.
        tasks: K.
        rate: of the moments' averages, [multi-task] beta. With 0 they stay 0 and 1, so that the
            heads are without PopArt.
    """

    mean: Tensor  # [K] float32, of the returns of each task
    square: Tensor  # [K] float32, the mean of their squares

    def __init__(self, inputs: int, tasks: int, rate: float):
        super().__init__(inputs, tasks)
        self.rate = rate
        self.register_buffer("mean", torch.zeros(tasks))
        self.register_buffer("square", torch.ones(tasks))

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        """The value [T, B] of each x [T, B, F] in its own task, [T, B, K] one-hot."""
        return ((super().forward(x) * self.scales() + self.mean) * task).sum(-1)

    def scales(self) -> Tensor:
        """The standard deviation of each task's returns, [K]."""
        return (self.square - self.mean**2).clamp(min=0).sqrt().clamp(*LIMITS)

    def scale_of(self, task: Tensor) -> Tensor:
        """The scale [T, B] of the task of each transition, [T, B, K] one-hot. An error of a value
        and an advantage are divided by it, so that all tasks have gradients of one size."""
        return (self.scales() * task).sum(-1)

    def sums(self, v: Tensor, task: Tensor, weights: Tensor) -> Tensor:
        """How many transitions each task has, the sum of their targets and that of the squares.

        Args:
            v: [T, B] float32, V-trace's targets of the values, in units of return.
            task: [T, B, K], one-hot, bool or float32.
            weights: [T, B] float32, 1 for transitions that count, else 0.

        Returns:
            [3, K] float32.
        """
        v, weights = v.unsqueeze(-1), weights.unsqueeze(-1) * task  # [T, B, 1], [T, B, K]
        return torch.stack([weights, weights * v, weights * v**2]).sum((1, 2))

    @torch.no_grad()
    def take(self, sums: Tensor) -> None:
        """Moves the moments of the tasks that occur in the `sums` [3, K], and rescales the heads
        ([PopArt] algorithm 1). In place, so that recorded graphs see it."""
        count, total, squares = sums
        rate, old_mean, old_scales = self.rate * (count > 0), self.mean.clone(), self.scales()
        self.mean.lerp_(total / count.clamp(min=1), rate)
        self.square.lerp_(squares / count.clamp(min=1), rate)
        self.weight.mul_((old_scales / self.scales()).unsqueeze(-1))
        self.bias.mul_(old_scales).add_(old_mean - self.mean).div_(self.scales())
