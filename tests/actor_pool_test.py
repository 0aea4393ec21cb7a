# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's ActorPool: its rollouts are what stepping the environments gives."""

import time

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import atari_wrappers
from benchmarks.mock import make_mock
from libtorchbeast import ActorPool, BatchingQueue, describe
from libtorchbeast.environment import Environment
from libtorchbeast.rpcenv.client import spec_of
from libtorchbeast.seeds import derive_seed
from tests.support.actors import A, Counting
from tests.support.compare import assert_same
from tests.support.envs import Catch, Sampled
from tests.support.pools import T, by_rule, expected_rollouts, make_cartpole, playing, serving


class Varied(Sampled):
    """Observations of every dtype, nested, without axes, without elements."""

    kinds = "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split()
    action_space = Discrete(A)

    def __init__(self):
        boxes = {kind: Box(0, 100, (2, 3), getattr(np, kind)) for kind in self.kinds}
        inner = {"x": Box(-9, 9, (), np.float64), "none": Box(0, 1, (0, 4), np.float32)}
        flags = Box(0, 1, (5,), bool)
        parts = {**boxes, "level": Discrete(7), "flags": flags, "inner": Dict(inner)}
        self.observation_space = Dict(parts)


@pytest.mark.parametrize("create_env", [Catch, make_cartpole, Counting, Varied])
def test_rollouts_are_what_stepping_the_environments_gives(address, create_env):
    queue = BatchingQueue(3, 3)
    expected = expected_rollouts(create_env, 3, derive_seed(11, 0), 20)
    with serving(create_env, address, 3, seed=11), playing([address], by_rule, queue) as pool:
        seen, spec = spec_of(describe(address)), Environment(create_env, 3, "Test-v0").spec
        assert seen == spec and seen.sets == ({"level": 7} if create_env is Varied else {})
        assert_same([queue.dequeue() for _ in expected], expected)
        assert pool.take_events() == []
        (status,) = pool.status()
        assert (status.address, status.connected, status.failures) == (address, True, 0)
        assert status.last_error == ""
    done = torch.stack([rollout["done"] for rollout in expected])
    assert done[1:, 0].any() and done[:, 1:].any()  # the interesting cases were there


def test_stacks_of_frames_are_what_the_environments_stack_themselves(address):
    queue = BatchingQueue(2, 2)
    create_env = lambda: atari_wrappers.make_atari_vector("BreakoutNoFrameskip-v4", 2)
    expected = expected_rollouts(create_env, 2, derive_seed(11, 0), 70)
    with serving(create_env, address, 2, seed=11), playing([address], by_rule, queue) as pool:
        spec = spec_of(describe(address))
        assert (spec.stacks, spec.frames_per_step) == ({"frame": 4}, 4)
        assert spec.observations == {"frame": ((4, 84, 84), "uint8")}
        assert_same([queue.dequeue() for _ in expected], expected)
        assert pool.take_events() == []
    rows = {name: torch.cat([r[name][1:] for r in expected]) for name in expected[0]}
    new_game = rows["episode_step"] == 0
    new_life = rows["done"] & ~new_game
    assert new_game.any() and not rows["frame"][new_game][:, :3].any()
    kept = rows["frame"][new_life][:, :3].flatten(1).any(1)
    assert len(kept) and kept.all()


def test_streams_of_one_server_have_their_own_environments(address):
    queue = BatchingQueue(2, 2)
    awaited = [expected_rollouts(Counting, 2, derive_seed(0, s), 10) for s in range(3)]
    with serving(Counting, address), playing([address] * 3, by_rule, queue):
        while any(awaited):
            rollout = queue.dequeue()
            for own in filter(None, awaited):
                if torch.equal(own[0]["frame"], rollout["frame"]):
                    own.pop(0)


def test_observations_of_5_mib(address):
    """gRPC's own limit is 4 MiB."""
    queue, create_env = BatchingQueue(1, 1), lambda: make_mock("Mock/5x1024x1024", 1)
    expected = expected_rollouts(create_env, 1, derive_seed(0, 0), 2)
    with serving(create_env, address, 1), playing([address], by_rule, queue):
        for rollout in expected:
            assert torch.equal(queue.dequeue()["frame"], rollout["frame"])


def test_where_the_time_goes_and_how_long_an_answer_takes(address):
    """The bounds are lower bounds, because the machine may be busy. No second is counted twice.
    tests/core checks each of the times."""

    class Slow(Catch):
        def step(self, action):
            time.sleep(0.02)
            return super().step(action)

    queue, start = BatchingQueue(1, 1), time.perf_counter()
    with serving(Slow, address, 1), playing([address], by_rule, queue) as pool:
        for _ in range(3):
            queue.dequeue()
        pool.close()
        seconds, latencies = pool.seconds(), pool.latencies()
    names = dict(zip(ActorPool.ACTIVITIES, seconds, strict=True))
    assert min(seconds) >= 0 and sum(seconds) <= time.perf_counter() - start
    assert names["environment"] >= (3 * T - 1) * 0.02  # resets take none
    assert len(latencies) == 240 and sum(latencies) >= 3 * T
