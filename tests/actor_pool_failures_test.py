# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's ActorPool when servers or environments fail it, and when it ends. tests/core has
streams that end and come back, and outputs that break the contract."""

import gc
import threading

import pytest
import torch

from libtorchbeast import ActorPool, BatchingQueue, DynamicBatcher, StreamError, describe
from libtorchbeast.seeds import derive_seed
from tests.support.compare import assert_same
from tests.support.envs import BreakingCatch, Catch
from tests.support.extension import GUARD_S, answer, in_thread
from tests.support.pools import T, by_rule, expected_rollouts, make_cartpole, playing, serving
from tests.support.processes import wait_for


def test_a_stream_says_that_its_server_opens_environments(address):
    door, opened = threading.Event(), []

    def create_env():
        opened.append(len(opened))
        assert len(opened) == 1 or door.wait(GUARD_S)
        return Catch()

    queue = BatchingQueue(2, 2)
    with serving(create_env, address), playing([address], by_rule, queue) as pool:
        wait_for(lambda: pool.status()[0].opening)
        assert not pool.status()[0].connected
        door.set()
        wait_for(lambda: pool.status()[0].connected)
        assert not pool.status()[0].opening


def test_bad_servers_and_a_failing_environment_are_events_while_the_others_go_on(tmp_path):
    """All streams have as many environments as the first one, with which the learner counts."""
    addresses = [f"unix:{tmp_path}/{i}" for i in range(4)]
    queue = BatchingQueue(2, 2)
    expected = expected_rollouts(Catch, 2, derive_seed(0, 0), 20)
    with (
        serving(Catch, addresses[0]),
        serving(make_cartpole, addresses[1]),
        serving(BreakingCatch, addresses[2], seed=1),
        serving(Catch, addresses[3], num_envs=3),
        playing(addresses, by_rule, queue) as pool,
    ):
        while expected or pool.status()[2].failures < 2:
            rollout = queue.dequeue()
            if expected and torch.equal(rollout["frame"], expected[0]["frame"]):
                assert_same(rollout, expected.pop(0))
        wait_for(lambda: pool.status()[1].failures and pool.status()[3].failures)
        events, (good, bad, *_) = pool.take_events(), pool.status()
        assert good.connected and good.failures == 0 and not bad.connected
        assert bad.last_error.startswith("FAILED_PRECONDITION: the server's environments")
    spec = "Test-v0: frame {}, discrete actions {}, 1 frames per step"
    first, second = spec.format("uint8[1, 10, 5]", 3), spec.format("float32[4]", 2)
    refused = "FAILED_PRECONDITION: "
    for actor, *said in (
        (1, f"{refused}the server's environments: expected {first}; seen {second}"),
        (2, "INTERNAL: Traceback", "in lose_the_ball", "the ball has rolled under the sofa (/"),
        (3, f"{refused}environments a stream: expected 2, as the first server has, seen 3"),
    ):
        own = [event for event in events if event.startswith(f"actor {actor}, ")]
        assert len(own) >= 1 + (actor == 2)
        for event in own:
            assert event.startswith(f"actor {actor}, {addresses[actor]}: {said[0]}")
            assert all(text in event for text in said)
    assert not any(event.startswith("actor 0, ") for event in events)


def test_a_server_that_is_not_there_is_an_error_of_the_connection(address):
    with pytest.raises(StreamError, match="^(UNAVAILABLE|DEADLINE_EXCEEDED): .+") as caught:
        describe(address, timeout=0.5)
    assert isinstance(caught.value, ConnectionError)


def test_a_pool_may_be_closed_twice_or_be_forgotten(address):
    queue = BatchingQueue(2, 2)
    with serving(Catch, address):
        with playing([address] * 3, by_rule, queue) as pool:
            queue.dequeue()
            pool.close()
            pool.close()
            assert not any(status.connected for status in pool.status())
            assert pool.take_events() == []
        batcher, queue = DynamicBatcher(1, 64, 20.0), BatchingQueue(2, 2)
        inference = in_thread(answer, batcher, by_rule)
        pool = ActorPool(T, queue, batcher, [address], (), describe(address))
        queue.dequeue()
        del pool
        gc.collect()
        inference.result(GUARD_S)  # its batcher was closed
