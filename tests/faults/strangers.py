# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about broken and hostile servers and clients, beside a stream that must go on."""

import collections
import contextlib
import os
import re
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete

from libtorchbeast import ActorPool, BatchingQueue, DynamicBatcher, describe
from libtorchbeast.rpcenv.server import Server
from tests.faults.harness import Figure, promise
from tests.support import corpus, pools
from tests.support.client import SERVICE, Client, free_port
from tests.support.extension import answer, in_thread
from tests.support.processes import wait_for

# gRPC answers a compressed message with UNIMPLEMENTED.
REFUSED = re.compile("(INVALID_ARGUMENT|RESOURCE_EXHAUSTED|UNIMPLEMENTED): ")


class Strange(gymnasium.Env):
    """An environment with the corpus's Spec. Its leaf x/y is 7, as in no message of the corpus."""

    metadata = {"frames_per_step": 4}
    frame, flag = Box(0, 255, (2, 3), np.uint8), Box(0, 1, (), bool)
    x = Dict({"y": Box(-9, 9, (2,), np.float32)})
    observation_space = Dict(collections.OrderedDict(frame=frame, flag=flag, x=x))
    action_space = Discrete(3)
    shown = {"frame": np.zeros((2, 3), np.uint8), "flag": np.array(True)}
    shown["x"] = {"y": np.full(2, 7, np.float32)}

    def reset(self, *, seed=None, options=None):
        return self.shown, {}

    def step(self, action):
        return self.shown, 0.0, False, False, {}


def serving(address: str) -> contextlib.AbstractContextManager[Server]:
    """Runs an honest server."""
    return pools.serving(Strange, address, corpus.N, name="Strange-v0", max_streams=16)


