# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The processor time of a program and of everything that it started."""

import contextlib

import psutil


class CpuTime:
    """Sums user and system seconds over a tree of processes. The difference of two calls of
    `seconds` is what was used between them; calls between these two catch what had ended by then,
    up to its last sample."""

    def __init__(self, pid: int):
        self._root = psutil.Process(pid)
        self._samples: dict[psutil.Process, float] = {}

    def seconds(self) -> float:
        tree = {self._root, *self._samples}
        with contextlib.suppress(psutil.NoSuchProcess):
            tree.update(self._root.children(recursive=True))
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running():  # and its id is not another's by now
                    times = process.cpu_times()
                    self._samples[process] = times.user + times.system
        return sum(self._samples.values())
