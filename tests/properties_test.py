# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What comes from outside, by hypothesis: any bytes, any text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv import rpcenv_pb2
from libtorchbeast.rpcenv.addresses import MAX_PATH_BYTES, check_local, is_local, parse_addresses
from libtorchbeast.rpcenv.wire import WrongActions, decode_actions
from libtorchbeast.spec import Actions, Spec

# The same examples in every run, and no limit of time for one.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

numbers = st.integers(-(2**31), 2**31 - 1)
SPEC = Spec("Any-v0", 2, {}, Actions("discrete", (3,)), 4)


@given(
    st.binary(max_size=64)
    | st.lists(numbers, max_size=4).map(
        lambda actions: rpcenv_pb2.Action(actions=actions).SerializeToString()
    )
)
def test_any_bytes_are_actions_in_range_or_refused(request):
    try:
        actions = decode_actions(request, SPEC)
    except WrongActions as error:
        assert str(error).startswith("Actions: expected ")
    else:
        assert actions.shape == (2,) and actions.dtype == np.int64
        assert actions.tolist() == list(rpcenv_pb2.Action.FromString(request).actions)
        assert 0 <= actions.min() and actions.max() < 3


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
