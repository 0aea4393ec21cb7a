# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What tests of memory shared with a child process need."""

import os

GUARD = 200.0  # seconds; against a hang only
MOST = 2  # descriptors of one memory: its own, and the one that Python's mmap keeps for itself


def memories():
    """How many descriptors of shared memory this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:torchbeast" in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own descriptor
            pass
    return count


def receive(process):
    assert process.from_child.poll(GUARD), f"{process.name} says nothing"
    message = process.receive()
    assert message is not None, f"{process.name} is dead"
    assert not message.startswith(process.FAILURE), message.decode()
    return message
