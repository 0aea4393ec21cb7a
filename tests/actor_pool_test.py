# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's ActorPool: its rollouts are what stepping the environments gives."""

import contextlib
import itertools
import math
import time

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import atari_wrappers
from benchmarks.mock import make_mock
from libtorchbeast import ActorPool, BatchingQueue, DynamicBatcher, describe
from libtorchbeast.environment import Environment
from libtorchbeast.rpcenv.client import spec_of
from libtorchbeast.seeds import derive_seed
from tests.support.actors import A, Counting
from tests.support.compare import assert_same
from tests.support.envs import Catch, Sampled
from tests.support.extension import answer, bytes_of
from tests.support.games import Guess
from tests.support.pools import T, by_rule, expected_rollouts, make_cartpole, playing, serving

pytestmark = pytest.mark.usefixtures("one_thread")


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


class Numbered(Counting):
    """Its observation is its own number, which no other environment has. Its rewards are random."""

    observation_space = Box(0, 1e6, (2,), np.float64)
    numbers = itertools.count()

    def __init__(self):
        super().__init__()
        self._number = next(self.numbers)

    def _show(self, action):
        return np.array([self._number, self._count], np.float64)


@pytest.mark.parametrize("create_env", [Catch, make_cartpole, Counting, Varied])
def test_rollouts_are_what_stepping_the_environments_gives(address, create_env):
    queue = BatchingQueue(3, 3)
    expected = expected_rollouts(create_env, 3, derive_seed(11, 0), 20)
    with serving(create_env, address, 3, seed=11), playing([address], by_rule, queue) as pool:
        for rollout in expected:
            assert_same(queue.dequeue(), rollout)
        assert pool.take_events() == []
        (status,) = pool.status()
        assert (status.address, status.connected, status.failures) == (address, True, 0)
        assert status.last_error == ""
    done = torch.stack([rollout["done"] for rollout in expected])
    assert done[1:, 0].any() and done[:, 1:].any()  # the interesting cases were there


class Cards(Guess):
    action_space = Discrete(2)
    observation_space = Dict(hand=MultiDiscrete([7, 2]), suit=Discrete(4), x=Box(0, 1, (2,)))


def test_a_server_tells_which_numbers_stand_for_things(address):
    """So that networks behind either beast see them alike."""
    with serving(Cards, address, 2):
        assert spec_of(describe(address)) == Environment(Cards, 2, "Test-v0").spec
        assert spec_of(describe(address)).sets == {"hand": 7, "suit": 4}


def breakout(num_envs):
    return atari_wrappers.make_atari_vector("BreakoutNoFrameskip-v4", num_envs)


def pong(num_envs):
    return atari_wrappers.make_atari_vector("PongNoFrameskip-v4", num_envs, max_frames=400)


def classic_breakout(num_envs):
    return atari_wrappers.wrap_deepmind(atari_wrappers.make_atari("BreakoutNoFrameskip-v4"))


@pytest.mark.parametrize("make, count", [(breakout, 70), (pong, 45), (classic_breakout, 50)])
def test_stacks_of_frames_are_what_the_environments_stack_themselves(address, make, count):
    """They are equal bit for bit, across games and lives, though only the newest frame is sent."""
    queue, create_env = BatchingQueue(2, 2), lambda: make(2)
    expected = expected_rollouts(create_env, 2, derive_seed(11, 0), count)
    with serving(create_env, address, 2, seed=11), playing([address], by_rule, queue) as pool:
        description = describe(address)
        assert description.stacks == spec_of(description).stacks == {"frame": 4}
        assert description.observations == {"frame": ((4, 84, 84), "uint8")}
        for rollout in expected:
            assert_same(queue.dequeue(), rollout)
        assert pool.take_events() == []
    rows = {name: torch.cat([r[name][1:] for r in expected]) for name in expected[0]}
    new_game = rows["episode_step"] == 0
    new_life = rows["done"] & ~new_game
    assert new_game.any() and not rows["frame"][new_game][:, :3].any()
    assert new_life.any() == (make is not pong)
    assert rows["frame"][new_life][:, :3].flatten(1).any(1).all()  # the stack is kept


def test_streams_of_one_server_have_their_own_environments(address):
    queue = BatchingQueue(2, 2)
    expected = [expected_rollouts(Counting, 2, derive_seed(0, s), 10) for s in range(3)]
    with serving(Counting, address), playing([address] * 3, by_rule, queue):
        taken = [0] * 3
        while min(taken) < 10:
            rollout = queue.dequeue()
            stream = next((s for s in range(3) if same(rollout, expected[s], taken[s])), None)
            if stream is None:  # one of those that we have seen enough of
                assert max(taken) == 10
            else:
                taken[stream] += 1


def same(rollout, expected, index):
    if index == len(expected):
        return False
    return torch.equal(rollout["frame"], expected[index]["frame"])


def test_observations_of_5_mib(address):
    queue = BatchingQueue(1, 1)
    create_env = lambda: make_mock("Mock/5x1024x1024", 1)
    with serving(create_env, address, 1), playing([address], by_rule, queue, T=2):
        environment = Environment(create_env, 1)
        frames = [environment.initial(0)["frame"].copy()]
        frames += [environment.step(np.zeros(1, int))["frame"].copy() for _ in range(4)]
        for first in (0, 2):
            expected = torch.from_numpy(np.stack(frames[first : first + 3]))
            assert torch.equal(queue.dequeue()["frame"], expected)


