# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network of R2D2 so small that its checkpoint can lie beside the tests."""

import torch
from torch import nn

import r2d2
from libtorchbeast import models


class SmallQ(r2d2.Net):
    """Reads vectors with an LSTM of two units. A checkpoint in tests/support has it."""

    def __init__(self, spec, flags):
        nn.Module.__init__(self)
        (shape, _), *_ = spec.observations.values()
        self.core = nn.LSTM(shape[0], 2)
        self.q = nn.Linear(2, spec.num_actions)

    def initial_state(self, batch_size):
        return (torch.zeros(1, batch_size, 2), torch.zeros(1, batch_size, 2))

    def forward(self, inputs, core_state=()):
        T, B = inputs["reward"].shape
        x, core_state = models.unroll(
            self.core, inputs["frame"].float(), inputs["done"], core_state, self.initial_state(B)
        )
        q = self.q(x.view(T, B, -1).float())
        return dict(policy_logits=q, baseline=q.amax(-1)), core_state
