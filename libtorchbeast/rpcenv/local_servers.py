# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environment servers that a learner starts on its own machine and that end with the learner."""

import contextlib
import io
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from typing import Any

from libtorchbeast import workers
from libtorchbeast.flags import Flags, UserError, to_json
from libtorchbeast.rpcenv import tls
from libtorchbeast.rpcenv.client import first_description

logger = logging.getLogger(__name__)

LEVELS = logging.getLevelNamesMapping()  # each line that the child logs begins with one of these
ERROR = "polybeast_env: error: "  # the last line of a child that fails begins with this


class LocalServers(contextlib.AbstractContextManager):
    """Runs polybeast_env.py as a child, with servers on Unix sockets.

    What the child prints goes to this process's log. The child gets its flags through a pipe, which
    is its standard input. The pipe closes when this process ends, even if it is killed, and then
    the child ends too.

    Args:
        flags: the learner's flags. The child takes those that it knows, except for those of
            addresses and TLS.
        updates: how many updates the run has made before. So a resumed run gets other seeds, and
            its environments do not begin with the same levels again.

    Attributes:
        addresses: one address for each server.
    """

    def __init__(self, flags: Flags, updates: int = 0):
        # The child makes this folder and removes it, because this process may be killed.
        parent = tempfile.gettempdir()  # or /tmp, if no socket can have an address in TMPDIR
        parent = "/tmp" if set(parent) & set(",%?#") or len(os.fsencode(parent)) > 70 else parent
        self._folder = f"{parent}/torchbeast-{secrets.token_hex(4)}"
        self.addresses = [f"unix:{self._folder}/server.{i}" for i in range(flags.num_servers)]
        self._error = ""
        self._process = workers.start_program("polybeast_env")
        places = {
            "server_addresses": ",".join(self.addresses),
            "until_stdin_closes": self._folder,
            "updates": updates,
        }
        without_tls = dict.fromkeys(tls.NAMES)  # Unix sockets use none
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._reader = threading.Thread(target=self._log_lines, name="local servers", daemon=True)
        self._reader.start()
        with contextlib.suppress(BrokenPipeError):  # if the child has ended, `check` says why
            self._stdin.write(to_json(vars(flags) | places | without_tls))
            self._stdin.flush()

    def __exit__(self, *exc_info) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=1.0)
        shutil.rmtree(self._folder, ignore_errors=True)  # the child may have been killed

    def describe(self, timeout: float) -> Any:
        """Waits until all servers serve, at most `timeout` seconds for each, and returns their
        description, which is the same for all. Raises UserError if a server has ended, and the
        errors of `first_description`."""
        for address in self.addresses:
            description = first_description([address], timeout, self.check)
        return description

    def check(self) -> None:
        """Raises UserError, with the reason, if the servers have ended."""
        if self._process.poll() is not None:
            self._reader.join(timeout=1.0)
            why = self._error or f"exit code {self._process.returncode}"
            raise UserError(f"the local environment servers ended: {why}")

    def _log_lines(self) -> None:
        level = logging.INFO
        # Environments may print anything, for example progress bars with carriage returns.
        with io.TextIOWrapper(self._stdout, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                line = line.rstrip()
                if line.startswith(ERROR):
                    self._error = line.removeprefix(ERROR)
                    continue
                first, _, rest = line.partition(" ")
                if first in LEVELS:  # other lines belong to the record before, as a traceback's do
                    level, line = LEVELS[first], rest
                logger.log(level, "%s", line)
