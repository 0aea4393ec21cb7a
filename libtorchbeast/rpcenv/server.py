# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""One address that serves environments: the server's side of rpcenv.proto."""

import contextlib
import errno
import logging
import math
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from libtorchbeast.environment import Environment, Row
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv.sockets import SocketLock
from libtorchbeast.rpcenv.tls import Tls, add_port
from libtorchbeast.rpcenv.wire import StackCheck, StepEncoder, decode_actions, spec_to_message
from libtorchbeast.seeds import derive_seed
from libtorchbeast.spec import Spec
from libtorchbeast.workers import SilenceTimer

logger = logging.getLogger(__name__)

SPARE_THREADS = 4  # for Describe, and to refuse a Stream: more would wait unheard
SERVICE = "rpcenv.RPCEnvServer"
SETTLE_S = 0.2  # ... for the last words of calls
CLOSE_S = 2.0  # `stop` waits no longer for environments to close
HUNG_EXIT_CODE = 3
IN_USE = "address already in use, by a server that lives"
MAX_STATUS_BYTES = 2000  # gRPC sends it as a header, up to thrice as long; those end at 8 KiB
# Larger frames, write buffers and windows were measured, and make no difference to messages of
# 27 KB or 1.8 MB on Unix sockets or loopback TCP.
OPTIONS = {
    "grpc.so_reuseport": 0,  # an address in use is an error
    "grpc.max_send_message_length": -1,  # a Step is as large as its Spec says
    # Nothing compressed: gRPC unpacks a message, a thousandfold, before it looks at its size.
    "grpc.compression_enabled_algorithms_bitset": 1,
    # A client whose machine lost power is gone within 25 seconds, as a server is for its clients.
    # Its environments are closed and its place in --max_streams is free when it comes back.
    "grpc.keepalive_time_ms": 15_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.http2.ping_timeout_ms": 10_000,  # without it the line above counts from a minute up
    "grpc.http2.max_pings_without_data": 0,
    # Clients may ping likewise, every 15 s, also without a Stream.
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    # Who connects and says nothing, or nothing sensible, is gone sooner than gRPC's two minutes.
    "grpc.server_handshake_timeout_ms": 10_000,
}


def stream_seed(seed: int, stream: int) -> int:
    """The seed of the environments of Stream number `stream` (0, 1, ...) of a server."""
    return derive_seed(seed, stream)


