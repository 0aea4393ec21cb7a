# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network that checks rollouts: `--net tests.faults._nets.OneLife`."""

import os
import time

import torch

import monobeast


class OneLife(monobeast.Net):
    """Raises an error in the learner unless each column of a batch is of one life of an environment
    Lives, without a gap, and begins where this life's last rollout ended. The core state counts an
    episode's rows. After 20 updates the learner pauses for PAUSE_S seconds."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.lives, self.batches = {}, 0  # life -> the step at which its next rollout begins

    def initial_state(self, batch_size):
        return (torch.zeros(1, batch_size, 1),)

    def forward(self, inputs, core_state=()):
        (state,) = core_state
        if torch.is_grad_enabled():  # the learner calls, not an actor
            self.batches += 1
            if self.batches > 1:  # the first batch is made up, to check the loss
                self.check(inputs, state[0, :, 0])
            if self.batches == 20:
                time.sleep(float(os.environ.get("PAUSE_S", 0)))
        outputs, _ = super().forward(inputs)
        for done in inputs["done"]:
            state = torch.where(done[None, :, None], 0.0, state) + 1
        return outputs, (state,)

    def check(self, rows, rows_before):
        life, count = number(rows["life"]), number(rows["count"])
        good = rows["done"][0] | (rows_before == rows["episode_step"][0])
        good &= are_of_one_life(rows)
        for column, which in enumerate(life[0].tolist()):
            good[column] &= self.lives.get(which, 0) == int(count[0, column])
            self.lives[which] = int(count[-1, column])
        assert good.all(), f"a mixed rollout: lives {life}, steps {count}, states {rows_before}"


def are_of_one_life(rows):
    """Which columns of rows [T+1, B, ...] are of one life, without a gap: [B] bool."""
    life, count, process = (number(rows[name]) for name in ("life", "count", "process"))
    good = (life == life[0]).all(0) & (process == process[0]).all(0)
    good &= (count - count[0] == torch.arange(len(count)).unsqueeze(1)).all(0)
    action = torch.where(rows["done"][1:], 0, rows["action"][:-1])
    return good & (rows["last_action"][1:] == action).all(0)


def number(part):
    """The numbers [T, B] of a part of Lives' observation, [T, B, 8] bytes."""
    return part.clone().view(torch.int64).squeeze(-1)