class Stranger:
    """A hostile server. It answers Describe with the first message, `times` times, and each Stream
    with the others, one for each Action. Then it keeps the stream open, unless `end` ends it.
    `reached` is set when the learner opens a Stream, and `dropped` when the learner leaves it."""

    def __init__(self, address, messages, times=1, end=None, compression=None):
        self._messages, self._times, self._end = messages, times, end
        self.reached, self.dropped = threading.Event(), threading.Event()
        options = [("grpc.max_send_message_length", -1)]
        pool = grpc.server(futures.ThreadPoolExecutor(3), options=options, compression=compression)
        handlers = {
            "Describe": grpc.stream_stream_rpc_method_handler(self._describe),
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        service = SERVICE.strip("/")
        pool.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        pool.add_insecure_port(address)
        pool.start()
        self.stop = lambda: pool.stop(0).wait()

    def _describe(self, requests, context):
        for _ in range(self._times):
            yield self._messages[0]

    def _stream(self, requests, context):
        self.reached.set()
        if not context.add_callback(self.dropped.set):  # the learner has left already
            self.dropped.set()
        for message in self._messages[1:]:
            yield message
            next(requests, None)
        if self._end:
            self._end(context)
        with contextlib.suppress(grpc.RpcError):
            collections.deque(requests, maxlen=0)


def strangers() -> dict[str, tuple[list[bytes], dict]]:
    """The hostile servers: name -> messages and options of a Stranger. They use the corpus and
    misuse gRPC."""
    found = corpus.conversations()
    spec, *steps = found["good-plain"]
    chosen = {
        name: (messages, {})
        for name, messages in found.items()
        if name.startswith("spec-") or (name.startswith("step-") and messages[0] == spec)
    }
    packed = {"compression": grpc.Compression.Gzip}
    return chosen | {
        "grpc-spec-huge": ([bytes(1 << 21)], {}),
        "grpc-spec-twice": ([spec, *steps], {"times": 2}),
        "grpc-spec-without-end": ([spec, *steps], {"times": 1_000_000}),
        "grpc-spec-never": ([spec, *steps], {"times": 0}),
        "grpc-spec-packed": ([spec], packed),
        "grpc-step-huge": ([spec, bytes(1 << 21)], {}),
        "grpc-text-of-no-letters": ([spec], {"end": _speak}),
    }


def _speak(context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, b"\xff\x1b[2J\nall is well")


@contextlib.contextmanager
def learning(good: str, addresses: list[str]) -> Iterator[tuple[ActorPool, BatchingQueue]]:
    """Yields a pool for all servers, with a network that always takes action 0, and its queue."""
    queue, batcher = BatchingQueue(corpus.N, 4 * corpus.N), DynamicBatcher(1, 64, 5.0)
    net = lambda rows, state: ({"action": torch.zeros_like(rows["reward"]).long()}, ())
    spec = describe(good, timeout=60.0)
    pool = ActorPool(2, queue, batcher, [good, *addresses], (), spec, step_timeout=60.0)
    inference = in_thread(answer, batcher, net)
    try:
        yield pool, queue
    finally:
        pool.close()
        inference.result()


@promise("hostile servers are refused and dropped", "a corpus of messages, and gRPC misused")
def refuses_servers(rollouts: int = 2000) -> list[Figure]:
    chosen, foreign = strangers(), 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        good = f"unix:{folder}/good"
        stack.enter_context(serving(good))
        by_address = {}
        for i, (name, (messages, options)) in enumerate(chosen.items()):
            address = f"unix:{folder}/{i}"
            by_address[address] = name, Stranger(address, messages, **options)
            stack.callback(by_address[address][1].stop)
        pool, queue = stack.enter_context(learning(good, list(by_address)))
        taken, errors = 0, {}
        while taken < rollouts or len(errors) < len(chosen):
            rollout = queue.dequeue()
            taken += 1
            foreign += int((rollout["x/y"] != 7).any())
            for event in pool.take_events():
                who, _, error = event.partition(": ")
                address = who.partition(", ")[2]  # "actor 3, unix:/..."
                errors.setdefault(by_address.get(address, ("good", 0))[0], error)
        wrong = {name: error for name, error in errors.items() if not REFUSED.match(error)}
        kept = [
            name
            for name, stranger in by_address.values()
            if stranger.reached.is_set() == name.startswith(("spec-", "grpc-spec-"))
            or (stranger.reached.is_set() and not stranger.dropped.wait(30.0))
        ]
        status, *_ = pool.status()
    print(f"not refused: {wrong}\nnot dropped: {kept}")
    return [
        Figure("hostile servers", len(chosen), at_least=30),
        Figure("refused with another code", len(wrong), at_most=0),
        Figure("not dropped", len(kept), at_most=0),
        Figure("rollouts of strangers", foreign, at_most=0),
        Figure("rollouts meanwhile of the good one", taken, at_least=rollouts),
        Figure("failures of the good one", status.failures, at_most=0),
    ]


@promise("hostile clients are refused and dropped", "a corpus of actions, and gRPC misused")
def refuses_clients(resets: int = 200) -> list[Figure]:
    """A stream beside theirs makes a step after each of them, which raises if it has failed."""
    answers, address = {}, f"127.0.0.1:{free_port()}"
    with serving(address) as server, Client(address) as own, Client(address) as other:
        good = own.stream()
        good.read()
        for name, message in {**corpus.actions(), "huge": bytes(1 << 20)}.items():
            bad = other.stream()
            bad.read()
            bad.send(message)
            answers[name], _ = bad.failure()
            good.step([0, 1])
        early = other.stream()  # half-closed before it has read anything
        early._requests.put(None)
        early.read()
        assert list(early._call) == []
        packed, _ = other.stream(compression=grpc.Compression.Gzip).failure()
        for i in range(resets):
            _reset(address, i)
            good.step([0, 1])
        wait_for(lambda: len(server._streams) == 1)
    refused = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
    wrong = {name: code for name, code in answers.items() if code not in refused}
    if packed not in refused | {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL}:
        wrong["packed"] = packed
    print(f"not refused: {wrong}")
    return [
        Figure("hostile clients", len(answers) + 1 + resets, at_least=30),
        Figure("refused with another code", len(wrong), at_most=0),
    ]


def _reset(address: str, i: int) -> None:
    """Opens a connection, sends some bytes of HTTP/2 or none, and resets it with RST."""
    host, _, port = address.partition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
    said = [b"", preface[: i % 24], preface, preface + b"\xff" * 100, os.urandom(200)][i % 5]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(said)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
