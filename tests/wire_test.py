# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from libtorchbeast.rpcenv import rpcenv_pb2
from libtorchbeast.rpcenv.wire import (
    DTYPES,
    StackCheck,
    StepEncoder,
    decode_actions,
    spec_to_message,
)
from libtorchbeast.spec import Actions, Spec
from tests.support.client import decode, message_to_spec
from tests.support.processes import ROOT

NUMPY_DTYPES = [name for name in DTYPES if name != "bfloat16"]


def make_spec(observations, num_envs=3, stacks=()):
    actions = Actions("discrete", (5,))
    return Spec("Test-v0", num_envs, observations, actions, 4, dict(stacks))


def make_row(spec, seed=0):
    """Random, but of the Spec's shapes and dtypes."""
    rng = np.random.default_rng(seed)
    N = spec.num_envs
    row = {
        name: (rng.standard_normal((N, *shape)) * 50).astype(np.int8).astype(dtype)
        for name, (shape, dtype) in spec.observations.items()
    }
    for name in ("done", "terminated", "truncated", "episode_over"):
        row[name] = rng.random(N) < 0.5
    for name in ("reward", "episode_return"):
        row[name] = rng.standard_normal(N).astype(np.float32)
    row["episode_step"] = rng.integers(0, 2**31, N, np.int32)
    return row


def check(row, spec):
    """The row's bytes are those of the generated class, but for empty arrays, and decode to it."""
    data, expected = StepEncoder(spec)(row, 0.25), generated(row, spec)
    assert rpcenv_pb2.Step.FromString(data) == expected
    assert data == expected.SerializeToString(deterministic=True) or not expected.observations
    seen = decode(data, spec)
    assert seen.keys() == row.keys()
    for name, array in seen.items():
        sent = row[name][:, -1] if name in spec.stacks else row[name]
        assert array.tobytes() == np.ascontiguousarray(sent, array.dtype).tobytes(), name


def generated(row, spec):
    """The row as a Step, made with the generated class."""
    arrays = [row[name][:, -1] if name in spec.stacks else row[name] for name in spec.observations]
    return rpcenv_pb2.Step(
        observations=b"".join(a.astype(a.dtype.newbyteorder("<")).tobytes() for a in arrays),
        **{k: v.tolist() for k, v in row.items() if k not in spec.observations},
        environment_seconds=0.25,
    )


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (7,), (4, 84, 84)])
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_a_step_is_what_the_generated_class_makes_of_it(dtype, shape):
    spec = make_spec({"frame": (shape, dtype)})
    check(make_row(spec), spec)


@pytest.mark.parametrize("num_envs", [1, 64, 127, 128, 5000])
def test_lengths_of_one_two_and_three_bytes(num_envs):
    leaves = {"a/b": ((3,), "float32"), "a/c/0": ((), "int64"), "z": ((0,), "bool")}
    spec = make_spec(leaves, num_envs)
    check(make_row(spec), spec)


@pytest.mark.parametrize("shape", [(2,), (3, 5), (4, 84, 84), (2, 0), (5, 1, 1)])
@pytest.mark.parametrize("layout", ["contiguous", "Fortran's", "a window"])
def test_of_a_stack_the_newest_frame_is_sent(shape, layout):
    leaves = {"a": ((3,), "float32"), "frame": (shape, "uint8"), "z": ((4, 2), "int16")}
    spec = make_spec(leaves, stacks={"frame": shape[0]})
    row = make_row(spec)
    if layout == "Fortran's":
        row["frame"] = np.asfortranarray(row["frame"])
    elif layout == "a window":
        row["frame"] = np.concatenate([row["frame"]] * 2, axis=1)[:, 1 : shape[0] + 1]
    check(row, spec)


class Stacking:
    """N environments that stack 3 frames [2, 2] in one buffer; number 1 has games of 7 steps."""

    def __init__(self, num_envs):
        self.spec = make_spec({"frame": ((3, 2, 2), "float32")}, num_envs, {"frame": 3})
        self.frames = np.zeros((num_envs, 3, 2, 2), np.float32)
        self.row = {"frame": self.frames, "episode_step": np.full(num_envs, -1, np.int32)}
        self.rng = np.random.default_rng(0)

    def step(self):
        steps = self.row["episode_step"]
        steps += 1
        steps[1:2] %= 7
        self.frames[:, :-1] = self.frames[:, 1:]
        self.frames[steps == 0, :-1] = 0
        self.frames[:, -1] = self.rng.choice([np.nan, -0.0, 0.0, 1.0], (len(self.frames), 2, 2))
        return self.row


@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_true_stacks_pass_the_check(num_envs):
    env = Stacking(num_envs)
    check = StackCheck(env.spec)
    for _ in range(50):
        check(env.step())


def repeats_the_first(row):
    first = row["episode_step"] == 0
    row["frame"][first] = row["frame"][first, -1:]


def changes_a_bit(row):
    row["frame"].view(np.uint8)[2, 0, 1, 1] ^= 1


@pytest.mark.parametrize(
    "lie, expected, environment",
    [
        (repeats_the_first, "zeros, as a game begins", 0),
        (lambda row: row["frame"].fill(3.0) if row["episode_step"][0] else 0, "the newest of", 1),
        (changes_a_bit, "the newest of the step before", 2),
    ],
)
def test_what_is_no_stack_is_found_by_the_check(lie, expected, environment):
    env = Stacking(3)
    env.rng = np.random.default_rng(1)
    check = StackCheck(env.spec)
    rows = (env.step() for _ in range(environment + 1))
    text = rf'frame: metadata\["frame_stacks"\] .* 3 newest .* its 2 older frames to be {expected}'
    with pytest.raises(ValueError, match=text + f".*, in environment {environment}$"):
        for n, row in enumerate(rows):
            lie(row) if n in (1, environment) else None
            check(row)
    assert n == environment