class Server:
    """Serves `make_environment()`'s environments on `address` from `start` to `stop`.

    One environment is made at once: it gives the Spec, and goes to the first Stream; each further
    Stream makes its own. Streams harm each other in one way only: one whose step, reset or closing
    takes longer than `step_timeout` seconds, or whose opening takes longer than `open_timeout`,
    ends the whole process with exit code 3, since no thread can be ended from outside.
    `sign_of_life` is called at least twice a second by the thread that sees to this, from `start`
    to `stop`.

    It answers grpc.health.v1 too, for itself and for rpcenv.RPCEnvServer: SERVING until `stop`.

    Raises:
        UserError: nobody can listen on the address, because another does, say.
        Exception: whatever `make_environment` raises.
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
        self._sign_of_life, self._tls = sign_of_life, tls
        self._step_limit = _Limit(
            step_timeout, f"--step_timeout {step_timeout:g} for one step or reset"
        )
        self._open_limit = _Limit(open_timeout, f"{open_timeout:g} s to open")
        self._make_environment = make_environment
        self._health = HealthServicer()
        self._health.set(SERVICE, HealthCheckResponse.SERVING)
        self._held = contextlib.ExitStack()  # what has to be given back
        environment = make_environment()
        try:
            self.spec: Spec = environment.spec
            self._encode = StepEncoder(self.spec)
            self._description = spec_to_message(self.spec).SerializeToString()
            self._server = self._listen()
        except BaseException:
            self._held.close()
            environment.close()
            raise
        self._making = threading.Lock()  # create_env need not know of threads
        self._changed = threading.Condition()  # protects the four below
        self._prepared: Environment | None = environment
        self._streams: set[_Stream] = set()
        self._num_streams_ever = 0
        self._stopping = False
        self._stopped = threading.Event()

    def start(self) -> None:
        self._server.start()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self, grace: float = 0.5) -> None:
        """Refuses new Streams, ends each at its next Action with UNAVAILABLE, by force after
        `grace` seconds, and closes their environments."""
        self._health.enter_graceful_shutdown()
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: not self._streams, grace)
        self._server.stop(SETTLE_S).wait()
        with self._changed:
            self._changed.wait_for(lambda: not self._streams, CLOSE_S)
        self._stopped.set()
        if prepared := self._take_prepared():
            prepared.close()
        self._held.close()

    def _listen(self) -> grpc.Server:
        self._hold_socket()
        _check_unused(self.address)
        numbers = self.spec.num_envs * math.prod(self.spec.actions.shape)
        receive = 1024 + 16 * numbers  # Actions only: at most 10 bytes each
        server = grpc.server(
            futures.ThreadPoolExecutor(self._max_streams + SPARE_THREADS, "stream"),
            options=[*OPTIONS.items(), ("grpc.max_receive_message_length", receive)],
        )
        methods = {
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, methods)
        server.add_generic_rpc_handlers((handler,))
        add_HealthServicer_to_server(self._health, server)
        try:
            add_port(server, self.address, self._tls)
        except RuntimeError as error:
            reason = _why_not(self.address)
            raise UserError(f"Cannot listen on {self.address}: {reason}") from error
        return server

    def _hold_socket(self) -> None:
        """So that of two servers that start at once, and find nobody there, one is refused."""
        if not self.address.startswith("unix:"):
            return
        try:
            lock = SocketLock(self.address.removeprefix("unix:"))
        except BlockingIOError as error:
            raise UserError(f"Cannot listen on {self.address}: {IN_USE}") from error
        except OSError as error:
            raise UserError(f"Cannot listen on {self.address}: {error}") from error
        self._held.callback(lock.release)

    def _describe(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return self._description

    def _stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """One Stream, in a thread of its own; a generator that gRPC drops if the client goes."""
        stream = self._admit(context)
        failure = None
        try:
            yield from self._play(stream, requests)
        except _WrongActions as error:
            failure = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except _Stopping:
            failure = grpc.StatusCode.UNAVAILABLE, f"{self.address} is stopping"
        except GeneratorExit:  # the client went
            raise
        except BaseException:  # an environment's sys.exit() too ends its own stream only
            logger.exception("%s: stream %d failed", self.address, stream.number)
            failure = grpc.StatusCode.INTERNAL, _last_lines(traceback.format_exc())
        finally:
            self._end(stream)
        if failure:
            context.abort(*failure)

    def _play(self, stream: "_Stream", requests: Iterator[bytes]) -> Iterator[bytes]:
        environment = stream.environment = self._environment(stream)
        check = StackCheck(self.spec)

        def message(call: Callable[..., Row], *args: Any) -> bytes:
            row = stream.timed(self._step_limit, call, *args)
            check(row)
            return self._encode(row, stream.seconds)

        yield message(environment.initial, stream_seed(self._seed, stream.number))
        for request in _until_client_goes(requests):
            if self._stopping:
                raise _Stopping
            yield message(environment.step, _checked_actions(request, self.spec))

    def _environment(self, stream: "_Stream") -> Environment:
        if prepared := self._take_prepared():
            return prepared
        with self._making:
            environment = stream.timed(self._open_limit, self._make_environment)
        if environment.spec != self.spec:
            environment.close()
            raise ValueError(
                f"create_env: expected what it made before, {self.spec}, seen {environment.spec}"
            )
        return environment

    def _take_prepared(self) -> Environment | None:
        with self._changed:
            prepared, self._prepared = self._prepared, None
        return prepared

    def _admit(self, context: grpc.ServicerContext) -> "_Stream":
        with self._changed:
            if self._stopping:
                context.abort(grpc.StatusCode.UNAVAILABLE, f"{self.address} is stopping")
            if len(self._streams) == self._max_streams:
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{self.address} has all the {self._max_streams} streams that it may have; "
                    "raise its --max_streams, or start more servers",
                )
            stream = _Stream(self._num_streams_ever)
            self._num_streams_ever += 1
            self._streams.add(stream)
            return stream

    def _end(self, stream: "_Stream") -> None:
        try:
            if stream.environment is not None:
                stream.timed(self._step_limit, stream.environment.close)
        except BaseException:
            logger.exception("%s: closing stream %d failed", self.address, stream.number)
        with self._changed:
            self._streams.remove(stream)
            self._changed.notify_all()

    def _watch(self) -> None:
        silence_timer = SilenceTimer()
        while True:
            self._sign_of_life()
            if self._stopped.wait(min(0.5, self._step_limit.seconds / 4)):
                return
            silence_timer.tick()
            with self._changed:
                streams = list(self._streams)
            for stream in streams:
                if limit := stream.exceeded(silence_timer):
                    logger.critical(
                        "%s: the environments of stream %d took longer than %s; this process ends",
                        self.address,
                        stream.number,
                        limit.words,
                    )
                    os._exit(HUNG_EXIT_CODE)


class _Limit(NamedTuple):
    """Of a call's time."""

    seconds: float
    words: str


