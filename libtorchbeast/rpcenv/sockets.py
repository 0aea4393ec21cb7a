# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What the operating system says about addresses: private folders, locks, addresses in use."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from typing import BinaryIO

from libtorchbeast.flags import UserError

IN_USE = "address already in use, by a server that lives"
PROBE_TIMEOUT_S = 1.0


def private_folder() -> str:
    """/tmp/polybeast-UID, the folder for this user's sockets, which may not exist yet. It is not
    $XDG_RUNTIME_DIR, because that is removed when its user logs out, unlike a run under `nohup`."""
    return f"/tmp/polybeast-{os.getuid()}"


def make_private(folder: str) -> None:
    """Makes a folder that only this user may enter, or checks the one that is there. Raises
    UserError if it belongs to somebody else, or others may enter it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise UserError(
            f"{folder}: expected a folder of user {os.getuid()} that nobody else may enter, seen "
            f"{stat.filemode(seen.st_mode)} of user {seen.st_uid}; remove it"
        )


def check_owner(address: str) -> None:
    """Raises UserError if a Unix socket or its folder belongs to neither this user nor root."""
    path = address.removeprefix("unix:")
    for part in (os.path.dirname(path), path) if path != address else ():
        with contextlib.suppress(OSError):  # connecting tells it
            if (owner := os.stat(part).st_uid) not in (0, os.getuid()):
                expected = f"expected a server of user {os.getuid()} or of root"
                raise UserError(f"{address}: {expected}, seen {part} of user {owner}")


@contextlib.contextmanager
def claimed(address: str) -> Iterator[None]:
    """A context in which this process may listen on `address`. Raises UserError if it cannot, or
    somebody else does.

    gRPC does not check enough: it replaces the socket file of a living server, and of the addresses
    that a host's name has, one free address is enough for it. It does not give the operating
    system's reason either. If two servers start at once on a Unix socket that nobody uses yet, one
    of them is refused.
    """
    with contextlib.ExitStack() as stack:
        try:
            if address.startswith("unix:"):
                path = address.removeprefix("unix:")
                stack.enter_context(locked(path))
                _check_socket(path)
            else:
                _check_port(address)
        except (OSError, UnicodeError) as error:  # the latter for a name that no host can have
            why = IN_USE if isinstance(error, BlockingIOError) else error
            raise UserError(f"Cannot listen on {address}: {why}") from error
        yield


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """A context in which this process owns the socket at `path`, unless the process ends before.

    The lock is a locked file .NAME.lock beside the socket. A process that is killed leaves the
    file behind, but not the lock on it. Raises BlockingIOError if another living process owns the
    socket, and OSError if the file cannot be made.
    """
    folder, name = os.path.split(path)
    place = os.path.join(folder, f".{name}.lock")
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(place, flags, 0o600), "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(place, file):  # the owner before removed it before it was locked here
                continue
            owner = os.getpid()
            try:
                yield
            finally:
                with contextlib.suppress(FileNotFoundError):  # the folder was removed
                    if os.getpid() == owner:  # not a child's copy of this context
                        os.unlink(place)
            return


def _is_at(path: str, file: BinaryIO) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def _check_socket(path: str) -> None:
    """Raises BlockingIOError if a server listens there, and OSError if nobody can."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError as error:  # a dead server's, which gRPC replaces, or a file
            if not stat.S_ISSOCK(os.stat(path).st_mode):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from error
            return
    raise BlockingIOError


def _check_port(address: str) -> None:
    """Raises OSError if a process listens on the port, at any of the addresses that the host's name
    has, or if nobody can listen at any of them."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    errors = []
    for family, *_, where in found:
        try:
            socket.create_server(where[:2], family=family).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OSError("address already in use") from error
            errors.append(error)
    if len(errors) == len(found):
        raise errors[0]
