# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Unix sockets: where they lie, and who may listen on one."""

import contextlib
import fcntl
import os
import stat

from libtorchbeast.flags import UserError


def private_folder() -> str:
    """/tmp/polybeast-UID: for sockets of this user, who alone may enter. It may not exist yet.

    Not $XDG_RUNTIME_DIR, because that goes when its user logs out, which `nohup` survives.
    """
    return f"/tmp/polybeast-{os.getuid()}"


def make_private(folder: str) -> None:
    """Raises UserError if there is one that somebody else made, or may enter."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise UserError(
            f"{folder}: expected a folder of user {os.getuid()} that nobody else may enter, seen "
            f"{stat.filemode(seen.st_mode)} of user {seen.st_uid}; remove it, or give another "
            "--pipes_basename"
        )


class SocketLock:
    """Owns the socket at `path` for this process until `release`, or until the process ends,
    however it does: a locked file .NAME.lock beside it, which only a killed process leaves.

    Raises:
        BlockingIOError: another living process owns it.
        OSError: the file cannot be made.
    """

    def __init__(self, path: str):
        folder, name = os.path.split(path)
        self._path = os.path.join(folder, f".{name}.lock")
        while not self._try():
            pass

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # the folder has gone
            os.unlink(self._path)
        os.close(self._file)

    def _try(self) -> bool:
        """False if the owner before was just removing the file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o600)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(self._path)):
                    self._file = file
                    stack.pop_all()
                    return True
        return False
