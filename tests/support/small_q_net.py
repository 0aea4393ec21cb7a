# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network of R2D2 so small that its checkpoint can lie beside the tests, and a random batch."""

import torch
from torch import nn

import r2d2
from libtorchbeast.net_check import made_up_rows
from tests.support.small_nets import Recurrent


class SmallQ(Recurrent, r2d2.Net):
    """A checkpoint in tests/support has it."""

    def make_heads(self, num_actions):
        self.q = nn.Linear(2, num_actions)

    def heads(self, x):
        q = self.q(x)
        return dict(policy_logits=q, baseline=q.amax(-1))


def random_batch(net, spec, S, B):
    """A batch [S+1, B, ...] of the replay, of one long episode."""
    rows = made_up_rows(spec, S + 1, B, 0)
    rows["done"][0] = False
    for name in spec.observations:
        rows[name].random_(0, 100)
    rows |= {name: torch.randint(3, (S + 1, B)) for name in ("action", "last_action")}
    rows |= {"reward": torch.randn(S + 1, B), "policy_version": torch.zeros(S + 1, B).long()}
    state = {f"core_state/{i}": x for i, x in enumerate(net.initial_state(B))}
    columns = {"column/chance": torch.ones(1, B), "column/new_steps": torch.full((1, B), 5)}
    return rows | state | columns