class _Stream:
    def __init__(self, number: int):
        self.number = number
        self.environment: Environment | None = None
        self.seconds = 0.0  # that the last call took
        self._call: tuple[float, _Limit] | None = None  # the one in progress: since when

    def timed(self, limit: _Limit, call: Callable[..., Any], *args: Any) -> Any:
        """What the call returns; the watchdog sees how long it takes."""
        began = time.monotonic()
        self._call = began, limit
        try:
            return call(*args)
        finally:
            self._call = None
            self.seconds = time.monotonic() - began

    def exceeded(self, silence_timer: SilenceTimer) -> _Limit | None:
        """The limit of the call in progress, if that takes longer."""
        if call := self._call:
            began, limit = call
            if silence_timer.silence(began) > limit.seconds:
                return limit
        return None


class _WrongActions(ValueError):
    """The client's mistake, and not the environment's."""


class _Stopping(Exception):
    pass


def _checked_actions(request: bytes, spec: Spec) -> np.ndarray:
    try:
        return decode_actions(request, spec)
    except DecodeError as error:
        raise _WrongActions(f"Actions: expected a message Action, seen {request[:20]!r}") from error
    except ValueError as error:
        raise _WrongActions(str(error)) from error


def _until_client_goes(requests: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from requests
    except grpc.RpcError:  # cancelled, or the connection is lost
        pass


def _last_lines(text: str) -> str:
    """Whole lines, as many as a status takes."""
    text = text.strip()
    tail = text.encode()[-MAX_STATUS_BYTES:].decode(errors="ignore")
    return tail if tail == text else tail.partition("\n")[2] or tail


def _check_unused(address: str) -> None:
    """gRPC replaces the socket file even of a server that lives, and is content with one of the
    addresses that a name has."""
    if not address.startswith("unix:"):
        if _port_is_used(address):
            raise UserError(f"Cannot listen on {address}: address already in use")
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.removeprefix("unix:"))
        except (FileNotFoundError, ConnectionRefusedError):  # none, or one that nobody serves
            return
        except OSError as error:
            raise UserError(f"Cannot listen on {address}: {error}") from error
    raise UserError(f"Cannot listen on {address}: {IN_USE}")


def _why_not(address: str) -> str:
    """What the operating system says to one who listens there, because gRPC does not tell."""
    try:
        if address.startswith("unix:"):
            path = address.removeprefix("unix:")
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(path)
            os.unlink(path)
        else:
            host, _, port = address.rpartition(":")
            with socket.create_server((host.strip("[]"), int(port)), family=_family(host)):
                pass
    except OSError as error:
        return str(error)
    return "gRPC could not, and gives no reason"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _port_is_used(address: str) -> bool:
    """On any of the addresses that the host's name has."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(socket.gaierror):
        for family, *_, where in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        ):
            try:
                socket.create_server(where[:2], family=family).close()
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False
