# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The learner's search for its servers."""

import contextlib
import socket

import pytest

import libtorchbeast
from libtorchbeast.rpcenv.client import ServersLost, first_description


def test_silent_addresses_do_not_stretch_the_timeout(tmp_path):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in silent]
        asked = []
        with pytest.MonkeyPatch.context() as patch:
            describe = libtorchbeast.describe
            watch = lambda address, timeout, _: asked.append(timeout) or describe(address, timeout)
            patch.setattr(libtorchbeast, "describe", watch)
            with pytest.raises(ServersLost, match="no environment server for 1 s"):
                first_description(addresses, 1.0)
    assert asked[0] <= 1.0 and sum(asked) <= 1.0 + 0.1 * len(asked)
