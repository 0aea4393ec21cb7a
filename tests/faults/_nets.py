# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network that spoils updates: `--net tests.faults._nets.Spoiled`, for float observations."""

import itertools
import os

import torch

import monobeast

NAN, INF = float("nan"), float("inf")
# What is spoiled, and with what, by turns.
SPOILT = itertools.cycle(
    itertools.product(["frame", "reward", "policy_logits", "own logits", "gradient"], [NAN, INF])
)


class Spoiled(monobeast.Net):
    """Spoils each SPOIL_EVERY-th batch that it learns from, and all of them from number SPOIL_FROM
    on. Fails if it is ever run with weights that are not finite."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        # As a fork would keep to normalise what it sees: a spoilt batch goes in.
        self.register_buffer("mean", torch.zeros(spec.observations["frame"][0]))
        self.batches = 0

    def forward(self, inputs, core_state=()):
        for name, weight in self.state_dict().items():
            assert weight.isfinite().all(), f"{name} is not finite"
        what, value = None, NAN
        if torch.is_grad_enabled():  # it learns
            self.batches += 1
            every, start = int(os.environ["SPOIL_EVERY"]), int(os.environ["SPOIL_FROM"])
            if self.batches % every == 0 or self.batches >= start:
                what, value = next(SPOILT)
            if what in inputs:
                inputs[what][1:3, 0] = value
            self.mean.lerp_(inputs["frame"].mean((0, 1)), 0.01)
        outputs, core_state = super().forward(inputs, core_state)
        if what == "own logits":
            outputs["policy_logits"] = outputs["policy_logits"] * value
        if what == "gradient":
            outputs["baseline"].register_hook(lambda gradient: gradient * value)
        return outputs, core_state
