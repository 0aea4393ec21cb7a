# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The flags of TLS, and what both programs say about them."""

import polybeast
import polybeast_env
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv.tls import load_tls


def flags_of(folder, name):
    return [
        "--tls_cert", f"{folder}/{name}.crt", "--tls_key", f"{folder}/{name}.key",
        "--tls_ca", f"{folder}/ca.crt",
    ]  # fmt: skip


def check(*words):
    """Returns the error that both programs raise for these flags, after checking that it is one."""
    said = set()
    for program in (polybeast_env, polybeast):
        try:
            load_tls(program.parse(["--env", "CartPole-v1", *map(str, words)]))
            said.add("")
        except UserError as error:
            said.add(str(error))
    (one,) = said
    return one
