# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""One Stream of an environment server, without gRPC: serialized Actions in, Steps out."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from libtorchbeast.environment import Environment, Row
from libtorchbeast.rpcenv.watchdog import CallTimer, TimeLimit
from libtorchbeast.rpcenv.wire import StackCheck, StepEncoder, decode_actions
from libtorchbeast.spec import Spec


class Limits(NamedTuple):
    """How long a Stream's environments may take."""

    step: TimeLimit  # for a step, a reset or closing
    open: TimeLimit


class EnvironmentMaker:
    """Makes the environments of all Streams of a server, all with the same Spec.

    One environment is made at once: it gives `spec`, and the first Stream takes it. Any thread may
    take environments, but they are made one at a time, so that `create_env` need not be safe for
    threads.
    """

    def __init__(self, make_environment: Callable[[], Environment]):
        self._make_environment = make_environment
        self._prepared: Environment | None = make_environment()
        self._taking = threading.Lock()  # protects _prepared
        self._making = threading.Lock()  # held while an environment is made
        self.spec: Spec = self._prepared.spec

    def take(self, timer: CallTimer, limit: TimeLimit) -> Environment:
        """Returns the prepared environment, or makes one, for which `timer` allows `limit`.

        Raises:
            ValueError: its Spec differs from that of the first environment.
        """
        if prepared := self._take_prepared():
            return prepared
        with self._making:
            environment = timer.run(limit, self._make_environment)
        if environment.spec != self.spec:
            environment.close()
            raise ValueError(
                f"create_env: expected what it made before, {self.spec}, seen {environment.spec}"
            )
        return environment

    def close(self) -> None:
        """Closes the prepared environment, if no Stream took it. It may be called again."""
        if prepared := self._take_prepared():
            prepared.close()

    def _take_prepared(self) -> Environment | None:
        with self._taking:
            prepared, self._prepared = self._prepared, None
        return prepared


class Stream:
    """Plays one Stream, in one thread, and has environments of its own from `play` to `close`."""

    def __init__(
        self,
        number: int,
        seed: int,
        environments: EnvironmentMaker,
        encode: StepEncoder,
        limits: Limits,
    ):
        self.number, self._seed = number, seed
        self.timer = CallTimer(number)
        self._environments, self._encode, self._limits = environments, encode, limits
        self._check_stacks = StackCheck(environments.spec)
        self._environment: Environment | None = None

    def play(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        """Yields a Step for the reset, and one for each of the Actions in `requests`.

        Raises:
            WrongActions: a request does not fit the Spec.
            Exception: whatever making or stepping the environments raises.
        """
        env = self._environment = self._environments.take(self.timer, self._limits.open)
        yield self._step(env.initial, self._seed)
        for request in requests:
            yield self._step(env.step, decode_actions(request, env.spec))

    def close(self) -> None:
        """Closes the environments. Raises whatever that raises."""
        if self._environment is not None:
            self.timer.run(self._limits.step, self._environment.close)

    def _step(self, call: Callable[..., Row], *args: Any) -> bytes:
        row = self.timer.run(self._limits.step, call, *args)
        self._check_stacks(row)
        return self._encode(row, self.timer.seconds)
