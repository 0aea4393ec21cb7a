# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""An environment server: one address, and the gRPC methods of rpcenv.proto that it answers.

stream.py plays a Stream, watchdog.py ends a server that hangs, and sockets.py checks the address.
"""

import contextlib
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from libtorchbeast.environment import Environment
from libtorchbeast.errors import report
from libtorchbeast.rpcenv.sockets import claimed
from libtorchbeast.rpcenv.stream import EnvironmentMaker, Stream
from libtorchbeast.rpcenv.tls import Tls, add_port
from libtorchbeast.rpcenv.watchdog import CallTimer, TimeLimit, Watchdog
from libtorchbeast.rpcenv.wire import StepEncoder, WrongActions, spec_to_message
from libtorchbeast.seeds import derive_seed

logger = logging.getLogger(__name__)

SPARE_THREADS = 4  # for Describe, and to refuse a Stream, which else would wait for a thread
SERVICE = "rpcenv.RPCEnvServer"
CALLS_END_S = 0.2  # `stop` gives calls this time to tell their clients how they ended
ENVIRONMENTS_CLOSE_S = 2.0  # ... and environments this time to close
MAX_STATUS_BYTES = 2000  # gRPC's header for it is up to 3 times as long, and has 8 KiB at most
# Larger frames, write buffers and windows are not set, because they made no measurable difference:
# neither for messages of 27 KB nor of 1.8 MB, neither on Unix sockets nor on loopback TCP.
OPTIONS = {
    "grpc.so_reuseport": 0,  # an address in use is an error
    "grpc.max_send_message_length": -1,  # a Step is as large as its Spec says
    # No compression: gRPC would unpack a message, which may grow 1000-fold, before it checks its
    # size.
    "grpc.compression_enabled_algorithms_bitset": 1,
    # A client whose machine lost power is noticed within 25 seconds (clients notice such a server
    # as fast): its environments are closed, and its place in --max_streams is free again.
    "grpc.keepalive_time_ms": 15_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.ping_timeout_ms": 10_000,  # without it the timeout above is at least a minute
    "grpc.http2.max_pings_without_data": 0,
    # Clients may ping as often, every 15 seconds, even while they have no Stream.
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    # A peer that connects and then sends nothing, or no gRPC, is dropped after this time. gRPC's
    # default is two minutes.
    "grpc.server_handshake_timeout_ms": 10_000,
}


class Server:
    """Serves `make_environment()`'s environments on `address` from `start` to `stop`.

    `make_environment` is called at once: its first environment gives the Spec, and the first Stream
    takes it and opens the others; each further Stream makes its own. Stream n (0, 1, ...) has the
    seed `derive_seed(seed, n)`. A Stream can harm the others in one way only: if one of its steps
    or its closing takes longer than `step_timeout` seconds, or the opening and first reset of one
    of its environments longer than `open_timeout`, the whole process ends with exit code 3 (see
    watchdog.py). The watchdog's thread calls `sign_of_life` at least twice a second from `start` to
    `stop`.

    The server answers grpc.health.v1 too, for itself and for rpcenv.RPCEnvServer: SERVING until
    `stop`. Raises UserError if nobody can listen on the address, for instance because another
    server does, and whatever `make_environment` raises.
    """

    def __init__(
        self,
        make_environment: Callable[[], Environment],
        address: str,
        *,
        max_streams: int = 16,
        seed: int = 0,
        step_timeout: float = 60.0,
        open_timeout: float = 300.0,
        tls: Tls | None = None,
        sign_of_life: Callable[[], None] = lambda: None,
    ):
        self.address, self._max_streams, self._seed = address, max_streams, seed
        self._limits = (
            TimeLimit(step_timeout, f"--step_timeout {step_timeout:g} for one step"),
            TimeLimit(open_timeout, f"--open_timeout {open_timeout:g} to open"),
        )
        self._watchdog = Watchdog(address, self._timers, sign_of_life, step_timeout / 4)
        self._health = HealthServicer()
        self._health.set(SERVICE, HealthCheckResponse.SERVING)
        self._failed_at: set[str] = set()  # the tracebacks of streams, without the errors' texts
        self._changed = threading.Condition()  # protects the three below
        self._streams: set[Stream] = set()
        self._numbers = itertools.count()  # of the streams to come
        self._stopping = False
        with contextlib.ExitStack() as cleanup:
            self._environments = EnvironmentMaker(make_environment)
            cleanup.callback(self._environments.close)
            self.spec = self._environments.spec
            self._encode = StepEncoder(self.spec)
            cleanup.enter_context(claimed(address))
            self._server = self._make_grpc_server()
            add_port(self._server, address, tls)
            self._cleanup = cleanup.pop_all()

    def start(self) -> None:
        self._server.start()
        self._watchdog.start()

    def stop(self, grace: float = 0.5) -> None:
        """Refuses new Streams, and ends each running one at its next Action with UNAVAILABLE, or by
        force after `grace` seconds. Closes all environments. It may be called again."""
        self._health.enter_graceful_shutdown()
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: not self._streams, grace)
        self._server.stop(CALLS_END_S).wait()
        with self._changed:
            self._changed.wait_for(lambda: not self._streams, ENVIRONMENTS_CLOSE_S)
        self._watchdog.stop()
        self._cleanup.close()

    def _make_grpc_server(self) -> grpc.Server:
        # The only large message to receive is an Action: at most 10 bytes for each of its numbers.
        max_receive = 1024 + 16 * self.spec.num_envs * math.prod(self.spec.actions.shape)
        server = grpc.server(
            futures.ThreadPoolExecutor(self._max_streams + SPARE_THREADS, "stream"),
            options=[*OPTIONS.items(), ("grpc.max_receive_message_length", max_receive)],
        )
        description = spec_to_message(self.spec).SerializeToString()
        methods = {
            "Describe": grpc.unary_unary_rpc_method_handler(lambda request, context: description),
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, methods)
        server.add_generic_rpc_handlers((handler,))
        add_HealthServicer_to_server(self._health, server)
        return server

    def _stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answers one Stream, in a thread of its own. gRPC drops this generator if the client goes
        away."""
        stream = self._admit(context)
        failure = None
        try:
            yield from stream.play(self._until_stopping(requests), context.is_active)
            if self._stopping:
                failure = grpc.StatusCode.UNAVAILABLE, f"{self.address} is stopping"
        except WrongActions as error:
            failure = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except GeneratorExit:  # the client went away
            raise
        except BaseException as error:  # even an environment's sys.exit() ends its own Stream only
            told = report(error)
            where, _, last = told.rpartition("\n")
            is_new = where not in self._failed_at  # a traceback is logged once
            self._failed_at.add(where)
            who = f"{self.address}: stream {stream.number}"
            logger.error("%s failed: %s", who, last, exc_info=error if is_new else None)
            failure = grpc.StatusCode.INTERNAL, _last_lines(told)
        finally:
            self._end(stream)
        if failure:
            context.abort(*failure)

    def _admit(self, context: grpc.ServicerContext) -> Stream:
        with self._changed:
            if self._stopping:
                context.abort(grpc.StatusCode.UNAVAILABLE, f"{self.address} is stopping")
            if len(self._streams) == self._max_streams:
                full = f"{self.address} has all the {self._max_streams} streams that it may have"
                hint = "raise its --max_streams, or start more servers"
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{full}; {hint}")
            number = next(self._numbers)
            seed = derive_seed(self._seed, number)
            stream = Stream(number, seed, self._environments, self._encode, *self._limits)
            self._streams.add(stream)
            return stream

    def _until_stopping(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        """The client's requests until it goes away, or until the first after `stop`."""
        with contextlib.suppress(grpc.RpcError):  # the client cancelled, or the connection is lost
            yield from itertools.takewhile(lambda request: not self._stopping, requests)

    def _end(self, stream: Stream) -> None:
        try:
            stream.close()
        except BaseException:
            logger.exception("%s: closing stream %d failed", self.address, stream.number)
        with self._changed:
            self._streams.remove(stream)
            self._changed.notify_all()

    def _timers(self) -> list[CallTimer]:
        with self._changed:
            return [stream.timer for stream in self._streams]


def _last_lines(text: str) -> str:
    """The last whole lines of `text`, as many as fit into a status."""
    text = text.strip()
    tail = text.encode()[-MAX_STATUS_BYTES:].decode(errors="ignore")
    return tail if tail == text else tail.partition("\n")[2] or tail
