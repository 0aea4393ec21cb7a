# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The server's conversions between rows, specs or actions and the messages of rpcenv.proto.

The learner's conversions are in C++ (libtorchbeast/src).
"""

import math
import struct
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from libtorchbeast.environment import Row
from libtorchbeast.rpcenv import rpcenv_pb2
from libtorchbeast.spec import ROW_FIELDS, Spec

PROTOCOL = 2

# The name of a dtype in NumPy -> its number in the protocol. (NumPy has no bfloat16.)
DTYPES: dict[str, int] = {k.lower(): n for k, n in rpcenv_pb2.DType.items() if k != "UNKNOWN"}


def spec_to_message(spec: Spec) -> rpcenv_pb2.Spec:
    return rpcenv_pb2.Spec(
        protocol=PROTOCOL,
        num_envs=spec.num_envs,
        observations=[
            rpcenv_pb2.Leaf(
                name=name,
                dtype=DTYPES[dtype],
                shape=shape,
                stack=spec.stacks.get(name, 0),
                set_size=spec.sets.get(name, 0),
            )
            for name, (shape, dtype) in spec.leaves.items()
        ],
        action_kind=spec.actions.kind,
        action_sizes=spec.actions.sizes,
        frames_per_step=spec.frames_per_step,
        name=spec.name,
    )


class StepEncoder:
    """Turns the rows of one Spec into serialized Step messages.

    In protobuf's format, a packed array of float, sfixed32 or bool is a tag, a length and the
    array's memory. Tags and lengths depend on the Spec alone, so a message is joined from them and
    the row's arrays with one copy. Of a stack of frames only the newest frame is sent; `StackCheck`
    checks that the observation is such a stack.
    """

    SMALL = 4096  # bytes; a smaller array is copied faster than its memory layout is looked up
    ENVIRONMENT_SECONDS = struct.Struct("<cf")  # a tag of one byte, then the number

    def __init__(self, spec: Spec):
        N = spec.num_envs
        little_endian = lambda dtype: np.dtype(dtype).newbyteorder("<")
        # For each array: the bytes before it, its key in the row, its shape and its dtype.
        self._arrays: list[tuple[bytes, str, tuple[int, ...], np.dtype]] = [
            (b"", name, (N, *shape), little_endian(dtype))
            for name, (shape, dtype) in spec.leaves.items()
        ]
        self._stacks = spec.stacks
        size = sum(
            math.prod(shape) * dtype.itemsize // spec.stacks.get(name, 1)
            for _, name, shape, dtype in self._arrays
        )
        self._start = _before(size, observations=bytes(size))
        for name, dtype_name in ROW_FIELDS.items():
            dtype = little_endian(dtype_name)
            self._arrays.append((_before(N * dtype.itemsize, **{name: [0] * N}), name, (N,), dtype))
        self._seconds_tag = _before(4, environment_seconds=1.0)

    def __call__(self, row: Row, environment_seconds: float) -> bytes:
        pieces: list[Any] = [self._start]
        for prefix, name, shape, dtype in self._arrays:
            array = row[name]
            assert array.shape == shape and array.dtype == dtype, name  # Environment sees to it
            pieces.append(prefix)
            if name in self._stacks and self._is_view(array[0, -1]):
                pieces.extend(array[:, -1])  # each environment's frame is a piece
            else:
                newest = array[:, -1] if name in self._stacks else array
                pieces.append(newest if self._is_view(newest) else newest.tobytes())
        pieces.append(self.ENVIRONMENT_SECONDS.pack(self._seconds_tag, environment_seconds))
        return b"".join(pieces)

    def _is_view(self, array: np.ndarray) -> bool:
        """Whether to join the array's own memory rather than a copy of it."""
        return array.nbytes >= self.SMALL and array.flags.c_contiguous


class StackCheck:
    """Checks that the observations in `spec.stacks` are stacks of frames as `rpcenv.proto` says.

    It is called with every row of one Stream. To cost next to nothing it compares one environment
    a step, each in its turn. An error in every step is found at once, a rare error later. Raises
    ValueError if an observation is not such a stack.
    """

    def __init__(self, spec: Spec):
        self._stacks, self._num_envs = spec.stacks, spec.num_envs
        self._next = 0  # the environment to compare next
        # Its k - 1 newest frames, copied because the next step may overwrite the row.
        self._newest: dict[str, bytes] = {}

    def __call__(self, row: Row) -> None:
        n = self._next
        self._next = (n + 1) % self._num_envs
        is_first = row["episode_step"][n] == 0
        for name, k in self._stacks.items():
            older = row[name][n, :-1].tobytes()
            if older != (bytes(len(older)) if is_first else self._newest[name]):
                such = "zeros, as a game begins" if is_first else "the newest of the step before"
                raise ValueError(
                    f'{name}: metadata["frame_stacks"] says that it is a stack of the {k} newest '
                    f"frames; expected its {k - 1} older frames to be {such}, seen others, in "
                    f"environment {n}"
                )
            self._newest[name] = row[name][self._next, 1:].tobytes()


class WrongActions(ValueError):
    """The client's message does not fit the Spec."""


def decode_actions(data: bytes, spec: Spec) -> np.ndarray:
    """Returns the actions [N, *Actions.shape] of a serialized Action. Raises WrongActions if the
    bytes are no Action, or its actions do not fit the Spec."""
    try:
        message = rpcenv_pb2.Action.FromString(data)
    except DecodeError as error:
        raise WrongActions(f"Actions: expected a message Action, seen {data[:20]!r}") from error
    actions = spec.actions
    numbers = message.reals if actions.kind == "box" else message.actions
    expected = spec.num_envs * math.prod(actions.shape)
    if len(numbers) != expected:
        raise WrongActions(f"Actions: expected {expected}, seen {len(numbers)}")
    array = np.array(numbers, actions.dtype).reshape(spec.num_envs, *actions.shape)
    try:
        actions.check(array, spec.num_envs)
    except ValueError as error:
        raise WrongActions(str(error)) from error
    return array


def _before(size: int, **field: Any) -> bytes:
    """The tag, and for an array its length, that stand before the last `size` bytes of a Step with
    this one field."""
    return rpcenv_pb2.Step(**field).SerializeToString()[:-size]
