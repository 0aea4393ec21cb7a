# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The stages of `make gpu`, each in a process of its own, which is killed if it takes too long.

    python -m tests.gpu.stages tests.gpu.parity.parity '{"device": "cuda"}'

A stage is a function (device, quick) that yields Figures, and sentences for the report. `quick` is
for tests: it does everything once, with small sizes, and its speeds mean nothing. This module
imports no package that may be missing on the machine, because it says what is missing.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.harness import Figure

ROOT = Path(__file__).resolve().parents[2]
Answers = Iterator[Figure | str]
Answer = dict[str, Any]  # {"say": sentence}, or a Figure's fields and "held"

PROGRAMS = "gymnasium ale_py cv2 grpc_health rich psutil"  # the packages that both beasts import
NAMES = {
    "ale_py": "ale-py",
    "cv2": "opencv-python-headless",
    "grpc_health": "grpcio-health-checking",
}


class Stage(NamedTuple):
    name: str
    limit: float  # in seconds
    function: str  # MODULE.FUNCTION
    needs: str = PROGRAMS  # the packages without which it cannot run


# In the order of their importance: if time runs out, the last are not run. The limits are about
# twice what a stage took beside an H200, on 16 cores (results/gpu).
STAGES = [
    Stage("machine", 60, "tests.gpu.machine.machine", "psutil rich"),
    Stage("extension", 100, "tests.gpu.machine.extension", "psutil rich pybind11 setuptools"),
    Stage("parity", 60, "tests.gpu.parity.parity"),
    Stage("budgets", 60, "tests.gpu.order.budgets"),
    Stage("races", 90, "tests.gpu.order.races", f"{PROGRAMS} pytest"),
    Stage("drills", 120, "tests.gpu.drills.drills"),
    Stage("tests", 120, "tests.gpu.machine.tests", f"{PROGRAMS} pytest"),
    Stage("graphs", 60, "tests.gpu.parity.graphs"),
    Stage("parts", 90, "tests.gpu.speed.parts"),
    Stage("beasts", 300, "tests.gpu.speed.beasts"),
    Stage("learning", 200, "tests.gpu.learning.learning"),
    Stage("tensors", 200, "tests.gpu.tensors.tensors"),
]


def missing(stage: Stage) -> list[str]:
    """The packages that the stage needs and this Python does not have, as pip names them."""
    needed = ["torch", *stage.needs.split()]
    return [NAMES.get(name, name) for name in needed if importlib.util.find_spec(name) is None]


# ============================================================================== one stage, outside
def run(
    stage: Stage, options: Answer, seconds: float, heard: Callable[[Answer], None], log: Path
) -> dict[str, str]:
    """Runs the stage in a new process group, which is killed after `seconds` and also at its end.

    Args:
        options: device and quick.
        heard: gets each answer as soon as it is there.
        log: the file for what the stage prints.

    Returns:
        `error`, and `printed`, the end of what the stage printed; nothing if it ended well.
    """
    words, too_long = [sys.executable, "-m", __spec__.name, stage.function], threading.Event()
    with log.open("w+b") as printed:
        process = subprocess.Popen(
            [*words, json.dumps(options)], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=printed, start_new_session=True,
        )  # fmt: skip

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(seconds, lambda: (too_long.set(), kill()))
        timer.start()
        try:
            for answer in map(json.loads, process.stdout):
                heard(answer)
            code = process.wait()
        finally:
            timer.cancel()
            kill()
            process.wait()
            process.stdout.close()
        if not code:
            return {}
        printed.seek(0)
        text = printed.read().decode(errors="replace").strip().splitlines()
    killed = f"it was killed after {seconds:.0f} s"
    error = killed if too_long.is_set() else f"it ended with exit code {code}"
    return {"error": error, "printed": "\n".join(text[-15:])}


# =============================================================================== one stage, inside
@contextlib.contextmanager
def prepared(device: str) -> Iterator[None]:
    """The simulated device, if it is asked for."""
    if not device.startswith("sim"):
        yield
        return
    from tests.support import simulated_device as sim

    if not sim.is_possible:
        sys.exit(f"the simulated device needs torch {sim.TORCH}")
    with sim.installed():
        yield


def main() -> None:
    # Standard output carries only the answers. Everything else that is printed goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, name = sys.argv[1].rpartition(".")
    function, options = getattr(importlib.import_module(module), name), json.loads(sys.argv[2])
    with prepared(options["device"]):
        for answer in function(options["device"], options.get("quick", False)):
            if isinstance(answer, Figure):
                answer = answer._asdict() | {"held": answer.is_held()}
            print(json.dumps({"say": answer} if isinstance(answer, str) else answer), file=answers)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.exit(1)
