# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""--autotune: finds the fastest settings by short runs on this machine and environment."""

import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from libtorchbeast import workers
from libtorchbeast.flags import Flags, UserError, to_json
from libtorchbeast.loggers.csv_table import read_csv
from libtorchbeast.loggers.display import say

GAIN = 1.03  # a setting must be faster by this factor, because a smaller gain may be noise
PATIENCE_S = 300.0  # longest time until a trial's first update, and longest time for its end

# The flags to try, in this order. A function of the flags so far gives the values worth trying.
Knobs = dict[str, Callable[[Flags], list[Any]]]
Settings = dict[str, Any]  # flags that differ from their defaults: name -> value


def tune(
    beast: str, given: Settings, make_flags: Callable[[Settings], Flags], knobs: Knobs
) -> Flags:
    """Tries the values of one knob after the other, starting from the fastest settings so far, and
    returns the flags of the fastest.

    Args:
        beast: the module to run.
        given: the flags that the user has given. They are not changed.
        make_flags: completes and checks the flags.

    Raises:
        UserError: a run with the given flags alone fails.
    """
    seconds = make_flags(given).autotune
    found: Settings = {}
    speed = first = _try(beast, given, found, seconds)
    if first == 0.0:
        raise UserError("--autotune: a run with these flags fails; see above")
    for name in [name for name in knobs if name not in given]:
        so_far, start = make_flags(given | found), dict(found)
        for value in knobs[name](so_far):
            if value == getattr(so_far, name):
                continue
            trial = start | {name: value}
            if (seen := _try(beast, given, trial, seconds)) > GAIN * speed:
                speed, found = seen, trial
    gain = f"{speed / first:.2f} x the speed of the given flags"
    say(f"autotune: fastest: {as_words(found) or 'the given flags'} ({gain})")
    return make_flags(given | found | {"autotune": None})


def worker_counts(flags: Flags) -> list[int]:
    """The numbers of workers that are worth trying on this machine."""
    cores = workers.available_cores()
    return sorted({1, max(1, cores // 2), max(1, cores - 1), cores})


def around(value: int) -> list[int]:
    """The batch sizes that are worth trying instead of `value`."""
    return sorted({max(1, value // 2), 2 * value, 4 * value})


def as_words(settings: Settings) -> str:
    """The settings as one types them on a command line."""
    return " ".join(f"--{name} {value}" for name, value in settings.items())


def _try(beast: str, given: Settings, found: Settings, seconds: float) -> float:
    """Prints and returns the steps per second of a run with these settings, or 0 if it fails."""
    prefix = "torchbeast-autotune-"
    raises = workers.stop_signals_call(signal.default_int_handler)  # KeyboardInterrupt
    with raises, tempfile.TemporaryDirectory(prefix=prefix) as folder:  # so this is removed
        try:
            speed = measure(beast, given | found, seconds, Path(folder))
            said = f"{speed:,.0f} steps/s"
        except RuntimeError as error:
            speed, said = 0.0, f"fails: {str(error).splitlines()[-1]}"
    say(f"autotune: {as_words(found) or 'the given flags'}: {said}")
    return speed


def measure(beast: str, settings: Settings, seconds: float, folder: Path) -> float:
    """Agent steps per second of a run, measured for `seconds` from its first update on. Raises
    RuntimeError if the run ended too early or made no update. The text is what it printed."""
    settings = settings | {
        "savedir": str(folder),
        "xpid": "trial",
        "autotune": None,
        "init_from": None,
        "disable_checkpoint": True,
        "log_every": 0.5,
        "eval_every": 0,
        "total_steps": 10**12,
    }
    printed = folder / "printed"
    with printed.open("w") as file:
        not_logged = {"WANDB_MODE": "disabled"}  # trials are not runs to keep
        process = workers.start_program(beast, not_logged, stdout=file, stderr=file)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it may have ended already
            process.stdin.write(to_json(settings))
        return _watch(process, folder / "trial" / "logs.csv", seconds)
    except TimeoutError as error:
        raise RuntimeError(f"{as_words(settings)}:\n{printed.read_text().strip()}") from error
    finally:
        _end(process)


def _watch(process: subprocess.Popen, logs: Path, seconds: float) -> float:
    """Waits for a row of the log that is `seconds` later than the first row with an update, and
    returns the steps per second between these two. Raises TimeoutError if the process has ended, or
    takes too long."""
    deadline = time.monotonic() + seconds + PATIENCE_S
    while True:
        rows = read_csv(logs)[1] if logs.exists() else []
        seen = [(float(r["_time"]), float(r["step"])) for r in rows if float(r["step"]) > 0]
        if seen and seen[-1][0] - seen[0][0] >= seconds:
            (start, first), (end, last) = seen[0], seen[-1]
            return (last - first) / (end - start)
        if process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.2)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its children end with it
        process.wait()
