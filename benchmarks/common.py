# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What the benchmarks share."""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from libtorchbeast.file_writer import read_csv


def steps_per_second(step: Callable[[], int], seconds: float) -> float:
    """Calls `step`, which returns how many agent steps it made, for about `seconds`."""
    step()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        count += step()
    return count / (time.perf_counter() - start)


def measure_training(beast: str, arguments: list[str], seconds: float) -> float:
    """SPS between the first row of logs.csv with an update and the last one, of a real run."""
    with tempfile.TemporaryDirectory() as savedir:
        command = [sys.executable, "-m", beast, "--savedir", savedir, "--xpid", "benchmark",
                   "--disable_checkpoint", "--log_every", "1", *arguments]  # fmt: skip
        printed, logs = Path(savedir, "printed"), Path(savedir, "benchmark", "logs.csv")
        with printed.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)

        def rows() -> list[tuple[float, float]]:
            table = read_csv(logs)[1] if logs.exists() else []
            return [(float(r["_time"]), float(r["step"])) for r in table if float(r["step"]) > 0]

        try:
            while not (seen := rows()) or seen[-1][0] - seen[0][0] < seconds:
                if process.poll() is not None:
                    raise RuntimeError(f"{command} ended early:\n{printed.read_text()}")
                time.sleep(0.5)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    (start, first), (end, last) = seen[0], seen[-1]
    return (last - first) / (end - start)


def report(result: dict[str, Any]) -> None:
    """Prints the one JSON line, with what else it takes to compare it."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    more = {"machine": machine, "torch": torch.__version__, "commit": commit()}
    print(json.dumps(result | more))


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    return run.stdout.strip()
