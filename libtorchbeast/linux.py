# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What only Linux has. Other systems, such as macOS, go on without it (tests/linux_test.py)."""

import contextlib
import ctypes
import os
import platform
import tempfile
from pathlib import Path


def own_cores() -> list[int]:
    """The cores that this process may use: fewer than the machine's under taskset or Slurm."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def use_cores(cores: list[int]) -> None:
    """From now on this process uses these cores only."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def keep_freed_memory() -> None:
    """This process keeps the memory that it frees, so that the tensors of the next update lie in
    the pages of the last one. By default glibc returns large blocks to the kernel, which fills each
    page with zeros for the next use: a quarter of the learner's CPU time on MinAtar."""
    M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
    with contextlib.suppress(AttributeError):  # the C library has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, 1 << 30)  # bytes: less than this at a heap's end is kept
        # A smaller block lies on a heap. Older versions of glibc allow no more than 32 MiB.
        mallopt(M_MMAP_THRESHOLD, 1 << 30) or mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TOP_PAD, 64 << 20)  # the size of a thread's heap: an empty one is kept


def memory_file() -> int:
    """Returns the descriptor of empty memory, which the caller closes, or of an unlinked file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("torchbeast", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve(fd: int, size: int) -> None:
    """Gives a `memory_file` this many bytes. Raises OSError if there is no room for them."""
    os.ftruncate(fd, size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)


def bytes_of_container() -> list[int]:
    """One number, the bytes that this container can still reserve, or none if it has no limit."""
    with contextlib.suppress(OSError, ValueError, KeyError):  # no cgroup v2, or "max"
        cgroup = Path("/sys/fs/cgroup")
        limit, used = (int((cgroup / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        cache = int(stat["active_file"]) + int(stat["inactive_file"])  # freed when needed
        return [limit - used + cache]
    return []


def end_with_parent(number: int) -> None:
    """This process gets the signal when its parent ends, even if that is killed."""
    PR_SET_PDEATHSIG = 1
    with contextlib.suppress(AttributeError):  # the C library has no prctl
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def cpu_model() -> str:
    with contextlib.suppress(OSError, IndexError), open("/proc/cpuinfo") as file:
        return file.read().split("model name")[1].split("\n")[0].strip("\t: ")
    return platform.processor() or platform.machine()
