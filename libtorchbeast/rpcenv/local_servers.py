# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environment servers that a learner starts on its own machine, and that end with it."""

import argparse
import logging
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any

from libtorchbeast import workers
from libtorchbeast.flags import UserError
from libtorchbeast.rpcenv import tls
from libtorchbeast.rpcenv.client import first_description

logger = logging.getLogger(__name__)

# Flags that the child does not get: where it listens is given to it, and needs no TLS.
OTHERS = {"server_addresses", "pipes_basename", *tls.NAMES}

LEVELS = logging.getLevelNamesMapping()  # the first word of each line that the child logs
ERROR = "polybeast_env: error: "  # begins its last line if it fails


class LocalServers:
    """`python -m polybeast_env` as a child, with servers on Unix sockets. A context manager.

    What it prints goes to this process's log. Its standard input is a pipe that closes with this
    process, however that ends, and it ends with its standard input.

    Args:
        parser: polybeast_env's; the child gets what `flags` has for each of its flags.
    """

    def __init__(self, parser: argparse.ArgumentParser, flags: Any):
        # The child makes it, for nobody else to enter, and removes it: this process may be killed.
        self._folder = f"{tempfile.gettempdir()}/torchbeast-{secrets.token_hex(4)}"
        basename = flags.pipes_basename or f"unix:{self._folder}/server"
        self.addresses = [f"{basename}.{i}" for i in range(flags.num_servers)]
        self._error = ""
        command = [sys.executable, "-m", "polybeast_env", "--until_stdin_closes", self._folder]
        places = ["--server_addresses", ",".join(self.addresses)]
        self._process = subprocess.Popen(
            [*command, *_arguments(parser, flags), *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # environments may print what they like
            start_new_session=True,  # Ctrl-C is this process's: it ends them when it is done
            # Before it reads its standard input, while it imports.
            preexec_fn=lambda: workers.end_with_parent(signal.SIGTERM),
        )
        self._reader = threading.Thread(target=self._log_lines, name="local servers", daemon=True)
        self._reader.start()

    def __enter__(self) -> "LocalServers":
        return self

    def __exit__(self, *exc_info) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=1.0)
        shutil.rmtree(self._folder, ignore_errors=True)  # the child may have been killed

    def describe(self, timeout: float) -> Any:
        """What they have, once all of them serve. Raises like `first_description`, and `check`."""
        for address in self.addresses:
            description = first_description([address], timeout, self.check)
        return description

    def check(self) -> None:
        """Raises UserError if they have ended, which they should not: it says why."""
        if self._process.poll() is not None:
            self._reader.join(timeout=1.0)
            why = self._error or f"exit code {self._process.returncode}"
            raise UserError(f"the local environment servers ended: {why}")

    def _log_lines(self) -> None:
        level = logging.INFO
        for line in self._process.stdout:
            line = line.rstrip()
            if line.startswith(ERROR):
                self._error = line.removeprefix(ERROR)
                continue
            first, _, rest = line.partition(" ")
            if first in LEVELS:  # else a traceback's next line
                level, line = LEVELS[first], rest
            logger.log(level, "%s", line)


def _arguments(parser: argparse.ArgumentParser, flags: Any) -> list[str]:
    """The command line that says what `flags` has for the parser's flags."""
    words = []
    for action in parser._actions:
        value = getattr(flags, action.dest, None)
        if action.dest in OTHERS or value is None:
            continue
        if action.nargs == 0:  # a switch
            words += action.option_strings[:1] if value == action.const else []
        else:
            values = value if isinstance(value, list) else [value]
            words += [action.option_strings[0], *map(str, values)]
    return words
