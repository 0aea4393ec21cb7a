# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Measures each part in its own processes, so that no part affects the next."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.catalogue import Part
from libtorchbeast import workers

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 300.0  # seconds in addition to those measured; only guards against a hang


class Child:
    """Runs `python -m benchmarks.parts FUNCTION ARGUMENTS` in the checkout `root`. A context
    manager, which ends it."""

    def __init__(self, part: Part, root: Path = ROOT):
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.parts", part.function, json.dumps(part.arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=root,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # respected by torch, NumPy and BLAS
        )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *exc_info) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def ask(self, seconds: float) -> None:
        with contextlib.suppress(BrokenPipeError):  # the child has ended; `answer` says why
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()

    def answer(self, seconds: float = 0.0) -> Any:
        """Returns the child's next answer. Never more than one is unread, so `select` cannot miss
        one that is in the buffer already.

        Raises:
            RuntimeError: the child has ended (the text is what it printed), or it takes too long.
        """
        if not select.select([self._process.stdout], [], [], seconds + PATIENCE)[0]:
            raise RuntimeError(f"no answer after {seconds + PATIENCE:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(self._errors.read().strip() or "it ended without an error")
        return json.loads(line)


def measure_part(part: Part, seconds: float) -> dict[str, float]:
    """Returns the part's figures. A `crowded` part is measured alone first and then with all cores
    busy, because cores that share caches or hyperthreads are slower when all of them are busy."""
    copies = workers.available_cores() if part.crowded else 1
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(part)) for _ in range(copies)]
        for child in children:
            child.answer()  # it says that it is ready, and then waits without using its core
        figures = together(children[:1], seconds)[0]
        if part.crowded:
            speeds = [answer["steps_per_second"] for answer in together(children, seconds)]
            figures["busy_steps_per_second"] = sum(speeds) / len(speeds)
    return figures


def measure_alone(part: Part, seconds: float, root: Path) -> dict[str, float]:
    """Returns the part's figures in the checkout `root`, without those with all cores busy."""
    with Child(part, root) as child:
        child.answer()
        return together([child], seconds)[0]


def together(children: list[Child], seconds: float) -> list[dict[str, float]]:
    for child in children:
        child.ask(seconds)
    return [child.answer(seconds) for child in children]
