# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Makes the files of tests/core/corpus: what a broken or hostile server may send.

    python -m tests.support.corpus      # writes the files again

A conversation is a serialized Spec, followed by serialized Steps. A file contains each message
after its length in two bytes. A client accepts `good-*`, refuses `spec-*` because of the Spec, and
refuses `step-*` because of the last Step. The C++ tests read the files under sanitizers, libFuzzer
starts from them, and tests/faults/strangers.py sends them to the real ActorPool.
"""

import functools
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from libtorchbeast.rpcenv import rpcenv_pb2
from libtorchbeast.rpcenv.wire import spec_to_message
from libtorchbeast.spec import Actions, Spec

FOLDER = Path(__file__).parents[1] / "core/corpus"
N = 2
NAN, INFINITY = float("nan"), float("inf")


def good_spec(**leaves) -> rpcenv_pb2.Spec:
    """A valid Spec of N environments. `leaves` are added to the usual three leaves. Each is a
    shape, the number of a dtype, and a stack."""
    observations = {"frame": ((2, 3), "uint8"), "flag": ((), "bool"), "x/y": ((2,), "float32")}
    actions = Actions("discrete", (3,))
    message = spec_to_message(Spec("Strange-v0", N, observations, actions, 4))
    for name, (shape, dtype, stack) in leaves.items():
        message.observations.add(name=name, shape=shape, dtype=dtype, stack=stack)
    return message


def good_step(first: bool, more: bytes = b"", **changes) -> rpcenv_pb2.Step:
    """A valid Step for `good_spec`. `more` are the bytes of the leaves that were added."""
    fields = dict(
        observations=bytes(range(6 * N)) + b"\0\1" + np.ones(2 * N, "<f4").tobytes() + more,
        reward=[0.0, 0.0] if first else [1.0, -2.5],
        done=[first] * N,
        terminated=[False, not first],
        truncated=[False] * N,
        episode_over=[False, not first],
        episode_step=[0 if first else 7] * N,
        episode_return=[0.5] * N,
        environment_seconds=0.01,
    )
    return rpcenv_pb2.Step(**(fields | changes))


def spec_with(**leaves) -> bytes:
    return good_spec(**leaves).SerializeToString()


def spec_but(**fields) -> bytes:
    """A good Spec with other values of some fields."""
    message = good_spec()
    for name, value in fields.items():
        message.ClearField(name)
        message.MergeFrom(rpcenv_pb2.Spec(**{name: value}))
    return message.SerializeToString()


def step_but(first: bool, more: bytes = b"", **changes) -> bytes:
    return good_step(first, more, **changes).SerializeToString()


def conversations() -> dict[str, list[bytes]]:
    """Returns all conversations: name -> messages."""
    spec, first, next_ = spec_with(), step_but(True), step_but(False)
    big = (4, 2, 2), rpcenv_pb2.UINT8, 4
    stacks = spec_with(big=big, none=((2, 0), rpcenv_pb2.INT8, 2))
    numbers = spec_with(**{f"t{i}": ((2,), i, 0) for i in range(1, 14)})
    size = sum([1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8]) * 2 * N
    seconds, others = first[-5:], first[:-5]
    found = {
        "good-plain": [spec, *[first, next_, next_] * 2],
        "good-stack": [stacks, *(step_but(i == 0, b"\5" * 4 * N) for i in range(4))],
        "good-every-dtype": [numbers, *(step_but(i == 0, b"\0" * size) for i in range(2))],
        "good-fields-in-another-order": [spec, seconds + others],
        "good-name-of-wide-characters": [spec_but(name="Träge Straße \U0001f600"), first, next_],
        "step-first-empty": [spec, b""],
        "step-first-not-done": [spec, step_but(True, done=[True, False])],
        "step-first-cut-off": [spec, first[:-3]],
        "step-first-of-a-stack-in-mid-game": [
            spec_with(big=big), step_but(True, b"\5" * 4 * N, episode_step=[0, 3])
        ],
        "step-first-of-numbers-by-half": [spec, _without(first, 7) + field(7, bytes(7))],
    }  # fmt: skip
    found |= {f"spec-{name}": [message, first, next_] for name, message in _bad_specs(spec)}
    bad = dict(_bad_steps(next_))
    return found | {f"step-{name}": [spec, first, next_, bad[name]] for name in bad}


def _bad_specs(good: bytes) -> Iterator[tuple[str, bytes]]:
    # What is wrong with fields as such is in _bad_steps: both are read in the same way.
    yield "empty", b""
    yield "garbage", bytes(range(255, 0, -7))
    yield "step-instead", step_but(True)
    yield "cut-off", good[:-3]
    yield "cut-off-in-a-leaf", good[:12]
    yield "protocol-1", spec_but(protocol=1)
    yield "protocol-3-with-new-fields", spec_but(protocol=3) + varint(9 << 3) + b"\1"
    yield "protocol-missing", spec_but(protocol=0)
    yield "protocol-twice", good + b"\x08\x02"
    yield "unknown-field", good + field(9, b"new")
    yield "number-too-long", _without(good, 6) + b"\x30\x84" + b"\x80" * 9
    yield "no-environments", spec_but(num_envs=0)
    yield "too-many-environments", spec_but(num_envs=2**32 - 1)
    yield "environments-2-to-the-20", spec_but(num_envs=2**20)
    yield "environments-of-64-bits", spec_but(num_envs=0) + b"\x10" + varint(2**64 - 1)
    yield from _bad_leaves(good)
    yield "own-name-not-utf-8", _without(good, 7) + field(7, b"\xc0\xaf")
    yield "leaves-empty-by-the-thousand", good + b"\x1a\0" * 2000
    yield "leaves-by-the-thousand", spec_with(**{f"{i}": ((), 2, 0) for i in range(1000)})
    yield "leaf-field-unknown", good + field(3, field(1, b"x") + b"\x10\2" + b"\x30\1")
    yield "leaf-field-twice", good + field(3, field(1, b"x") + b"\x10\2\x10\3")
    yield "actions-of-an-unknown-kind", spec_but(action_kind="tuple")
    yield "actions-of-a-box-of-two-sizes", spec_but(action_kind="box", action_sizes=[2, 3])
    yield "actions-of-a-box-beyond-16-bits", spec_but(action_kind="box", action_sizes=[2**16 + 1])
    choices = lambda *sizes: spec_but(action_kind="multi_discrete", action_sizes=sizes)
    yield "actions-of-too-many-choices", choices(*[2] * 2000)
    yield "actions-of-no-choices", choices()
    yield "actions-of-a-choice-of-none", choices(2, 0)
    yield "actions-missing", spec_but(action_sizes=[])
    yield "actions-of-two-sizes", spec_but(action_sizes=[3, 3])
    yield "actions-0", spec_but(action_sizes=[0])
    yield "actions-negative", spec_but(action_sizes=[-3])
    yield "actions-beyond-32-bits", spec_but(action_sizes=[2**31 + 1])
    yield "frames-per-step-0", spec_but(frames_per_step=0)
    yield "frames-per-step-of-32-bits", spec_but(frames_per_step=2**32 - 1)


def _bad_leaves(good: bytes) -> Iterator[tuple[str, bytes]]:
    with_leaf = lambda name="x", shape=(), dtype=2, stack=0: spec_with(
        **{name: (shape, dtype, stack)}
    )
    yield "dtype-0", with_leaf(dtype=0)
    yield "dtype-14", with_leaf(dtype=14)
    yield "dtype-negative", with_leaf(dtype=-1)
    yield "dtype-beyond-32-bits", good + field(3, field(1, b"x") + b"\x10" + varint(2**32 + 1))
    yield "dimension-negative", with_leaf(shape=[4, -1])
    yield "dimension-2-to-the-31", with_leaf(shape=[2**31])
    yield "dimension-most-negative", with_leaf(shape=[-(2**63)])
    yield "dimensions-whose-product-overflows", with_leaf(shape=[2**31 - 1] * 5)
    yield "dimensions-that-overflow-beside-0", with_leaf(shape=[0] + [2**31 - 1] * 4)
    yield "dimensions-too-many", with_leaf(shape=[1] * 17)
    yield "dimensions-by-the-thousand", with_leaf(shape=[1] * 2000)
    yield "dimensions-not-packed", good + field(3, field(1, b"x") + b"\x10\2" + b"\x18\1" * 2)
    yield "size-of-two-leaves", spec_with(a=((2**30,), 2, 0), b=((2**30,), 2, 0))
    yield "stack-of-another-shape", with_leaf(shape=[3, 4], stack=4)
    yield "stack-without-a-shape", with_leaf(stack=4)
    yield "stack-of-2-to-the-32", with_leaf(shape=[4], stack=2**32 - 1)
    yield "name-empty", with_leaf(name="")
    yield "name-twice", with_leaf(name="frame")
    yield "name-of-a-row", with_leaf(name="reward")
    yield "name-of-a-state", with_leaf(name="core_state/0")
    yield "name-not-utf-8", good + field(3, field(1, b"x\xff\xfe") + b"\x10\2")
    yield "name-of-half-a-character", good + field(3, field(1, b"\xe2\x82") + b"\x10\2")
    yield "name-with-a-terminal-s-escape", with_leaf(name="\x1b[2J")
    yield "name-with-a-line", with_leaf(name="a\n2026-01-01 INFO all is well")
    yield "name-of-300-bytes", with_leaf(name="x" * 300)


def _bad_steps(good: bytes) -> Iterator[tuple[str, bytes]]:
    changed = functools.partial(step_but, False)
    observations = good_step(False).observations
    yield "empty", b""
    yield "garbage", bytes(range(255, 0, -7))
    yield "zeros", b"\0" * 100
    yield "spec-instead", spec_with()
    yield "cut-off", good[:-3]
    yield "cut-off-in-the-observations", good[:9]
    yield "surplus-byte", good + b"\x07"
    yield "unknown-field", good + field(10, b"new")
    yield "unknown-field-of-29-bits", good + varint((2**29 - 1) << 3) + b"\1"
    yield "field-0", good + b"\x02\0"
    yield "group", good + b"\x53\x53\x54\x54"
    yield "groups-by-the-thousand", good + b"\x53" * 2000 + b"\x54" * 2000
    yield "unknown-fields-by-the-thousand", good + b"\x7a\0" * 2000
    yield "empty-fields-by-the-thousand", good + b"\x1a\0" * 2000
    yield "twice-over", good + good
    yield "number-without-end", good + b"\xff" * 11
    yield "length-of-2-to-the-64", b"\x0a" + b"\xff" * 9 + b"\1" + good
    yield "length-of-2-to-the-31", b"\x0a" + varint(2**31) + good
    yield "observations-missing", changed(observations=b"")
    yield "observations-short", changed(observations=observations[:-1])
    yield "observations-surplus", changed(observations=observations + b"\0")
    yield "observations-10-times", changed(observations=observations * 10)
    yield "observations-as-a-number", _without(good, 1) + b"\x08\1"
    yield "bool-that-is-2", changed(observations=observations[:12] + b"\2" + observations[13:])
    for name, value in {"nan": NAN, "infinite": INFINITY}.items():
        floats = np.array([1, 1, 1, value], "<f4").tobytes()
        yield f"observation-{name}", changed(observations=observations[:14] + floats)
        yield f"reward-{name}", changed(reward=[0, value])
        yield f"return-{name}", changed(episode_return=[-value, 0])
    arrays = "reward done terminated truncated episode_over episode_step episode_return".split()
    for name in arrays:
        values = list(getattr(good_step(False), name))
        yield f"{name}-missing", changed(**{name: []})
        yield f"{name}-short", changed(**{name: values[:-1]})
        yield f"{name}-surplus", changed(**{name: values * 2})
    yield "reward-by-the-thousand", changed(reward=[0.0] * 2000)
    yield "reward-of-half-numbers", _without(good, 2) + field(2, bytes(7))
    yield "reward-not-packed", _without(good, 2) + (b"\x15" + bytes(4)) * 2
    yield "done-not-packed", _without(good, 3) + b"\x18\0" * 2
    yield "done-that-is-2", _without(good, 3) + field(3, b"\0\2")
    yield "done-of-long-numbers", _without(good, 3) + field(3, b"\x80\0\1")
    yield "seconds-as-text", good[:-5] + field(9, b"soon")


def actions() -> dict[str, bytes]:
    """Returns wrong Actions that a client may send: name -> bytes. A good one has N numbers from 0
    to 2."""
    packed = lambda *numbers: field(1, b"".join(map(varint, numbers)))
    return {
        "empty": b"",
        "garbage": bytes(range(255, 0, -7)),
        "zeros": b"\0" * 50,
        "too-few": packed(0),
        "too-many": packed(0, 1, 2),
        "as-many-as-fit": packed(*[0] * 1000),
        "too-high": packed(0, 3),
        "negative": packed(-1, 0),
        "most-negative": packed(-(2**31), 0),
        "of-32-bits": packed(2**31 - 1, 0),
        "of-64-bits": packed(-(2**63) + 5, 0),
        "not-packed": b"\x08\1" * 3,
        "as-floats": b"\x0d" + bytes(4) + b"\x0d" + bytes(4),
        "cut-off": packed(1, 1)[:-1],
        "length-of-2-to-the-31": b"\x0a" + varint(2**31) + b"\1\1",
        "number-without-end": b"\x0a\x0b" + b"\xff" * 11,
        "unknown-fields-alone": field(9, b"new") + b"\x7a\0" * 400,
        "empty-fields": b"\x0a\0" * 500,
        "group-without-end": b"\x4b" * 500,
        "a-step": step_but(True),
        "a-spec": spec_with(),
    }


def _without(message: bytes, number: int) -> bytes:
    """Returns the serialized Spec or Step without one of its fields."""
    kind = rpcenv_pb2.Spec if message.startswith(b"\x08") else rpcenv_pb2.Step
    copy = kind.FromString(message)
    copy.ClearField(kind.DESCRIPTOR.fields_by_number[number].name)
    return copy.SerializeToString()


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, data: bytes) -> bytes:
    """A serialized field that holds bytes, a string or a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def to_file(messages: list[bytes]) -> bytes:
    return b"".join(struct.pack("<H", len(message)) + message for message in messages)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.iterdir():
        path.unlink()
    for name, messages in conversations().items():
        (FOLDER / name).write_bytes(to_file(messages))


if __name__ == "__main__":
    main()
