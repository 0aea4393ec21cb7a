# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A Stream without gRPC, and the environments that streams are made of."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from libtorchbeast.environment import Environment
from libtorchbeast.rpcenv import rpcenv_pb2
from libtorchbeast.rpcenv.stream import EnvironmentMaker, Stream
from libtorchbeast.rpcenv.watchdog import CallTimer, TimeLimit
from libtorchbeast.rpcenv.wire import StepEncoder
from libtorchbeast.workers import SilenceTimer
from tests.support.client import assert_rows_equal, decode
from tests.support.envs import Catch
from tests.support.served_envs import Watched

N, SEED, STEPS = 2, 7, 25  # Catch's episodes have 10 rows
LIMIT = TimeLimit(60.0, "a minute")


def make_stream(maker, step_limit=LIMIT, open_limit=LIMIT):
    return Stream(0, SEED, maker, StepEncoder(maker.spec), step_limit, open_limit)


def catch_maker(create_env=Catch):
    return EnvironmentMaker(lambda: Environment(create_env, N, "Catch"))


def action(*actions):
    return rpcenv_pb2.Action(actions=actions).SerializeToString()


# ------------------------------------------------------------------------------------ environments
def test_the_first_stream_takes_the_prepared_environment_and_others_their_own():
    """The spec comes from one environment. Only a Stream opens the others. A prepared one that
    nobody took is closed once."""
    count = []
    maker = catch_maker(lambda: Watched(count))
    assert len(count) == 1
    timer = CallTimer(0)
    first = maker.take(timer, LIMIT)
    assert len(count) == 1 and first.spec is maker.spec
    first.initial(SEED)
    assert len(count) == N
    second = maker.take(timer, LIMIT)
    assert len(count) == N + 1 and second is not first and second.spec == maker.spec
    maker.close()  # both belong to those who took them
    assert len(count) == N + 1
    maker = catch_maker(lambda: Watched(count))
    maker.close()
    maker.close()  # Watched would raise
    assert len(count) == N + 1


def test_an_environment_of_another_spec_is_refused_and_closed():
    count, sizes = [], iter([N, N + 1])
    maker = EnvironmentMaker(lambda: Environment(lambda: Watched(count), next(sizes), "Catch"))
    prepared = maker.take(CallTimer(0), LIMIT)
    with pytest.raises(ValueError, match=rf"expected what it made before.*num_envs={N},.*seen"):
        maker.take(CallTimer(0), LIMIT)
    assert len(count) == 1
    prepared.close()


def test_environments_are_made_one_at_a_time():
    """`create_env` may be unsafe for threads: two that were inside at once would meet here."""
    meeting, met = threading.Barrier(2), []

    def create_env():
        try:
            met.append(meeting.wait(timeout=0.2))
        except threading.BrokenBarrierError:
            meeting.reset()
        return Catch()

    maker = catch_maker(create_env)
    streams = [make_stream(maker) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda stream: next(stream.play(iter([]))), streams))
    assert len({stream._environment for stream in streams}) == 3 and met == []


# ------------------------------------------------------------------------------------------ streams
def test_a_stream_plays_what_the_adapter_plays():
    maker, expected = catch_maker(), Environment(Catch, N, "Catch")
    actions = np.random.default_rng(0).integers(3, size=(STEPS, N))
    stream = make_stream(maker)
    steps = stream.play(iter([action(*row) for row in actions]))
    assert_rows_equal(decode(next(steps), maker.spec), expected.initial(SEED))
    for row in actions:
        data = next(steps)
        assert_rows_equal(decode(data, maker.spec), expected.step(row))
        seconds = rpcenv_pb2.Step.FromString(data).environment_seconds
        assert seconds == np.float32(stream.timer.seconds) > 0
    assert next(steps, None) is None
    stream.close()


def test_every_call_into_an_environment_has_its_limit():
    """Each environment notes which limit the watchdog would find exceeded, were it 0 seconds."""
    noted, silence = [], SilenceTimer()

    def noting(name):
        def call(self, *args, **options):
            limit = stream and stream.timer.exceeded(silence)
            noted.append((name, limit and limit.words))
            return getattr(Catch, name)(self, *args, **options)

        return call

    names = ("__init__", "reset", "step", "close")
    Noting = type("Noting", (Catch,), {name: noting(name) for name in names})
    stream = None
    maker = EnvironmentMaker(lambda: Environment(Noting, 1, "Catch"))
    maker.close()  # so that the stream makes its own
    stream = make_stream(maker, TimeLimit(-1e9, "a step"), TimeLimit(-1e9, "opening"))
    list(stream.play(iter([action(1)])))
    stream.close()
    limits = ("opening", "opening", "a step", "a step")
    assert noted == [("__init__", None), ("close", None), *zip(names, limits, strict=True)]
    assert stream.timer.exceeded(silence) is None  # no call is running
