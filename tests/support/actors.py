# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Networks and an environment whose rollouts reveal mistakes, and the rollouts of one actor."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

import monobeast
from libtorchbeast import models
from libtorchbeast.accelerator.devices import CPU
from libtorchbeast.environment import Environment
from libtorchbeast.learner import Between, Learner
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, Clock
from libtorchbeast.update import Updater
from tests.support.monobeast import unroll

N, T, ROLLOUTS, A = 3, 5, 6, 3
CLOSE = dict(rtol=1e-4, atol=1e-5)


class Counting(gymnasium.Env):
    """It shows the place in the episode and the last action. Episodes have 1 to 8 steps."""

    observation_space = Box(-1, 100, (3,))
    action_space = Discrete(A)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count, self._length = 0, self.np_random.integers(1, 9)
        return self._show(-1), {}

    def step(self, action):
        self._count += 1
        ended, truncated = self._count >= self._length, self._length % 2 == 0
        return self._show(action), float(action), ended and not truncated, ended and truncated, {}

    def _show(self, action):
        return np.array([self._count, action, self.np_random.normal()], np.float32)


class OnesNet(monobeast.Net):
    """A network whose initial state is ones, and which records the states that it gets."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.given = []
        with torch.no_grad():  # weights as large as after training, so that a wrong state matters
            nn.init.orthogonal_(self.policy.weight, 2.0)

    def initial_state(self, batch_size):
        return tuple(torch.ones_like(state) for state in super().initial_state(batch_size))

    def forward(self, inputs, core_state=()):
        self.given.append(core_state)
        return super().forward(inputs, core_state)


class CallsNet(monobeast.Net):
    """Counts its calls in a buffer."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs, core_state=()):
        self.calls += 1
        return super().forward(inputs, core_state)


class RuleNet(monobeast.Net):
    """A network that chooses its own actions and has two outputs that are not in the contract."""

    def forward(self, inputs, core_state=()):
        outputs, core_state = super().forward(inputs, core_state)
        count = inputs["frame"][..., 0].long()
        own = dict(action=(count + 1) % A, features=inputs["frame"] * 2, count=count.int())
        return outputs | own, core_state


def make_flags(*argv):
    words = f"--env CartPole-v1 --num_actors 0 --envs_per_actor {N} --unroll_length {T}"
    return monobeast.parse([*words.split(), "--precision", "fp32", *argv])


def make_actor(net_class, *argv, create_env=Counting):
    flags = make_flags(*argv)
    torch.manual_seed(1)
    env = Environment(create_env, N, "counting")
    net = models.make_net(net_class, env.spec, flags)
    net.given = []  # without the calls of make_net's check
    return monobeast.Actor(env, net, 1, flags, Clock(ACTOR_ACTIVITIES))


def make_rollouts(actor, count=ROLLOUTS):
    return [unroll(actor, T, version=k + 1) for k in range(count)]


def make_learner(net, flags, device=CPU, dump_dir=None, ranks=None, **others):
    """A learner with MonoBeast's targets and loss. Ranks share what these tell, and also `others`:
    names of scalars, means and sums."""
    own = (net, flags, device, dump_dir, monobeast.targets, monobeast.loss)
    names = dict(scalars=["pg_loss", "baseline_loss"], sums=[])
    names["means"] = ["entropy", "mean_value", "clipped_rho_share", "mean_rho"]
    for kind, more in others.items():
        names[kind] += more
    like = {kind: dict.fromkeys(told, torch.zeros(())) for kind, told in names.items()}
    return Learner(Updater(*own, ranks, like))


def run_of(learner, stats, between=None):
    """A run that does not end, as far as a learner thread sees it."""
    parts = dict(learner=learner, stats=stats, between=between or Between())
    return SimpleNamespace(**parts, finished=lambda: False)


def rows_of(rollout):
    return {k: v for k, v in rollout.items() if not k.startswith("core_state/")}
