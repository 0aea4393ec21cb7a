# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import re

import pytest

from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv.addresses import MAX_PATH_BYTES, check_local, is_local, parse_addresses


@pytest.mark.parametrize(
    "text, expected",
    [
        ("unix:/tmp/a, unix:/tmp/b", ["unix:/tmp/a", "unix:/tmp/b"]),
        ("localhost:1,a:7-7", ["localhost:1", "a:7"]),
        ("node-7:5000-5002", ["node-7:5000", "node-7:5001", "node-7:5002"]),
        ("[::1]:5-6,unix:x", ["[::1]:5", "[::1]:6", "unix:x"]),
        ("unix:" + "é" * 53 + "x", ["unix:" + "é" * 53 + "x"]),
    ],
)
def test_parses(text, expected):
    assert parse_addresses(text) == expected


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "expected unix:/path, host:port, .*, seen ''"),
        (":5000", "seen ':5000'"),
        ("::1:5000", "seen '::1:5000'"),
        ("[::g]:5000", r"expected \[IPv6\]:port, seen '\[::g\]:5000'"),
        ("a:0", "^--server_addresses: expected a port from 1 to 65535, seen '0' in 'a:0'$"),
        ("a:http", "expected a port from 1 to 65535, seen 'http'"),
        ("a:" + "7" * 5000, "expected a port from 1 to 65535, seen '7777"),
        ("a:7-65536", "expected a port from 1 to 65535, seen '65536' in 'a:7-65536'"),
        ("a:7-7,b:6-5", "in rising order, seen 'b:6-5'"),
        ("a:5-7,a:6", "seen a:6 twice"),
        ("unix:", f"a path of 1 to {MAX_PATH_BYTES} bytes, seen 0"),
        ("unix:/a%41", "a path without % [?] #, seen 'unix:/a%41'"),
        ("unix:" + "é" * 54, f"a path of 1 to {MAX_PATH_BYTES} bytes, seen 108"),
    ],
)
def test_refuses(text, message):
    with pytest.raises(UserError, match=message):
        parse_addresses(text)


LOCAL = ["unix:/tmp/a", "localhost:1", "127.0.0.1:1", "127.3.2.1:1", "[::1]:1"]
REMOTE = ["0.0.0.0:1", "10.0.0.1:1", "node:1", "[::]:1", "[fe80::1]:1", "localhost.evil.org:1"]


def test_what_other_machines_can_reach_is_named():
    assert [a for a in LOCAL + REMOTE if is_local(a)] == LOCAL
    check_local(LOCAL)
    for address in REMOTE:
        needs = f"{address} needs TLS (--tls_cert, --tls_key, --tls_ca) or"
        with pytest.raises(UserError, match=f"^{re.escape(needs)}"):
            check_local([*LOCAL, address, "another:1"])
