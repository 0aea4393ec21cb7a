# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""--autotune: settings found by trying them, as real runs on this machine and environment."""

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from libtorchbeast import workers
from libtorchbeast.flags import UserError, shell_line
from libtorchbeast.loggers.csv_table import read_csv
from libtorchbeast.loggers.display import console

GAIN = 1.03  # what is less faster than this may be noise, and keeps what was
PATIENCE_S = 300.0  # that a trial may take besides, to its first update and to its end

# Flags to try, in this order, each with the values worth trying given the flags so far.
Knobs = dict[str, Callable[[argparse.Namespace], list[Any]]]


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--autotune", type=float, nargs="?", const=10.0, metavar="SECONDS",
        help="Before training try other numbers of workers and batch sizes, each for as long "
             "(10 if not given); print the fastest as a command line, and go on with it.",
    )  # fmt: skip


def tune(
    beast: str, argv: list[str], parse: Callable[[list[str]], argparse.Namespace], knobs: Knobs
) -> list[str]:
    """Returns the command line without --autotune and with the fastest settings found.

    Flags that `argv` gives stay as they are. One knob is turned after the other, from what was best
    so far.

    Args:
        beast: the module to run.
        parse: makes checked flags of a command line.

    Raises:
        UserError: a flag is wrong, or not even the settings given do run.
    """
    seconds = parse(argv).autotune
    given = {word.partition("=")[0] for word in argv}
    best = _without_autotune(argv)
    speed = first = _try(beast, best, [], seconds)
    if first == 0.0:
        raise UserError(f"--autotune: {shell_line(beast, best)} does not run; see above")
    for name, values in knobs.items():
        if f"--{name}" in given:
            continue
        so_far, settings = parse(best), best
        for value in values(so_far):
            if value == getattr(so_far, name):
                continue
            change = [f"--{name}", str(value)]
            if (seen := _try(beast, settings, change, seconds)) > GAIN * speed:
                speed, best = seen, [*settings, *change]
    console.print(
        f"autotune: fastest, {speed / first:.2f} x the start: {shell_line(beast, best)}",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
    return best


def worker_counts(flags: argparse.Namespace) -> list[int]:
    cores = workers.available_cores()
    return sorted({1, max(1, cores // 2), max(1, cores - 1), cores})


def around(value: int) -> list[int]:
    """Batch sizes worth trying instead of `value`."""
    return sorted({max(1, value // 2), 2 * value, 4 * value})


def _try(beast: str, argv: list[str], change: list[str], seconds: float) -> float:
    """Steps per second of a run with these settings, 0 if it fails; says either."""
    prefix = "torchbeast-autotune-"
    with _signals_raise(), tempfile.TemporaryDirectory(prefix=prefix) as folder:
        try:
            speed = measure(beast, [*argv, *change], seconds, Path(folder))
            said = f"{speed:,.0f} steps/s"
        except RuntimeError as error:
            speed, said = 0.0, f"does not run: {str(error).splitlines()[-1]}"
    shown = shlex.join(change) or "as given"
    console.print(f"autotune: {shown}: {said}", soft_wrap=True, highlight=False)
    return speed


@contextlib.contextmanager
def _signals_raise():
    """A signal to stop raises KeyboardInterrupt: the trial's folder goes before this process."""
    numbers = workers.stop_signals()
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def measure(beast: str, argv: list[str], seconds: float, folder: Path) -> float:
    """Steps per second of a real run, from its first update on, for `seconds`.

    Raises:
        RuntimeError: it ended by itself, or came to no update; with what it printed.
    """
    command = [sys.executable, "-m", beast, *argv, "--savedir", str(folder), "--xpid", "trial",
               "--disable_checkpoint", "--log_every", "0.5", "--eval_every", "0",
               "--total_steps", "1_000_000_000_000"]  # fmt: skip
    logs, printed = folder / "trial" / "logs.csv", folder / "printed"

    def learned() -> list[tuple[float, float]]:
        rows = read_csv(logs)[1] if logs.exists() else []
        return [(float(r["_time"]), float(r["step"])) for r in rows if float(r["step"]) > 0]

    with printed.open("w") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            env=os.environ | {"WANDB_MODE": "disabled"},  # a trial is no run to keep
            start_new_session=True,  # Ctrl-C is this process's
            preexec_fn=lambda: workers.end_with_parent(signal.SIGTERM),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + seconds + PATIENCE_S
        while not (seen := learned()) or seen[-1][0] - seen[0][0] < seconds:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{shlex.join(command)}:\n{printed.read_text().strip()}")
            time.sleep(0.2)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()  # what it started ends with it
            process.wait()
    (start, first), (end, last) = seen[0], seen[-1]
    return (last - first) / (end - start)


def _without_autotune(argv: list[str]) -> list[str]:
    """The command line as it was given, but for this flag."""
    rest, words = [], iter([*argv, ""])
    for word in words:
        if word == "--autotune":
            word = next(words)
            if _is_number(word):
                continue
        if not word.startswith("--autotune="):
            rest.append(word)
    return rest[:-1] if rest[-1:] == [""] else rest


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