def test_a_message_is_a_copy_and_the_layout_of_arrays_does_not_matter():
    spec = make_spec({"frame": ((100, 100), "float32")})
    row = make_row(spec)
    data = StepEncoder(spec)(row, 0.25)
    other = {name: np.repeat(array, 2)[::2] for name, array in row.items() if name != "frame"}
    other["frame"] = np.asfortranarray(row["frame"])
    expected = bytes(data)
    for array in row.values():
        array[...] = 0
    assert data == expected == StepEncoder(spec)(other, 0.25)


@pytest.mark.parametrize(
    "name, array",
    [
        ("frame", np.zeros((3, 4), np.uint8)),
        ("done", np.zeros(3, np.int8)),
        ("reward", np.zeros(3, ">f4")),
    ],
)
def test_arrays_that_differ_from_the_spec(name, array):
    spec = make_spec({"frame": ((5,), "uint8")})
    with pytest.raises(AssertionError, match=name):
        StepEncoder(spec)(make_row(spec) | {name: array}, 0.25)


def test_a_spec_survives_with_all_its_fields():
    leaves = {f"leaf/{name}": ((2,) * i, name) for i, name in enumerate(DTYPES)}
    spec = make_spec(leaves, stacks={"leaf/int8": 2, "leaf/float64": 2})
    message = rpcenv_pb2.Spec.FromString(spec_to_message(spec).SerializeToString())
    assert message.protocol == 2
    assert message_to_spec(message) == spec
    assert list(message_to_spec(message).observations) == list(spec.observations)  # in order
    fields = {field.name for field in rpcenv_pb2.Spec.DESCRIPTOR.fields}
    ours = {f.name for f in dataclasses.fields(Spec)} - {"actions", "stacks", "sets", "numbers"}
    assert fields - {"protocol", "action_kind", "action_sizes"} == ours
    assert {"stack", "set_size"} <= {field.name for field in rpcenv_pb2.Leaf.DESCRIPTOR.fields}


def test_every_dtype_of_a_space_has_the_number_of_the_proto():
    """The adapter takes spaces of these dtypes only (see `spec.flatten_space`)."""
    codes = {np.dtype(code).name for code in np.typecodes["All"] if np.dtype(code).kind in "biuf"}
    assert {name for name in codes if np.dtype(name).itemsize <= 8} <= DTYPES.keys()
    assert DTYPES["bool"] == 1 and DTYPES["float64"] == 13 and len(DTYPES) == 13
    assert all(np.dtype(name).name == name for name in NUMPY_DTYPES)


def spec_of_actions(kind, *sizes):
    return Spec("Test-v0", 2, {"frame": ((), "uint8")}, Actions(kind, sizes))


@pytest.mark.parametrize(
    "actions, message, expected",
    [
        (("discrete", 201), {"actions": [3, 200]}, [3, 200]),
        (("multi_discrete", 2, 5, 9), {"actions": [1, 4, 0, 0, 0, 8]}, [[1, 4, 0], [0, 0, 8]]),
        (("box", 2), {"reals": [0.5, -3, 1e30, 0]}, [[0.5, -3], [np.float32(1e30), 0]]),
    ],
)
def test_actions(actions, message, expected):
    spec = spec_of_actions(*actions)
    decoded = decode_actions(rpcenv_pb2.Action(**message).SerializeToString(), spec)
    assert decoded.dtype == spec.actions.dtype and decoded.tolist() == expected
    not_packed = decode_actions(b"\x08\x05\x08\x07", spec_of_actions("discrete", 8))
    assert not_packed.tolist() == [5, 7]


@pytest.mark.parametrize(
    "actions, message, seen",
    [
        (("discrete", 3), {"actions": [0]}, "Actions: expected 2, seen 1"),
        (("discrete", 3), {"reals": [0, 0]}, "Actions: expected 2, seen 0"),
        (("discrete", 3), {"actions": [0, 3]}, "expected 0 to 2, seen 3 for environment 1"),
        (
            ("multi_discrete", 2, 3),
            {"actions": [1, 2, 2, 0]},
            r"expected 0 to 1 and 0 to 2, seen \[2, 0\] for environment 1",
        ),
        (("box", 1), {"actions": [0, 0]}, "Actions: expected 2, seen 0"),
        (("box", 1), {"reals": [0, np.nan]}, "finite numbers, seen .nan. for environment 1"),
    ],
)
def test_actions_that_do_not_fit_are_refused(actions, message, seen):
    with pytest.raises(ValueError, match=seen):
        decode_actions(rpcenv_pb2.Action(**message).SerializeToString(), spec_of_actions(*actions))


def test_the_generated_file_is_that_of_the_proto(tmp_path):
    out = tmp_path / "descriptors"
    proto = ROOT / "libtorchbeast/rpcenv"
    command = ["-m", "grpc_tools.protoc", f"-I{proto}", f"--descriptor_set_out={out}"]
    subprocess.run([sys.executable, *command, proto / "rpcenv.proto"], check=True)
    (expected,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    for message in expected.message_type:
        for field in message.field:
            field.ClearField("json_name")  # which generated code leaves out
    seen = descriptor_pb2.FileDescriptorProto.FromString(rpcenv_pb2.DESCRIPTOR.serialized_pb)
    assert seen == expected
