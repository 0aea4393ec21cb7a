# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What comes from outside, by hypothesis: any bytes, any text, any row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv import rpcenv_pb2
from libtorchbeast.rpcenv.addresses import MAX_PATH_BYTES, check_local, is_local, parse_addresses
from libtorchbeast.rpcenv.server import _last_lines
from libtorchbeast.rpcenv.wire import (
    DTYPES,
    StepEncoder,
    WrongActions,
    decode_actions,
    spec_to_message,
)
from libtorchbeast.spec import ROW_FIELDS, ROW_KEYS, Actions, Spec
from tests.support.client import decode, message_to_spec

# The same examples in every run, and no limit of time for one.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

numbers = st.integers(-(2**31), 2**31 - 1)
names = st.text(min_size=1, max_size=8).filter(lambda name: name not in ROW_KEYS)
numpy_dtypes = st.sampled_from([name for name in DTYPES if name != "bfloat16"])
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
leaves = st.dictionaries(names, st.tuples(shapes, numpy_dtypes), max_size=4)


def make_spec(num_envs=2, num_actions=3, observations=None):
    return Spec("Any-v0", num_envs, observations or {}, Actions("discrete", (num_actions,)), 4)


@given(
    st.binary(max_size=64)
    | st.lists(numbers, max_size=4).map(
        lambda actions: rpcenv_pb2.Action(actions=actions).SerializeToString()
    )
)
def test_any_bytes_are_actions_in_range_or_refused(request):
    try:
        actions = decode_actions(request, make_spec())
    except WrongActions as error:
        assert str(error).startswith("Actions: expected ")
    else:
        assert actions.shape == (2,) and actions.dtype == np.int64
        assert actions.tolist() == list(rpcenv_pb2.Action.FromString(request).actions)
        assert 0 <= actions.min() and actions.max() < 3


@settings(max_examples=30)
@given(leaves, st.integers(1, 200), st.randoms(use_true_random=False))
def test_any_row_of_any_spec_survives(observations, num_envs, random):
    spec = make_spec(num_envs, 3, observations)
    assert message_to_spec(spec_to_message(spec)) == spec
    rng = np.random.default_rng(random.randrange(2**32))
    make = lambda shape, dtype: rng.integers(0, 2, (num_envs, *shape)).astype(dtype)
    row = {name: make(*leaf) for name, leaf in observations.items()}
    for name, dtype in ROW_FIELDS.items():
        row[name] = make((), dtype)
    seen = decode(StepEncoder(spec)(row, 0.5), spec)
    for name, array in seen.items():
        np.testing.assert_array_equal(array, row[name], err_msg=name)


@given(st.text(max_size=40) | st.from_regex(r"[a-z\[\]:0-9.,/-]{0,30}", fullmatch=True))
def test_any_text_is_addresses_or_a_users_mistake(text):
    try:
        addresses = parse_addresses(text)
    except UserError as error:
        assert "expected" in str(error)
        return
    assert addresses and len(set(addresses)) == len(addresses)
    for address in addresses:
        assert parse_addresses(address) == [address]
        if address.startswith("unix:"):
            assert 0 < len(address.removeprefix("unix:").encode()) <= MAX_PATH_BYTES
            assert is_local(address)
        else:
            assert 1 <= int(address.rpartition(":")[2]) <= 65535
    if all(map(is_local, addresses)):
        check_local(addresses)
    else:
        with pytest.raises(UserError, match="--insecure"):
            check_local(addresses)


@given(st.text(max_size=3000))
def test_a_status_fits_and_is_the_end_of_the_text(text):
    kept = _last_lines(text)
    assert len(kept.encode()) <= 2000
    assert text.strip().endswith(kept)
