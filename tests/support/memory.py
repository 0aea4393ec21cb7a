# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Helpers for tests of memory that is shared with a child process."""

import os

GUARD = 200.0  # seconds; only guards against a hang
MOST = 2  # descriptors of one memory: its own, and the duplicate that Python's mmap keeps


def memories():
    """The number of descriptors of shared memory that this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:torchbeast" in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing is closed already
            pass
    return count


def receive(process):
    assert process.from_child.poll(GUARD), f"{process.name} sends nothing"
    message = process.receive()
    assert message is not None, f"{process.name} has ended"
    assert not message.startswith(process.FAILURE), message.decode()
    return message