class Slow(Catch):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


def test_where_the_time_goes_and_how_long_an_answer_takes(address):
    """The bounds are lower bounds, because the machine may be busy. No second is counted twice."""
    rows = 0

    def infer(batcher, net):
        nonlocal rows
        while True:
            time.sleep(0.01)  # rows wait to be taken
            try:
                batch = next(batcher)
            except StopIteration:
                return
            time.sleep(0.03)
            rows += 1
            batch.set_outputs(net(*batch.get_inputs()))

    queue, start = BatchingQueue(1, 1), time.perf_counter()
    with serving(Slow, address, 1), playing([address], by_rule, queue, infer=infer) as pool:
        for _ in range(3):
            time.sleep(0.1)
            queue.dequeue()
        pool.close()
        seconds, latencies = pool.seconds(), pool.latencies()
        lasted = time.perf_counter() - start
    names = dict(zip(ActorPool.ACTIVITIES, seconds, strict=True))
    assert 15 <= rows <= 30 and sum(seconds) <= lasted
    assert names["environment"] >= (rows - 5) * 0.02  # resets take none
    assert names["inference"] >= (rows - 1) * 0.03
    assert names["batching"] > 0 and names["transport"] > 0
    assert len(latencies) == 240 and rows - 1 <= sum(latencies) <= rows
    place = lambda seconds: math.floor(8 * math.log2(seconds / 1e-6))
    assert not any(latencies[: place(0.03)])


# The initial state is not zeros, and has tensors of different kinds.
INITIAL = torch.full((1, 1, 1), 5), torch.arange(6.0).view(2, 1, 3)


def counting_net(inputs, core_state):
    """Counts the rows of each episode in its state, from 5 on. Outputs the count and its inputs."""
    reset = inputs["done"].view(1, -1, 1)
    after = tuple(
        torch.where(reset, initial, state) + 1
        for initial, state in zip(INITIAL, core_state, strict=True)
    )
    outputs, _ = by_rule(inputs)
    count, given = after[0].squeeze(-1), core_state[0].squeeze(-1)
    return outputs | {"count": count, "given": given}, after


def columns_of(batch):
    for b in range(batch["reward"].shape[1]):
        yield {name: tensor[:, b] for name, tensor in batch.items()}


def test_state_rows_and_rollouts_of_every_column_are_seamless(tmp_path):
    """Streams of 2, 3 and 3 environments, inference batches of several streams, learner batches of
    4 columns: for each column the state counts its episode's rows exactly, row T is row 0 of its
    next rollout bit for bit, and the rollout's state is the one given at row 0."""
    addresses = [f"unix:{tmp_path}/{i}" for i in range(2)]
    queue, sizes, mine = BatchingQueue(4, 8), [], {}
    with contextlib.ExitStack() as stack:
        for address, num_envs in zip(addresses, (2, 3), strict=True):
            stack.enter_context(serving(Numbered, address, num_envs))
        streams = [addresses[0], addresses[1], addresses[1]]
        infer = lambda batcher, net: answer(batcher, net, sizes)
        batcher = DynamicBatcher(8, 64, 20.0)
        play = playing(streams, counting_net, queue, INITIAL, batcher, infer)
        pool = stack.enter_context(play)
        while len(mine) < 8 or min(map(len, mine.values())) < 30:
            batch = queue.dequeue()
            assert batch["reward"].shape == (T + 1, 4)
            for column in columns_of(batch):
                assert column["frame"][:, 0].unique().numel() == 1  # one environment's
                mine.setdefault(int(column["frame"][0, 0]), []).append(column)
        assert pool.take_events() == []
    assert max(sizes) > 3
    for column in mine.values():
        before, given = None, int(INITIAL[0])
        for rollout in column:
            rows = {k: v for k, v in rollout.items() if not k.startswith("core_state/")}
            if before is not None:
                for name, tensor in rows.items():
                    assert bytes_of(tensor[0]) == bytes_of(before[name][-1]), name
            assert torch.equal(rollout["count"], 5 + 1 + rollout["episode_step"])
            assert torch.equal(rollout["frame"][:, 1], rollout["episode_step"].double())
            assert rollout["given"][0] == given
            assert torch.equal(rollout["given"][1:], rollout["count"][:-1])
            assert rollout["core_state/0"].tolist() == [[given]]
            expected = INITIAL[1][:, 0] + (given - 5)
            assert torch.equal(rollout["core_state/1"], expected)
            before, given = rows, int(rollout["count"][-2])
        assert any(rollout["done"][0] for rollout in column[1:])
        assert any(rollout["done"][-1] for rollout in column)


@pytest.mark.parametrize(
    "changes, text",
    [
        (dict(unroll_length=0), "unroll_length: expected at least 1, seen 0"),
        (dict(addresses=[]), "addresses: expected at least one"),
        (
            dict(initial_core_state=[torch.zeros(1, 2, 3)]),
            r"initial_core_state: expected one column, seen float32\[1, 2, 3\]",
        ),
    ],
)
def test_what_a_pool_is_made_of_is_checked(address, changes, text):
    with serving(Catch, address):
        arguments = dict(
            unroll_length=T,
            learner_queue=BatchingQueue(2, 2),
            inference_batcher=DynamicBatcher(1, 64, 20.0),
            addresses=[address],
            initial_core_state=(),
            spec=describe(address),
        )
        with pytest.raises(ValueError, match=text):
            ActorPool(**(arguments | changes))
