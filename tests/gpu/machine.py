# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The machine: its driver and speeds, the C++ extension built on it, and the tests that need it."""

import platform
import re
import shutil
import subprocess
import sys
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

from benchmarks import report
from libtorchbeast.accelerator import devices
from libtorchbeast.flags import UserError
from tests.faults.harness import Figure
from tests.gpu import timing
from tests.gpu.stages import ROOT, Answers

SMI = "name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu"


# ========================================================================================== machine
def machine(device: str, quick: bool) -> Answers:
    """What the machine is, and the speeds that bound all others."""
    there, start = torch.device(device), time.perf_counter()
    torch.ones(1, device=there).item()
    yield Figure("the device is opened in", time.perf_counter() - start, "s")
    yield (
        f"Python {platform.python_version()}, torch {torch.__version__}, CUDA "
        f"{torch.version.cuda}, HIP {torch.version.hip}; commit {report.commit() or 'unknown'}"
    )
    yield ", ".join(f"{name} {value}" for name, value in report.machine().items())
    if shutil.which("nvidia-smi"):
        words = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
        yield f"{SMI}: {printed_by(words)}"
    yield from bandwidths(there, 2**16 if quick else 2**28)
    yield from costs_of_a_call(there, 0.01 if quick else 1.0)
    yield matrix_product(there, 128 if quick else 8192)


def printed_by(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip()


def bandwidths(device: torch.device, size: int) -> Answers:
    pinned = devices.pins_memory(device.type)
    memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(1)
    pageable = torch.empty(size, dtype=torch.uint8).fill_(1)
    there, other = memory.to(device), memory.to(device)
    kind = "page-locked" if pinned else "pageable"
    copies = {
        f"to the device, {kind}": lambda: there.copy_(memory, non_blocking=True),
        "to the device, pageable": lambda: there.copy_(pageable),
        f"to the host, {kind}": lambda: memory.copy_(there, non_blocking=True),
        "within the device, read and written": lambda: other.copy_(there),
    }
    for name, copy in copies.items():

        def waited_for(copy=copy):  # page-locked memory must not change before the copy has ended
            copy()
            timing.wait_for(device)

        seconds = timing.seconds_of(waited_for, device, 0.3 if size > 2**20 else 0.0)
        yield Figure(f"copy {name}", size * (1 + ("within" in name)) / seconds / 1e9, "GB/s")


def costs_of_a_call(device: torch.device, seconds: float) -> Answers:
    """What Python and the driver need for a small kernel, and for a wait."""
    numbers = torch.zeros(8, device=device)
    launch = timing.seconds_of(lambda: numbers.add_(1), device, seconds)
    yield Figure("one small kernel after the other", 1e6 * launch, "us each")
    wait = timing.seconds_of(lambda: numbers.add_(1).sum().item(), device, seconds)
    yield Figure("two small kernels, and the host waits for the number", 1e6 * wait, "us")


def matrix_product(device: torch.device, n: int) -> Figure:
    a, b = (torch.randn(n, n).to(device).bfloat16() for _ in range(2))
    seconds = timing.seconds_of(lambda: a @ b, device, 0.5 if n > 1000 else 0.0)
    return Figure(f"product of {n} x {n} matrices in bf16", 2 * n**3 / seconds / 1e12, "TFLOP/s")


# ======================================================================================== extension
def extension(device: str, quick: bool) -> Answers:
    """Builds the C++ extension, without gRPC where there is none, and passes tensors through it."""
    if is_built():
        yield "The extension was built before."
    else:
        start = time.perf_counter()
        words = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        if not has_grpc():
            words.append("--without-grpc")
        subprocess.run(words, cwd=ROOT, check=True)
        yield Figure("the extension is built in", time.perf_counter() - start, "s")
    from libtorchbeast import _C, BatchingQueue

    there = torch.device(device)
    (outputs,) = devices.to_host({"action": torch.arange(6).to(there)})
    passes = _C.exchange(outputs["action"]).tolist() == [*range(6)]
    yield Figure("an answer of the device passes through the extension", int(passes), "", None, 1)
    queue = BatchingQueue(4, 4)
    for number in (1, 2):
        queue.enqueue({"reward": torch.full((3, 2), float(number))})
    batch = devices.to_device(queue.dequeue(), there)["reward"].sum().item()
    yield Figure("a batch comes to the device", int(batch == 18.0), "", None, 1)
    if not has_transport():
        yield "It was built without gRPC C++, so PolyBeast cannot run whole here."


def is_built() -> bool:
    """Whether this Python has the extension, and no source is newer."""
    built = Path(ROOT, "libtorchbeast", f"_C{EXTENSION_SUFFIXES[0]}")
    sources = Path(ROOT, "libtorchbeast/src").iterdir()
    return built.exists() and built.stat().st_mtime > max(s.stat().st_mtime for s in sources)


def has_grpc() -> bool:
    try:
        return subprocess.run(["pkg-config", "--exists", "grpc++"]).returncode == 0
    except OSError:  # there is no pkg-config
        return False


def has_transport() -> bool:
    """Whether the extension is there and was built with gRPC."""
    try:
        from libtorchbeast import StreamError, describe
    except UserError:
        return False
    try:
        describe("unix:/nowhere", 0.1)
    except StreamError as error:
        return "built without gRPC" not in str(error)
    return True


# ============================================================================================ tests
def tests(device: str, quick: bool) -> Answers:
    """Runs the tests that need a GPU (the mark `gpu`)."""
    every = Path(ROOT, "tests").glob("*_test.py")
    files = [path for path in every if "support.gpu import GPU" in path.read_text()]
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-o", "addopts=", "-rfEs", *files]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    last = done.stdout.strip().rpartition("\n")[2]
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error|skipped)", last)}
    yield from re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
    is_one = torch.device(device).type == "cuda"
    if not is_one:
        yield f"These tests need CUDA or ROCm, and skip {device}."
    yield Figure("tests passed", counts.get("passed", 0), "", None, 1 if is_one else None)
    failed = max(counts.get("failed", 0) + counts.get("error", 0), int(done.returncode > 1))
    yield Figure("tests failed", failed, "", 0)
    yield Figure("tests skipped", counts.get("skipped", 0), "", 0 if is_one else None)
