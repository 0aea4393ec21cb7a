# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""One Stream of an environment server, without gRPC: serialized Actions in, Steps out."""

import threading
from collections.abc import Callable, Iterator

from libtorchbeast.environment import Environment, Row
from libtorchbeast.rpcenv.watchdog import CallTimer, TimeLimit
from libtorchbeast.rpcenv.wire import StackCheck, StepEncoder, decode_actions
from libtorchbeast.spec import Spec


class EnvironmentMaker:
    """Makes the environments of all Streams of a server, all with the same Spec.

    The first is made at once: it gives `spec`, and the first Stream takes it. Any thread may take
    environments, but must hold `opening` until it has called `initial`, which opens the rest of
    them. So they are opened one at a time, and `create_env` need not be safe for threads.
    """

    def __init__(self, make_environment: Callable[[], Environment]):
        self._make_environment = make_environment
        self._prepared: Environment | None = make_environment()
        self._taking = threading.Lock()  # protects _prepared
        self.opening = threading.Lock()
        self.spec: Spec = self._prepared.spec

    def take(self, timer: CallTimer, limit: TimeLimit) -> Environment:
        """Returns the prepared environment, or makes one, for which `timer` allows `limit`. Raises
        ValueError if its Spec differs from that of the first environment."""
        if prepared := self._take_prepared():
            return prepared
        environment = timer.run(limit, self._make_environment)
        if environment.spec != self.spec:
            environment.close()
            said = f"expected what it made before, {self.spec}, seen {environment.spec}"
            raise ValueError(f"create_env: {said}")
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
        step_limit: TimeLimit,  # also for closing
        open_limit: TimeLimit,  # for opening and first resetting one environment
    ):
        self.number, self._seed = number, seed
        self.timer = CallTimer(number, environments.spec.num_envs)
        self._environments, self._encode = environments, encode
        self._step_limit, self._open_limit = step_limit, open_limit
        self._check_stacks = StackCheck(environments.spec)
        self._environment: Environment | None = None

    def play(
        self, requests: Iterator[bytes], is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[bytes]:
        """Yields a Step for the reset, and one for each of the Actions in `requests`. If it is no
        longer wanted when its turn comes to open environments, it opens none. Raises WrongActions
        if a request does not fit the Spec, and whatever making or stepping environments raises."""
        limit, timer = self._open_limit, self.timer
        with self._environments.opening:
            if not is_wanted():
                return
            env = self._environment = self._environments.take(timer, limit)
            row = timer.run(limit, env.initial, self._seed, timer.on_open)
        yield self._encoded(row)
        for request in requests:
            actions = decode_actions(request, env.spec)
            yield self._encoded(timer.run(self._step_limit, env.step, actions))

    def close(self) -> None:
        """Closes the environments. Raises whatever that raises."""
        if self._environment is not None:
            self.timer.run(self._step_limit, self._environment.close)

    def _encoded(self, row: Row) -> bytes:
        self._check_stacks(row)
        return self._encode(row, self.timer.seconds)
