# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Rows, specs and actions as the messages of rpcenv.proto, on the server's side. (The learner
reads them in C++.)"""

import math
import struct

import numpy as np

from libtorchbeast.environment import Row
from libtorchbeast.rpcenv import rpcenv_pb2
from libtorchbeast.spec import Spec

PROTOCOL = 2

# NumPy's name of a dtype -> the protocol's number. (NumPy itself has no bfloat16.)
DTYPES: dict[str, int] = {
    name.lower(): number for name, number in rpcenv_pb2.DType.items() if name != "UNKNOWN"
}


def spec_to_message(spec: Spec) -> rpcenv_pb2.Spec:
    """Raises ValueError for a dtype that the protocol does not have."""
    for name, (_, dtype) in spec.observations.items():
        if dtype not in DTYPES:
            raise ValueError(f"Observation {name!r}: expected one of {list(DTYPES)}, seen {dtype}")
    return rpcenv_pb2.Spec(
        protocol=PROTOCOL,
        num_envs=spec.num_envs,
        observations=[
            rpcenv_pb2.Leaf(
                name=name, dtype=DTYPES[dtype], shape=shape, stack=spec.stacks.get(name, 0)
            )
            for name, (shape, dtype) in spec.observations.items()
        ],
        action_kind=spec.actions.kind,
        action_sizes=spec.actions.sizes,
        frames_per_step=spec.frames_per_step,
        name=spec.name,
    )


class StepEncoder:
    """Rows of one Spec -> serialized Step messages.

    Protobuf's format of a packed array of float, sfixed32 or bool is the array's memory behind a
    tag and a length, so a message is joined from the row's arrays with one copy. Tags and lengths
    depend on the Spec only. Of a stack of frames the newest is sent; that it is one is for
    `StackCheck`.

    Raises:
        ValueError: an array that differs from the Spec.
    """

    SMALL = 4096  # bytes

    # Of a Step: field number -> key of the row, dtype. Field 1 is the observations.
    FIELDS = {
        2: ("reward", "<f4"),
        3: ("done", "?"),
        4: ("terminated", "?"),
        5: ("truncated", "?"),
        6: ("episode_over", "?"),
        7: ("episode_step", "<i4"),
        8: ("episode_return", "<f4"),
    }

    def __init__(self, spec: Spec):
        N = spec.num_envs
        # Each part: what stands before the array, the row's key, the array's shape and dtype.
        self._parts = [
            [b"", name, (N, *shape), _little_endian(name, dtype)]
            for name, (shape, dtype) in spec.observations.items()
        ]
        self._stacks = spec.stacks
        size = sum(
            math.prod(shape) * dtype.itemsize // spec.stacks.get(name, 1)
            for _, name, shape, dtype in self._parts
        )
        self._start = _prefix(1, size)
        for field, (name, code) in self.FIELDS.items():
            dtype = np.dtype(code)
            self._parts.append([_prefix(field, N * dtype.itemsize), name, (N,), dtype])

    ENVIRONMENT_SECONDS = struct.Struct("<Bf")  # field 9 and wire type 5; the number

    def __call__(self, row: Row, environment_seconds: float) -> bytes:
        pieces = [self._start]
        for prefix, name, shape, dtype in self._parts:
            array = row[name]
            if array.shape != shape or array.dtype != dtype:
                array = _as_expected(name, array, shape, dtype)
            pieces.append(prefix)
            if name in self._stacks and self._is_view(array[0, -1]):
                pieces.extend(array[:, -1])  # each environment's frame by itself
            else:
                newest = array[:, -1] if name in self._stacks else array
                pieces.append(newest if self._is_view(newest) else newest.tobytes())
        pieces.append(self.ENVIRONMENT_SECONDS.pack(9 << 3 | 5, environment_seconds))
        return b"".join(pieces)

    def _is_view(self, array: np.ndarray) -> bool:
        """Whether to join the array's own memory. Copying little is quicker than asking for it."""
        return array.nbytes >= self.SMALL and array.flags.c_contiguous


class StackCheck:
    """Whether what `spec.stacks` names are stacks of frames, as `rpcenv.proto` has them.

    Called with every row of one Stream. It compares one environment a step, each in its turn, so
    that it costs next to nothing: what is wrong always is seen at once, what seldom is, later.

    Raises:
        ValueError: an environment's observation is no such stack.
    """

    def __init__(self, spec: Spec):
        self._stacks, self._num_envs = spec.stacks, spec.num_envs
        self._next = 0  # the environment to be compared
        # Its k-1 newest frames, copied: a row may be gone at the next step.
        self._newest: dict[str, bytes] = {}

    def __call__(self, row: Row) -> None:
        n = self._next
        self._next = (n + 1) % self._num_envs
        is_first = row["episode_step"][n] == 0
        for name, k in self._stacks.items():
            older = row[name][n, :-1].tobytes()
            if older != (bytes(len(older)) if is_first else self._newest[name]):
                expected = (
                    "zeros, as a game begins" if is_first else "the newest of the step before"
                )
                raise ValueError(
                    f'{name}: metadata["frame_stacks"] says that it is a stack of the {k} newest '
                    f"frames; expected as its {k - 1} older ones {expected}, seen others, in "
                    f"environment {n}"
                )
            self._newest[name] = row[name][self._next, 1:].tobytes()


def decode_actions(data: bytes, spec: Spec) -> np.ndarray:
    """[N, *Actions.shape] of a serialized Action.

    Raises:
        google.protobuf.message.DecodeError: it is none.
        ValueError: it does not fit the Spec.
    """
    message, actions = rpcenv_pb2.Action.FromString(data), spec.actions
    numbers = message.reals if actions.kind == "box" else message.actions
    expected = spec.num_envs * math.prod(actions.shape)
    if len(numbers) != expected:
        raise ValueError(f"Actions: expected {expected}, seen {len(numbers)}")
    array = np.array(numbers, actions.dtype).reshape(spec.num_envs, *actions.shape)
    actions.check(array, spec.num_envs)
    return array


def _as_expected(name: str, array: np.ndarray, shape: tuple, dtype: np.dtype) -> np.ndarray:
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(
            f"{name}: expected {dtype}{list(shape)}, seen {array.dtype}{list(array.shape)}"
        )
    return np.asarray(array, dtype)


def _little_endian(name: str, dtype: str) -> np.dtype:
    try:
        return np.dtype(dtype).newbyteorder("<")
    except TypeError as error:
        raise ValueError(f"Observation {name!r}: NumPy knows no {dtype}") from error


def _prefix(field: int, length: int) -> bytes:
    """What stands before `length` bytes: tag (field number, wire type 2) and length."""
    LENGTH_DELIMITED = 2
    return _varint(field << 3 | LENGTH_DELIMITED) + _varint(length)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that another follows."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
