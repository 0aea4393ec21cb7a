# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's ActorPool when servers, environments or inference fail it, and when it ends."""

import gc
import re
import threading

import pytest
import torch

from libtorchbeast import (
    ActorPool,
    BatchingQueue,
    ClosedBatchingQueue,
    DynamicBatcher,
    StreamError,
    describe,
)
from libtorchbeast.seeds import derive_seed
from tests.support.actors import Counting
from tests.support.compare import assert_same
from tests.support.envs import BreakingCatch, Catch
from tests.support.extension import GUARD_S, answer, in_thread
from tests.support.pools import T, by_rule, expected_rollouts, make_cartpole, playing, serving
from tests.support.processes import wait_for

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_server_that_ends_and_comes_back(address):
    """The queue gets whole rollouts of the old stream and then of the new one, and none of both."""
    queue = BatchingQueue(2, 2)
    expected = [expected_rollouts(Counting, 2, derive_seed(seed, 0), 100) for seed in (1, 2)]
    with serving(Counting, address, seed=1) as first, playing([address], by_rule, queue) as pool:
        seen = [queue.dequeue() for _ in range(3)]
        first.stop()
        with serving(Counting, address, seed=2):
            while not torch.equal(seen[-1]["frame"], expected[1][3]["frame"]):
                seen.append(queue.dequeue())
            of_first = len(seen) - 4
            assert_same(seen[:of_first], expected[0][:of_first])
            assert_same(seen[of_first:], expected[1][:4])
            assert seen[of_first]["done"][0].all()
            (status,) = pool.status()
            assert status.connected and status.failures >= 1
            events = pool.take_events()
            assert len(events) == status.failures and events[-1].endswith(status.last_error)
            for event in events:
                assert re.match(rf"actor 0, {address}: (UNAVAILABLE|CANCELLED): \w+", event)
            assert pool.take_events() == []
        wait_for(lambda: (queue.dequeue() if queue.size() else None, not connected(pool))[1])


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


def connected(pool):
    return sum(status.connected for status in pool.status())


def test_a_bad_server_and_a_failing_environment_are_events_while_the_others_go_on(tmp_path):
    addresses = [f"unix:{tmp_path}/{i}" for i in range(3)]
    queue, events = BatchingQueue(2, 2), []
    expected = expected_rollouts(Catch, 2, derive_seed(0, 0), 20)
    with (
        serving(Catch, addresses[0]),
        serving(make_cartpole, addresses[1]),
        serving(BreakingCatch, addresses[2], seed=1),
        playing(addresses, by_rule, queue) as pool,
    ):
        while expected or pool.status()[2].failures < 2:
            rollout = queue.dequeue()
            if expected and torch.equal(rollout["frame"], expected[0]["frame"]):
                assert_same(rollout, expected.pop(0))
        wait_for(lambda: events.extend(pool.take_events()) or pool.status()[1].failures)
        good, bad, _ = pool.status()
        assert good.connected and good.failures == 0 and not bad.connected
    assert [event for event in events if event.startswith(f"actor 1, {addresses[1]}: ")][0] == (
        f"actor 1, {addresses[1]}: FAILED_PRECONDITION: the server's environments: expected "
        "Test-v0: frame uint8[1, 10, 5], discrete actions 3, 1 frames per step; seen Test-v0: "
        "frame float32[4], discrete actions 2, 1 frames per step"
    )
    failed = [event for event in events if not event.startswith("actor 1, ")]
    for event in failed:
        assert event.startswith(f"actor 2, {addresses[2]}: INTERNAL: Traceback")
        assert "in lose_the_ball" in event
        assert "RuntimeError: the ball has rolled under the sofa (/" in event
    assert len(failed) >= 2


def test_a_server_with_another_number_of_environments_is_refused(tmp_path):
    """The learner counts and waits with that of the first one."""
    addresses = [f"unix:{tmp_path}/{i}" for i in range(2)]
    servers = serving(Catch, addresses[0]), serving(Catch, addresses[1], num_envs=3)
    with servers[0], servers[1], playing(addresses, by_rule, BatchingQueue(2, 2)) as pool:
        wait_for(lambda: pool.status()[1].failures)
        said = "FAILED_PRECONDITION: environments a stream: expected 2, as the first server has, "
        assert any(f"{said}seen 3" in event for event in pool.take_events())


def test_a_server_that_is_not_there_is_an_error_of_the_connection(address):
    with pytest.raises(StreamError, match="^(UNAVAILABLE|DEADLINE_EXCEEDED): .+") as caught:
        describe(address, timeout=0.5)
    assert isinstance(caught.value, ConnectionError)


def test_outputs_that_break_the_contract_end_the_pool(address):
    """A new stream would not help. Nothing may wait for ever. tests/core has all kinds."""
    queue = BatchingQueue(2, 2)

    def net(inputs, core_state):
        outputs, _ = by_rule(inputs)
        del outputs["action"]
        return outputs, ()

    with serving(Catch, address), playing([address], net, queue) as pool:
        with pytest.raises(ClosedBatchingQueue):
            queue.dequeue()
        with pytest.raises(RuntimeError, match=r"expected action int64\[1, 2\], seen none"):
            pool.take_events()


def test_a_pool_may_be_closed_twice_or_be_forgotten(address):
    spec_queue = BatchingQueue(2, 2)
    with serving(Catch, address):
        with playing([address] * 3, by_rule, spec_queue) as pool:
            spec_queue.dequeue()
            pool.close()
            pool.close()
            assert connected(pool) == 0 and pool.take_events() == []
        batcher, queue = DynamicBatcher(1, 64, 20.0), BatchingQueue(2, 2)
        inference = in_thread(answer, batcher, by_rule)
        pool = ActorPool(T, queue, batcher, [address], (), describe(address))
        queue.dequeue()
        del pool
        gc.collect()
        inference.result(GUARD_S)  # its batcher was closed
