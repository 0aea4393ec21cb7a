# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""minGRU, a recurrent core that trains in parallel over time.

Feng et al. 2024, "Were RNNs All We Needed?", https://arxiv.org/abs/2410.01201. Its gates do not
read its state. So each layer needs one matrix product for all rows of a rollout, and what is left
is a linear recurrence for each unit alone.

The paper solves the recurrence with logarithms, for which all states have to be positive. Here it
is solved directly: its factors lie between 0 and 1, so that their products cannot overflow, states
may have any sign, and at a reset the factor is 0, which has no logarithm.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from vtrace import scan_backwards

LONGEST = 100.0  # steps


class MinGRU(nn.Module):
    """Layers of minGRU, for `models.unroll`. Each reads its normalised input and adds to it:

        n_t = LayerNorm(x_t)
        z_t = sigmoid(W_z n_t + b_z)             the gate
        h_t = (1 - z_t) h_{t-1} + z_t (W_c n_t + b_c)
        y_t = x_t + h_t

    The initial values are what makes it learn (results/README.md). The gates' biases spread over
    -log(1) to -log(LONGEST), so that a unit's gate alone would forget in 2 to LONGEST + 1 steps.
    Their weights are large, so that there are units which open for a rare observation only and keep
    it. The candidates' weights are small, because later candidates hide what is to be remembered.

    Args:
        hidden_size: H, the width of inputs, states and outputs.
    """

    def __init__(self, hidden_size: int, num_layers: int = 1):
        super().__init__()
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in range(num_layers))
        self.layers = nn.ModuleList(_gates_and_candidates(hidden_size) for _ in range(num_layers))

    def forward(
        self, x: Tensor, done: Tensor, state: tuple[Tensor], initial: tuple[Tensor]
    ) -> tuple[Tensor, tuple[Tensor]]:
        """Runs over T rows in one go, or makes one step if T is 1.

        Args:
            x: [T, B, H] float.
            done: [T, B] bool, True where the row is the first of its episode.
            state: the state before row 0, [layers, B, H] float32.
            initial: the state at the start of an episode, [layers, B, H] float32.

        Returns:
            The outputs [T, B, H] float32, and the state after the last row.
        """
        (before,), (fresh,) = state, initial
        done = done.unsqueeze(-1)
        after = []
        for i, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True)):
            gate, candidate = layer(norm(x)).float().chunk(2, dim=-1)
            z = gate.sigmoid()
            if len(x) == 1:
                h = torch.lerp(torch.where(done, fresh[i], before[i]), candidate, z)
            else:
                factors = (1 - z).masked_fill(done, 0)
                h = Recurrence.apply(factors, torch.lerp(done * fresh[i], candidate, z), before[i])
            after.append(h[-1])
            x = x + h
        return x, (torch.stack(after),)


def _gates_and_candidates(H: int) -> nn.Linear:
    """The matrices W_z and W_c of a layer, one above the other, with their biases."""
    layer = nn.Linear(H, 2 * H)
    nn.init.orthogonal_(layer.weight[:H], 8.0)
    nn.init.orthogonal_(layer.weight[H:], 0.1)
    nn.init.zeros_(layer.bias)
    with torch.no_grad():
        layer.bias[:H] = -torch.linspace(0, math.log(LONGEST), H)
    return layer


class Recurrence(torch.autograd.Function):
    """x_t = factors_t x_{t-1} + terms_t, with x_{-1} = `first`: [T, B, H], [T, B, H], [B, H] ->
    [T, B, H]. Its gradient is the same recurrence, backwards in time."""

    @staticmethod
    def forward(ctx: Any, factors: Tensor, terms: Tensor, first: Tensor) -> Tensor:
        x = _solve(factors, terms, first)
        ctx.save_for_backward(factors, x, first)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        factors, x, first = ctx.saved_tensors
        # g_t = grad_t + factors_{t+1} g_{t+1}: the gradient with respect to terms_t
        later = torch.cat([factors[1:], torch.zeros_like(factors[:1])])
        g = _solve(later.flip(0), grad.flip(0), torch.zeros_like(first)).flip(0)
        return g * torch.cat([first[None], x[:-1]]), g, factors[0] * g[0]


def _solve(factors: Tensor, terms: Tensor, first: Tensor) -> Tensor:
    """The recurrence of `Recurrence`, without a gradient. On a CPU one row after the other is
    1.5 to 5 times as fast as the scan, which goes over all rows log2 T times."""
    if terms.device.type != "cpu":
        return _solve_by_scan(factors, terms, first)
    x = torch.empty_like(terms)
    for a, b, x_t in zip(factors, terms, x, strict=True):
        first = torch.addcmul(b, a, first, out=x_t)
    return x


def _solve_by_scan(factors: Tensor, terms: Tensor, first: Tensor) -> Tensor:
    terms = torch.cat([terms[:1] + factors[:1] * first, terms[1:]])
    return scan_backwards(factors.flip(0), terms.flip(0)).flip(0)
