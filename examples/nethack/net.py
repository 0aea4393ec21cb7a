# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The network of NLE's agent (Küttler et al. 2020, "The NetHack Learning Environment"), for both
beasts: --net examples.nethack.net.NetHackNet. With the same weights it gives the same outputs as
`nle.agent.agent.NetHackNet`; nethack_test.py compares them."""

import torch
from torch import nn

from libtorchbeast import models
from libtorchbeast.flags import Flags
from libtorchbeast.models import CoreState
from libtorchbeast.spec import Spec

GLYPHS = 5976  # nle.nethack.MAX_GLYPH: what a place of the map can show
EMBEDDING, WIDTH = 32, 512
SIDE, BEFORE = 9, 5  # a crop shows 5 columns left of the agent and 3 right of it, as NLE's does


class NetHackNet(nn.Module):
    """Sees the map and a crop of it around the agent, reads the bottom line, and with --core or
    --use_lstm remembers. It has 9.7M weights with an LSTM in NetHackScore-v0, 7.6M without.

    All maps are [N, columns, rows]: the first axis is x, as in NLE's agent.
    """

    def __init__(self, spec: Spec, flags: Flags):
        super().__init__()
        (rows, columns), _ = spec.observations["glyphs"]  # 21, 79
        (stats,), _ = spec.observations["blstats"]  # 27
        self.embed = nn.Embedding(GLYPHS, EMBEDDING)
        self.see_map, self.see_crop = convolutions(), convolutions()
        self.read_stats = nn.Sequential(
            nn.Linear(stats, EMBEDDING), nn.ReLU(), nn.Linear(EMBEDDING, EMBEDDING), nn.ReLU()
        )
        seen = EMBEDDING + 8 * (SIDE * SIDE + rows * columns)
        self.fc = nn.Sequential(
            nn.Linear(seen, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.core = models.make_core(flags, WIDTH, WIDTH)
        self.policy = nn.Linear(WIDTH, spec.num_actions)
        self.baseline = nn.Linear(WIDTH, 1)

    def initial_state(self, batch_size: int) -> CoreState:
        return models.zero_state(self.core, batch_size)

    def forward(self, inputs: dict[str, torch.Tensor], core_state: CoreState = ()):
        T, B = inputs["done"].shape
        glyphs = inputs["glyphs"].flatten(0, 1).transpose(1, 2)  # [T * B, columns, rows]
        stats = inputs["blstats"].flatten(0, 1)  # [T * B, 27], raw; the first two are x and y
        near = crop(glyphs, stats[:, 0], stats[:, 1])
        x = torch.cat(
            [
                self.read_stats(stats.float()),
                self.see_crop(self.embedded(near)),
                self.see_map(self.embedded(glyphs)),
            ],
            dim=1,
        )
        x = self.fc(x).view(T, B, WIDTH)
        if self.core is not None:
            x, core_state = models.unroll(
                self.core, x, inputs["done"], core_state, self.initial_state(B)
            )
        with torch.autocast(x.device.type, enabled=False):  # the heads stay float32
            policy_logits, baseline = self.policy(x.float()), self.baseline(x.float()).squeeze(-1)
        return dict(policy_logits=policy_logits, baseline=baseline), core_state

    def embedded(self, glyphs: torch.Tensor) -> torch.Tensor:
        """[N, X, Y] -> [N, 32, X, Y]."""
        return self.embed(glyphs.int()).movedim(-1, 1)


def convolutions() -> nn.Sequential:
    """Five convolutions that keep width and height: [N, 32, X, Y] -> [N, 8 * X * Y]."""
    layers: list[nn.Module] = []
    for channels, filters in ((EMBEDDING, 16), (16, 16), (16, 16), (16, 16), (16, 8)):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ELU()]
    return nn.Sequential(*layers, nn.Flatten())


def crop(glyphs: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The part of each map [N, columns, rows] around its place x, y [N]: [N, 9, 9], with x and y at
    index 5. Beyond the map it has the glyph 0."""
    after = SIDE - 1 - BEFORE
    padded = nn.functional.pad(glyphs, (BEFORE, after, BEFORE, after))
    window = torch.arange(SIDE, device=glyphs.device)
    maps = torch.arange(glyphs.shape[0], device=glyphs.device)[:, None, None]
    return padded[maps, (x[:, None] + window)[:, :, None], (y[:, None] + window)[:, None, :]]
