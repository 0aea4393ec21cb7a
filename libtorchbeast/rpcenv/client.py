# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a learner asks its environment servers: what they serve, and whether they still answer."""

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import libtorchbeast
from libtorchbeast.errors import cause
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv.sockets import check_owner
from libtorchbeast.rpcenv.tls import Tls
from libtorchbeast.spec import Actions, Spec, check_action_mask, is_number, is_row_key, is_set
from libtorchbeast.workers import Reminder, SilenceTimer

if TYPE_CHECKING:
    from libtorchbeast._C import Spec as Description

logger = logging.getLogger(__name__)


class ServersLost(UserError):
    """No environment server answers any more, or none did. The text has each one's last error."""


def spec_of(description: "Description") -> Spec:
    """The Spec, from which a `Net` is made, of a description from `libtorchbeast.describe`."""
    leaves = description.observations
    for name in (k for k, (_, dtype) in leaves.items() if dtype == "bfloat16"):
        raise UserError(f"{description.name}: {name}: expected a dtype of NumPy, seen bfloat16")
    numbers = {k: leaf for k, leaf in leaves.items() if is_number(k)}
    for name, (shape, dtype) in numbers.items():
        if (tuple(shape), dtype) != ((), "float32"):
            raise UserError(f"{description.name}: {name}: expected float32[], seen {dtype}{shape}")
    observations = {k: leaf for k, leaf in leaves.items() if k not in numbers}
    for name in filter(is_row_key, observations):
        raise UserError(f"{description.name}: the observation {name!r} has the name of a row's key")
    actions = Actions(description.action_kind, tuple(description.action_sizes))
    check_action_mask(observations, actions)
    return Spec(
        name=description.name,
        num_envs=description.num_envs,
        observations=observations,
        numbers=tuple(numbers),
        actions=actions,
        frames_per_step=description.frames_per_step,
        stacks=description.stacks,
        sets={k: n for k, n in description.sets.items() if is_set(n, leaves[k][0])},
    )


def first_description(
    addresses: list[str],
    timeout: float,
    check: Callable[[], None] = lambda: None,
    tls: Tls | None = None,
) -> "Description":
    """The description of the first server that answers.

    All servers are asked in turn, again and again. Between two rounds `check` is called.

    Raises:
        ServersLost: no server answered within `timeout` seconds.
        UserError: a socket is another user's, or the extension was built without gRPC.
    """
    errors = {}
    start, reminder = time.monotonic(), Reminder()
    while True:
        for address in addresses:
            check_owner(address)
        for address in addresses:
            try:
                left = timeout - (time.monotonic() - start)
                return libtorchbeast.describe(address, min(5.0, max(0.1, left)), tls)
            except libtorchbeast.StreamError as error:
                if "built without gRPC" in str(error):
                    raise UserError(str(error)) from error
                is_missing = os.strerror(errno.ENOENT) in str(error)  # as before its server serves
                errors[address] = "there is no such socket" if is_missing else str(error)
        waited = time.monotonic() - start
        if waited > timeout:
            raise ServersLost(_message(timeout, errors))
        if reminder.due(True):
            logger.warning("Waiting for a server. %s", "; ".join(map(": ".join, errors.items())))
        check()
        time.sleep(0.1 if waited < 5.0 else 2.0)


class StreamMonitor:
    """Watches the streams of an ActorPool.

    `check` logs what happened to them since its last call. Call it once a second or more often. A
    failure that an actor meets again and again is logged at once, and after 5, 10, 20, ... seconds.

    Args:
        are_local: Whether the servers are on this machine, all alike. If every stream to them has
            failed in the same way, and none has completed a rollout, nothing will help.

    Raises:
        ServersLost: from `check`, when no stream has been connected for `timeout` seconds, without
            the time for which this process was stopped. Streams that open their environments for
            the first time count as connected. An opening that began in time is waited for, because
            its server ends itself if one environment takes too long.
        UserError: from `check`, when nothing will help, or a socket is another user's.
        RuntimeError: from `check`, when the pool has failed.
    """

    def __init__(self, pool: "libtorchbeast.ActorPool", timeout: float, are_local: bool = False):
        self._pool, self._timeout, self._are_local = pool, timeout, are_local
        self._status = pool.status()
        self._last_connected = time.monotonic()
        self._opening: set[tuple[int, int]] = set()  # (actor, failures) of what may still open
        self._reminder, self._silence_timer = Reminder(), SilenceTimer()
        self._failing: dict[str, Reminder] = {}  # the texts of failures since their actor streamed

    def check(self) -> None:
        self._silence_timer.tick()
        for event in self._pool.take_events():
            is_new = event not in self._failing
            if self._failing.setdefault(event, Reminder()).due(True) or is_new:
                logger.warning("Stream failed: %s", event)
        before, self._status = self._status, self._pool.status()
        for stream in self._status:  # a server that is gone may be replaced by a stranger's
            check_owner(stream.address)
        for actor, (was, now) in enumerate(zip(before, self._status, strict=True)):
            is_new = not was.connected or now.failures > was.failures
            if now.connected and now.failures and is_new:
                logger.info("Streaming again: actor %d, %s", actor, now.address)
                for event in [text for text in self._failing if text.startswith(f"actor {actor},")]:
                    del self._failing[event]
        # An actor that has completed a rollout has waited for the queue, if only for a moment.
        has_delivered = self._pool.seconds()[self._pool.ACTIVITIES.index("actor_waiting")] > 0
        is_connected = any(stream.connected for stream in self._status)
        is_opening = any(stream.opening for stream in self._status) and not is_connected
        if seconds := self._reminder.due(not has_delivered or is_opening):
            logger.warning(
                f"After {seconds:.0f} s no stream has completed a rollout. If the simulator is "
                f"slow, fewer environments start sooner (--envs_per_server)."
            )
        if self._are_local and not has_delivered:
            self._end_if_hopeless()
        self._end_if_lost()

    def _end_if_lost(self) -> None:
        if any(stream.connected or not stream.failures for stream in self._status):
            self._last_connected = time.monotonic()
        opening = {(i, s.failures) for i, s in enumerate(self._status) if s.opening}
        if self._silence_timer.silence(self._last_connected) <= self._timeout:
            self._opening = opening
            return
        self._opening &= opening  # others began too late
        if not self._opening:
            errors = {s.address: s.last_error or "no answer" for s in self._status}
            raise ServersLost(_message(self._timeout, errors))

    def _end_if_hopeless(self) -> None:
        num_failures = sum(stream.failures for stream in self._status)
        if num_failures < 2 or not all(stream.failures for stream in self._status):
            return
        first = self._status[0].last_error
        causes = {cause(stream.last_error) for stream in self._status}
        is_raised = first.startswith("INTERNAL")  # by an environment; other errors may go away
        if is_raised and len(causes) == 1:
            said = "no stream has completed a rollout, and all failures are alike"
            raise UserError(f"{said}: {cause(first)}")

    def row(self) -> dict[str, float]:
        """Columns of the log, as of the last `check`."""
        return {
            "streams": sum(stream.connected for stream in self._status),
            "stream_failures": sum(stream.failures for stream in self._status),
        }


def _message(timeout: float, errors: dict[str, str]) -> str:
    lines = "".join(f"\n  {address}: {error}" for address, error in sorted(errors.items()))
    return f"no environment server for {timeout:g} s (--server_timeout); the last errors:{lines}"
