# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast's queues, batching and streams, which src/binding.cc exports from C++.

Dimension 1 of every tensor is the column, which is one environment. Arrays come from any object
with `__dlpack__` (torch.Tensor, np.ndarray) in CPU memory and go out as torch tensors, without a
copy.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self, TypeAlias

import torch

_Arrays: TypeAlias = dict[str, Any]  # named objects with __dlpack__
_Tensors: TypeAlias = dict[str, torch.Tensor]
_State: TypeAlias = tuple[torch.Tensor, ...]  # the recurrent state, [layers, columns, ...] each
_PemTexts: TypeAlias = tuple[bytes | str, bytes | str, bytes | str]  # rpcenv.tls.Tls

class ClosedBatchingQueue(RuntimeError):
    """The queue, batcher or pool was closed before or during the call."""

class StreamError(ConnectionError):
    """A stream or call to a server ended. The text is "CODE: what happened"."""

class BatchingQueue:
    """Dicts of tensors [T, columns, ...] go in, batches of `batch_size` columns come out.

    `for batch in queue:` ends when the queue is closed.
    """

    def __init__(self, batch_size: int, capacity: int) -> None: ...
    def enqueue(self, item: _Arrays, /) -> None:
        """Waits while the queue holds `capacity` columns or more.

        Raises ClosedBatchingQueue, or ValueError for an item unlike the first one.
        """

    def dequeue(self, into: _Tensors | None = None) -> _Tensors:
        """Waits for a whole batch. With `into`, tensors [T, batch_size, ...], it copies the batch
        into them and returns them. It keeps them only until it returns.

        Raises ClosedBatchingQueue, or ValueError if `into` differs from the first item.
        """

    def __iter__(self) -> Self: ...
    def __next__(self) -> _Tensors: ...
    def size(self) -> int:
        """The number of columns inside."""

    def close(self) -> None:
        """Calls that wait, and later calls, raise ClosedBatchingQueue."""

class Batch:
    """Requests that are answered together. `len(batch)` is their number of columns."""

    def __len__(self) -> int: ...
    def get_inputs(self, into: tuple[_Tensors, _State] | None = None) -> tuple[_Tensors, _State]:
        """Returns (inputs, core_state): tensors [1, B, ...] and [layers, B, ...]. With `into`, a
        pair of such tensors, it copies them into these and returns them. It keeps them only until
        it returns.

        Raises ValueError if `into` differs from the requests.
        """

    def set_outputs(self, outputs: tuple[_Arrays, Iterable[Any]]) -> None:
        """Takes (outputs, core_state), shaped like the inputs. Gives each caller its columns.

        Raises ValueError for another number of columns, or at a second call.
        """

class DynamicBatcher:
    """Joins the requests of many threads into batches.

    `for batch in batcher:` ends when the batcher is closed.
    """

    def __init__(
        self, minimum_batch_size: int, maximum_batch_size: int, timeout_ms: float
    ) -> None: ...
    def compute(self, inputs: _Arrays, core_state: Iterable[Any] = ()) -> tuple[_Tensors, _State]:
        """Waits for the answer to (inputs, core_state) and returns (outputs, core_state).

        Raises ClosedBatchingQueue, ValueError for a request unlike the first one, or RuntimeError
        if the batch was dropped without an answer.
        """

    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...
    def size(self) -> int:
        """The number of columns that no batch has taken yet."""

    def close(self) -> None:
        """Calls that wait, and later calls, raise ClosedBatchingQueue."""

class Spec:
    """What a server says about its environments. libtorchbeast.spec.Spec is the same in Python."""

    @property
    def num_envs(self) -> int:
        """The number of environments of each stream, N."""

    @property
    def action_kind(self) -> str: ...
    @property
    def action_sizes(self) -> list[int]: ...
    @property
    def frames_per_step(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def row_bytes(self) -> int:
        """At least the bytes of one environment's row, without the network's outputs."""

    @property
    def observations(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape (of one environment) and dtype of each array of an observation."""

    @property
    def stacks(self) -> dict[str, int]:
        """The number of frames of each array that is a stack of frames."""

    @property
    def sets(self) -> dict[str, int]:
        """How many things each array of numbers that stand for things knows."""

class Status:
    """The state of an actor's stream."""

    @property
    def address(self) -> str: ...
    @property
    def opening(self) -> bool:
        """Whether its server has described itself and now opens its environments."""

    @property
    def connected(self) -> bool:
        """Whether it has answered an action since it was opened."""

    @property
    def failures(self) -> int: ...
    @property
    def last_error(self) -> str:
        """The newest error, or "" if there was none."""

class ActorPool:
    """One thread and one stream for each of `addresses`. A stream that fails is opened again.

    Whole rollouts, dicts of tensors [T+1, N, ...] and core_state/i [layers, N, ...], go to
    `learner_queue`. A stream whose rollouts would have more than `max_rollout_bytes` fails.
    """

    ACTIVITIES: ClassVar[
        tuple[str, ...]
    ]  # what the actors' time goes to, in the order of `seconds`

    def __init__(
        self,
        unroll_length: int,
        learner_queue: BatchingQueue,
        inference_batcher: DynamicBatcher,
        addresses: Sequence[str],
        initial_core_state: Iterable[Any],
        spec: Spec,
        step_timeout: float = 60.0,
        reset_timeout: float = 300.0,
        tls: _PemTexts | None = None,
        max_rollout_bytes: int = 2**31,
    ) -> None: ...
    def status(self) -> list[Status]:
        """Returns a Status for each of the addresses."""

    def take_events(self) -> list[str]:
        """Returns what went wrong since the last call: "actor NUMBER, ADDRESS: CODE: text".

        Raises RuntimeError if the pool ended itself because outputs broke the contract.
        """

    def seconds(self) -> list[float]:
        """Returns the seconds that all actors together spent in each of ACTIVITIES."""

    def latencies(self) -> list[int]:
        """Returns a histogram of the time from a row's arrival until its actions were sent.

        Bin i of 240 counts 2^(i/8) to 2^((i+1)/8) microseconds.
        """

    def close(self) -> None:
        """Ends all streams and threads, and closes the queue and the batcher."""

def describe(address: str, timeout: float = 10.0, tls: _PemTexts | None = None) -> Spec:
    """Asks the server at `address` for its Spec. Raises StreamError."""

def exchange(array: Any) -> torch.Tensor:
    """Returns the array as a tensor, as if it had passed through a queue. For tests."""
