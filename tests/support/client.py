# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A plain Python client of environment servers, for the tests."""

import contextlib
import queue
import socket

import grpc
import numpy as np
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from libtorchbeast.rpcenv import rpcenv_pb2
from libtorchbeast.rpcenv.wire import DTYPES
from libtorchbeast.spec import Actions, Spec

GUARD_S = 60.0  # only ends calls that hang; no test depends on its value
SERVICE = "/rpcenv.RPCEnvServer"


def message_to_spec(message):
    names = {number: name for name, number in DTYPES.items()}
    return Spec(
        name=message.name,
        num_envs=message.num_envs,
        observations={x.name: (tuple(x.shape), names[x.dtype]) for x in message.observations},
        actions=Actions(message.action_kind, tuple(message.action_sizes)),
        frames_per_step=message.frames_per_step,
        stacks={x.name: x.stack for x in message.observations if x.stack > 1},
    )


class Client:
    """A separate connection to one server. Used as a context manager."""

    def __init__(self, address):
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(address, options)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._channel.close()

    def describe(self):
        """Returns the server's description. Waits until the server answers."""
        call = self._channel.unary_unary(f"{SERVICE}/Describe")
        return rpcenv_pb2.Spec.FromString(call(b"", timeout=GUARD_S, wait_for_ready=True))

    def health(self, service=""):
        call = HealthStub(self._channel).Check
        return call(HealthCheckRequest(service=service), timeout=GUARD_S).status

    def watch_health(self):
        for answer in HealthStub(self._channel).Watch(HealthCheckRequest(), timeout=GUARD_S):
            yield answer.status

    def stream(self, **options):
        return Stream(self._channel, message_to_spec(self.describe()), **options)

    def play(self, steps=0):
        """Returns a stream whose first row and so many steps, with actions of one, were read."""
        stream = self.stream()
        stream.read()
        for _ in range(steps):
            stream.step([1] * stream.spec.num_envs)
        return stream


class Stream:
    """A stream. Call `read` for the first row, then `step`. Both raise grpc.RpcError if the stream
    has failed."""

    def __init__(self, channel, spec, **options):
        self.spec = spec
        self._requests = queue.SimpleQueue()
        call = channel.stream_stream(f"{SERVICE}/Stream")
        self._call = call(iter(self._requests.get, None), timeout=GUARD_S, **options)
        self._row, self.environment_seconds = None, 0.0

    def step(self, actions):
        self.send(rpcenv_pb2.Action(actions=actions).SerializeToString())
        return self.read()

    def send(self, data):
        self._requests.put(data)

    def read(self):
        data = next(self._call)
        self._row = stacked(decode(data, self.spec), self.spec, self._row)
        self.environment_seconds = rpcenv_pb2.Step.FromString(data).environment_seconds
        return self._row

    def cancel(self):
        self._call.cancel()
        self._requests.put(None)

    def end(self):
        """Ends the stream as a client should, and waits for the server's status."""
        self._requests.put(None)
        assert list(self._call) == []
        return self._call.code()

    def failure(self):
        """Returns the code and the text with which the server ends the stream."""
        try:
            self.read()
        except grpc.RpcError as error:
            self._requests.put(None)
            return error.code(), error.details()
        raise AssertionError("expected a failure, seen a Step")


def decode(data, spec):
    """Reads a serialized Step with the generated class and returns the row. Of a stack of frames it
    has only the newest."""
    step = rpcenv_pb2.Step.FromString(data)
    row, offset = {}, 0
    for name, (shape, dtype) in spec.observations.items():
        shape = shape[1:] if name in spec.stacks else shape
        count = spec.num_envs * int(np.prod(shape))
        flat = np.frombuffer(step.observations, dtype, count, offset)
        row[name] = flat.reshape(spec.num_envs, *shape)
        offset += flat.nbytes
    assert offset == len(step.observations)
    for name in ("done", "terminated", "truncated", "episode_over"):
        row[name] = np.array(getattr(step, name), bool)
    for name in ("reward", "episode_return"):
        row[name] = np.array(getattr(step, name), np.float32)
    row["episode_step"] = np.array(step.episode_step, np.int32)
    return row


def stacked(row, spec, before):
    """Returns the row with complete stacks. `before` is the row before it, or None."""
    for name, k in spec.stacks.items():
        newest = row[name][:, None]
        older = before[name][:, 1:] if before else np.repeat(0 * newest, k - 1, axis=1)
        row[name] = np.concatenate([older, newest], axis=1)
        row[name][row["episode_step"] == 0, :-1] = 0
    return row


def assert_rows_equal(seen, expected):
    """Asserts that two rows are equal bit for bit, except `last_action`, which no server sends."""
    assert seen.keys() == expected.keys() - {"last_action"}
    for name, array in seen.items():
        assert array.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return probe.getsockname()[1]
