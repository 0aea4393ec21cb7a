# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Stages that go wrong, for the tests of `make gpu`. They need nothing but Python."""

import subprocess
import sys
import threading

from tests.faults.harness import Figure


def hangs(device, quick):
    """Starts a process that nobody ends, says its number, and waits for ever."""
    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    print("it hangs now", flush=True)
    yield Figure("the child's number", child.pid)
    threading.Event().wait()


def fails(device, quick):
    yield f"It runs on {device}."
    raise RuntimeError("the driver does not answer")


def is_wrong(device, quick):
    print("the first of many lines", *range(100), sep="\n")
    yield Figure("error", 0.5, "m", 0.1)


def is_well(device, quick):
    yield Figure("speed", 5.0, "m/s")
