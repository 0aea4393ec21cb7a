# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network so small that its checkpoint can lie beside the tests."""

import torch
from torch import nn

from libtorchbeast import models


class Recurrent(nn.Module):
    """Reads vectors with an LSTM of two units. Checkpoints in tests/support have it."""

    def __init__(self, spec, flags):
        super().__init__()
        (shape, _), *_ = spec.observations.values()
        self.core = nn.LSTM(shape[0], 2)
        self.policy, self.baseline = nn.Linear(2, spec.num_actions), nn.Linear(2, 1)

    def initial_state(self, batch_size):
        return (torch.zeros(1, batch_size, 2), torch.zeros(1, batch_size, 2))

    def forward(self, inputs, core_state=()):
        T, B = inputs["reward"].shape
        x, core_state = models.unroll(
            self.core, inputs["frame"].float(), inputs["done"], core_state, self.initial_state(B)
        )
        x = x.view(T, B, -1).float()
        return dict(policy_logits=self.policy(x), baseline=self.baseline(x)[..., 0]), core_state
