# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Runs commands beside each other, each on one core, and prints the most memory that each held.

    python benchmarks/peers/beside.py 30 "first command" "second command"

The number is that of minutes, after which SIGTERM ends the commands. The memory is the sum of the
proportional set sizes (PSS) of a command's processes, which counts shared pages once. It is
measured every ten seconds.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time

import psutil


def memory(process: subprocess.Popen) -> int:
    """Bytes of the process and its descendants."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        own = psutil.Process(process.pid)
        for each in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_full_info().pss
    return total


def main() -> None:
    minutes, commands = float(sys.argv[1]), sys.argv[2:]
    cores = sorted(os.sched_getaffinity(0))
    if len(commands) > len(cores):
        sys.exit(f"expected at most {len(cores)} commands, one for each core, seen {len(commands)}")
    children = [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *shlex.split(command)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        for core, command in zip(cores, commands, strict=False)
    ]
    most, end = [0] * len(children), time.monotonic() + 60 * minutes
    try:
        while time.monotonic() < end and any(child.poll() is None for child in children):
            most = [max(pair) for pair in zip(most, map(memory, children), strict=True)]
            time.sleep(10)
    finally:  # also after Ctrl-C
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
    for child, command, size in zip(children, commands, most, strict=True):
        print(f"{size / 2**20:.0f} MiB, exit code {child.wait()}: {command}")


if __name__ == "__main__":
    main()
