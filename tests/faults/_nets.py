# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network that spoils updates, for float observations: `--net tests.faults._nets.Spoiled`."""

import itertools
import os

import torch

import monobeast

NAN, INF = float("nan"), float("inf")
# Pairs (what is spoiled, the value that spoils it), which take turns.
SPOILT = itertools.cycle(
    itertools.product(["frame", "reward", "policy_logits", "own logits", "gradient"], [NAN, INF])
)


class Spoiled(monobeast.Net):
    """Spoils every SPOIL_EVERY-th batch that it learns from, and all batches from number SPOIL_FROM
    on. It raises if it is run with weights that are not finite."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        # A running mean, which a fork may use to normalise observations. Spoiled batches change it.
        self.register_buffer("mean", torch.zeros(spec.observations["frame"][0]))
        self.batches = 0

    def forward(self, inputs, core_state=()):
        for name, weight in self.state_dict().items():
            assert weight.isfinite().all(), f"{name} is not finite"
        what, value = None, NAN
        if torch.is_grad_enabled():  # the learner calls, not an actor
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
