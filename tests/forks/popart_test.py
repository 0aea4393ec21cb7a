# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PopArt with two tasks: a value head for each, whose returns are normalised by moments that change
after each step, while what the network says stays the same."""

import json

import pytest

from tests.support.forks import PROGRAMS, RUNS

TASKS = "--env tests.forks.envs:Tasks-v0 --learning_rate 3e-3 --reward_clipping none"
TRAIN = TASKS, "--use_lstm", 480, 2400
LAW = """
import json, sys, torch, monobeast
from libtorchbeast import models
flags = monobeast.parse("--env tests.forks.envs:Tasks-v0 --num_actors 0".split())
spec = monobeast.make_environment(flags).spec
net = models.make_net(monobeast.Net, spec, flags)
rows = dict(reward=torch.zeros(1, 2), done=torch.zeros(1, 2, dtype=torch.bool))
rows |= dict(image=torch.full((1, 2, 1, 3, 3), 128, dtype=torch.uint8))
rows |= dict(task=torch.eye(2, dtype=torch.uint8)[None], last_action=torch.zeros(1, 2).long())

@torch.no_grad
def values_and_scales(path):
    net.load_state_dict(torch.load(path, weights_only=True)["model"])
    seen = [net(rows)[0]["baseline"].tolist()]
    for powers in ([[9, 1], [90, -7e4], [2e3, 9e9]], [[0, 3], [0, 5], [0, 7]]):
        net.take_statistics(dict(powers=torch.tensor(powers, dtype=torch.float32)))
        seen.append(net(rows)[0]["baseline"].tolist())
    return [*seen, net.scale().tolist()]

print(json.dumps([*map(values_and_scales, sys.argv[1:])]))
"""


def test_new_moments_do_not_change_what_the_network_says(fork):
    paths = [str(fork.savedir / run / "model.tar") for run in ("impala", "ppo")]
    for (before,), *afters, scales in json.loads(fork.python("-c", LAW, *paths)):
        for (after,) in afters:
            assert after == pytest.approx(before, rel=1e-5, abs=1e-3)  # of returns around 10,000
        assert scales[1] > 1000 * scales[0]


def test_each_task_has_its_moments(fork):
    """Returns of the first lie between 0 and 8, those of the second between -240 and 160."""
    for run in RUNS:
        last = fork.rows(run)[-1]
        assert 0.3 < last["first_mean"] < 8 and 5 < abs(last["second_mean"]) < 240, last
        model = fork.checkpoint(run)["model"]
        deviations = (model["square"] - model["mean"] ** 2).sqrt()
        assert deviations[1] > 10 * deviations[0]
        assert 0.01 < last["baseline_loss"] < 3, last  # normalised; raw it would be above 100
    for program in PROGRAMS:
        assert abs(fork.rows(program)[-1]["second_mean"]) > 0
