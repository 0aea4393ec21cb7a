# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network so small that its checkpoint can lie beside the tests, and an environment of images."""

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

from libtorchbeast import models
from tests.support.actors import Counting


class Recurrent(nn.Module):
    """Reads vectors with an LSTM of two units. Checkpoints in tests/support have it."""

    def __init__(self, spec, flags):
        nn.Module.__init__(self)
        (shape, _), *_ = spec.observations.values()
        self.core = nn.LSTM(shape[0], 2)
        self.make_heads(spec.num_actions)

    def make_heads(self, num_actions):
        self.policy, self.baseline = nn.Linear(2, num_actions), nn.Linear(2, 1)

    def heads(self, x):
        return dict(policy_logits=self.policy(x), baseline=self.baseline(x)[..., 0])

    def initial_state(self, batch_size):
        return (torch.zeros(1, batch_size, 2), torch.zeros(1, batch_size, 2))

    def forward(self, inputs, core_state=()):
        T, B = inputs["reward"].shape
        x, core_state = models.unroll(
            self.core, inputs["frame"].float(), inputs["done"], core_state, self.initial_state(B)
        )
        return self.heads(x.view(T, B, -1).float()), core_state


class Flicker(Counting):
    """Counting, as images."""

    observation_space = Box(0, 255, (2, 9, 12), np.uint8)

    def _show(self, action):
        return self.np_random.integers(0, 256, (2, 9, 12), np.uint8)
