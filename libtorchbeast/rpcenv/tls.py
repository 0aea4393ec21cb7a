# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""TLS between a learner and servers on other machines. Each side checks the other's certificate.

libtorchbeast/tools/certificates.py makes the files.
"""

import argparse
import os
import ssl
from typing import Any, NamedTuple

import grpc

from libtorchbeast.flags import Flags, UserError, require

NAMES = ("tls_cert", "tls_key", "tls_ca")


class Tls(NamedTuple):
    """This side's certificate and key, and the authority that it trusts, as texts of PEM files."""

    cert: bytes
    key: bytes
    ca: bytes

    def __repr__(self) -> str:  # so that no log and no traceback shows the key
        return "Tls(...)"


def uses_tls(flags: argparse.Namespace) -> bool:
    """Whether the flags of TLS are given. Raises UserError if only some of them are, or --insecure
    besides."""
    given = [name for name in NAMES if getattr(flags, name) is not None]
    if not given:
        return False
    for name in NAMES:
        require(flags, name, name in given, f"a PEM file, because --{given[0]} is given")
    require(flags, "insecure", not flags.insecure, f"to be left out with --{given[0]}")
    return True


def load_tls(flags: Flags) -> Tls | None:
    """Reads and checks the files of --tls_cert, --tls_key and --tls_ca. None without these flags.
    Raises UserError, which names the flag and the file."""
    if not uses_tls(flags):
        return None
    texts = Tls(*(_read(flags, name) for name in NAMES))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in ("tls_cert", "tls_ca"):
        try:
            context.load_verify_locations(getattr(flags, name))
        except ssl.SSLError:
            require(flags, name, False, "certificates in PEM form")
    refuse: Any = lambda: require(flags, "tls_key", False, "a key without a passphrase")
    try:
        context.load_cert_chain(flags.tls_cert, flags.tls_key, refuse)
    except ssl.SSLError as error:
        is_other = error.reason == "KEY_VALUES_MISMATCH"
        expected = f"the key of --tls_cert {flags.tls_cert}" if is_other else "a key in PEM form"
        require(flags, "tls_key", False, expected)
    return texts


def add_port(server: grpc.Server, address: str, tls: Tls | None) -> None:
    """Makes the server listen on `address`, with TLS if `tls` is given and it is no Unix socket.
    Raises UserError if nobody can listen there."""
    umask = os.umask(0o077)  # only this user may connect to a Unix socket
    try:
        if tls is None or address.startswith("unix:"):
            server.add_insecure_port(address)
        else:
            pair = [(tls.key, tls.cert)]
            credentials = grpc.ssl_server_credentials(pair, tls.ca, require_client_auth=True)
            server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise UserError(f"Cannot listen on {address}: {error}") from error
    finally:
        os.umask(umask)


def _read(flags: Flags, name: str) -> bytes:
    path = getattr(flags, name)
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"--{name} {path}: {error.strerror}") from error
