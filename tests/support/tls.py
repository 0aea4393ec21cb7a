# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The flags of TLS, and what both programs say of them."""

import polybeast
import polybeast_env
from libtorchbeast.flags import UserError


def flags_of(folder, name):
    return [
        "--tls_cert", f"{folder}/{name}.crt", "--tls_key", f"{folder}/{name}.key",
        "--tls_ca", f"{folder}/ca.crt",
    ]  # fmt: skip


def check(*words):
    """Both programs say the same."""
    said = set()
    for program in (polybeast_env, polybeast):
        flags = program.make_parser().parse_args(["--env", "Mock", *map(str, words)])
        try:
            program.check_flags(flags)
            said.add("")
        except UserError as error:
            said.add(str(error))
    (one,) = said
    return one
