# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Addresses of environment servers, as gRPC writes them: `unix:/path`, `host:port`."""

import ipaddress
from collections import Counter
from collections.abc import Iterable

from libtorchbeast.flags import UserError

MAX_PATH_BYTES = 107  # of a Unix socket: sockaddr_un has 108, the last one is 0
FORMS = "unix:/path, host:port, host:first-last or [IPv6]:port"


def parse_addresses(text: str) -> list[str]:
    """Splits comma-separated addresses; a range of ports gives one address for each of its ports.
    Raises UserError, which says what was seen and what was expected."""
    addresses = [address for part in text.split(",") for address in _parse_one(part.strip())]
    for address, times in Counter(addresses).most_common(1):
        if times > 1:
            raise _wrong("each address once", f"{address} twice in {text!r}")
    return addresses


def is_local(address: str) -> bool:
    """Whether only this machine can reach the address: a Unix socket or a loopback address."""
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host's name
        return False


def check_local(addresses: Iterable[str]) -> None:
    """Raises UserError for the first address that other machines can reach."""
    for address in addresses:
        if not is_local(address):
            needs = "needs TLS (--tls_cert, --tls_key, --tls_ca) or --insecure"
            why = "without either, whoever reaches the connection can use and read it"
            raise UserError(f"{address} {needs}: {why}")


def _parse_one(address: str) -> list[str]:
    if address.startswith("unix:"):
        return [_checked_path(address)]
    host, colon, ports = address.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    if not colon or not host or not ports or (":" in host and not in_brackets):
        raise _wrong(FORMS, repr(address))
    if in_brackets:
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError as error:
            raise _wrong("[IPv6]:port", repr(address)) from error
    first, dash, last = ports.partition("-")
    low = _port(first, address)
    high = _port(last, address) if dash else low
    if high < low:
        raise _wrong("ports first-last in rising order", repr(address))
    return [f"{host}:{port}" for port in range(low, high + 1)]


def _checked_path(address: str) -> str:
    length = len(address.removeprefix("unix:").encode())
    if not 0 < length <= MAX_PATH_BYTES:
        raise _wrong(f"a path of 1 to {MAX_PATH_BYTES} bytes", f"{length} in {address!r}")
    if any(letter in address for letter in "%?#"):  # gRPC reads the address as a URI
        raise _wrong("a path without % ? #", repr(address))
    return address


def _port(text: str, address: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= 65535):
        raise _wrong("a port from 1 to 65535", f"{text!r} in {address!r}")
    return int(text)


def _wrong(expected: str, seen: str) -> UserError:
    return UserError(f"--server_addresses: expected {expected}, seen {seen}")
