# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PopArt with two tasks: a value head for each, whose returns are normalised by moments that change
after each step, while what the network says stays the same."""

import torch

from libtorchbeast import models
from tests.support.forks import RUNS, import_fork

TASKS = "--env tests.forks.envs:Tasks-v0 --learning_rate 3e-3 --reward_clipping none"
TRAIN = TASKS, "--use_lstm", 480, 2400
POWERS = ([[9, 1], [90, -7e4], [2e3, 9e9]], [[0, 3], [0, 5], [0, 7]])


@torch.no_grad
def test_new_moments_do_not_change_what_the_network_says(fork):
    monobeast = import_fork(fork.copy)
    flags = monobeast.parse("--env tests.forks.envs:Tasks-v0 --num_actors 0".split())
    spec = monobeast.make_environment(flags).spec
    net = models.make_net(monobeast.Net, spec, flags)
    rows = dict(reward=torch.zeros(1, 2), done=torch.zeros(1, 2, dtype=torch.bool))
    rows |= dict(image=torch.full((1, 2, 1, 3, 3), 128, dtype=torch.uint8))
    rows |= dict(task=torch.eye(2, dtype=torch.uint8)[None], last_action=torch.zeros(1, 2).long())
    for run in ("impala", "ppo"):
        net.load_state_dict(fork.checkpoint(run)["model"])
        before = net(rows)[0]["baseline"]
        for powers in POWERS:
            net.take_statistics(dict(powers=torch.tensor(powers)))
            after = net(rows)[0]["baseline"]
            torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-3)  # around 10,000
        assert net.scale()[1] > 1000 * net.scale()[0]


def test_each_task_has_its_moments(fork):
    """Returns of the first lie between 0 and 8, those of the second between -240 and 160."""
    for run in RUNS:
        last = fork.rows(run)[-1]
        assert 0.3 < last["first_mean"] < 8 and 5 < abs(last["second_mean"]) < 240, last
        model = fork.checkpoint(run)["model"]
        deviations = (model["square"] - model["mean"] ** 2).sqrt()
        assert deviations[1] > 10 * deviations[0]
        assert 0.01 < last["baseline_loss"] < 3, last  # normalised; raw it would be above 100
