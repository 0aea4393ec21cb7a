# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network for Connect Four: --net examples.self_play.net.Net."""

import torch
from torch import nn

from libtorchbeast import models
from libtorchbeast.distributions import make_distribution
from libtorchbeast.flags import Flags
from libtorchbeast.models import CoreState
from libtorchbeast.spec import Spec

FILTERS, WIDTH = 64, 256


class Net(nn.Module):
    """Looks at all twelve windows of 4 x 4 cells: each line of four lies within one of them. Last
    action and reward are not read, because they belong to the opponent. In tests and evaluations
    the outputs are the means of those for the board and for its mirror image, which err less."""

    def __init__(self, spec: Spec, flags: Flags):
        super().__init__()
        self.distribution = make_distribution(spec.actions)
        C, H, W = spec.observations["board"][0]  # 2, 6, 7
        windows = (H - 3) * (W - 3)
        self.trunk = nn.Sequential(
            nn.Conv2d(C, FILTERS, 4), nn.ReLU(), nn.Flatten(),
            nn.Linear(FILTERS * windows, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        )  # fmt: skip
        self.policy = nn.Linear(WIDTH, spec.num_actions)
        self.baseline = nn.Linear(WIDTH, 1)
        models.make_orthogonal(self.trunk, 2**0.5)
        models.make_orthogonal([self.policy], 0.01)
        models.make_orthogonal([self.baseline], 0.1)

    def initial_state(self, batch_size: int) -> CoreState:
        return ()

    def forward(self, inputs: dict[str, torch.Tensor], core_state: CoreState = ()):
        T, B = inputs["done"].shape
        board = inputs["board"].flatten(0, 1).float()  # [T * B, C, H, W]
        policy_logits, baseline = self.see(board)
        if not self.training:
            mirrored_logits, mirrored_baseline = self.see(board.flip(-1))
            policy_logits = (policy_logits + mirrored_logits.flip(-1)) / 2
            baseline = (baseline + mirrored_baseline) / 2
        policy_logits = policy_logits.view(T, B, -1)
        return dict(policy_logits=policy_logits, baseline=baseline.view(T, B)), core_state

    def see(self, board: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.trunk(board)  # [T * B, WIDTH]
        with torch.autocast(x.device.type, enabled=False):  # the heads stay float32
            return self.policy(x.float()), self.baseline(x.float())
