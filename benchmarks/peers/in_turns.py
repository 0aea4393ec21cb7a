# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Compares the steps per second of two training commands, which run in turns, each on all cores.

    PYTHONPATH=. .venv/bin/python benchmarks/peers/in_turns.py 6 25 "first command" "second command"

The numbers are those of pairs and of seconds that count, after a warm-up of 15. A command is run by
a shell, with a folder of its own for each turn in $SAVEDIR, where it has to write the file
`*/logs.csv` with the columns _time and step, a row every few seconds. SIGTERM ends it.
"""

import contextlib
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.against import interval, turns

WARM_UP_S, END_S = 15.0, 30.0


def speed(command: str, seconds: float) -> float:
    """Steps per second, from the rows of the log that were written in the seconds that count."""
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            command, shell=True, start_new_session=True, env=os.environ | {"SAVEDIR": folder},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        begin = time.time() + WARM_UP_S
        try:
            time.sleep(WARM_UP_S + seconds)
            logs = {path.resolve() for path in Path(folder).glob("*/logs.csv")}  # not `latest`
            if len(logs) != 1:
                sys.exit(f"expected one */logs.csv in $SAVEDIR, seen {len(logs)}: {command}")
            (log,) = logs
            table = csv.DictReader(log.read_text().removeprefix("# ").splitlines())
            rows = [(float(row["_time"]), float(row["step"])) for row in table if row["step"]]
        finally:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(END_S)
            finally:
                with contextlib.suppress(ProcessLookupError):  # none of its processes is left
                    os.killpg(child.pid, signal.SIGKILL)
    counted = [row for row in rows if row[0] >= begin]
    if not counted or counted[0][1] == counted[-1][1]:
        sys.exit(f"no steps in {seconds:g} s after a warm-up of {WARM_UP_S:g} s: {command}")
    (first, low), (last, high) = counted[0], counted[-1]
    return (high - low) / (last - first)


def main() -> None:
    if len(sys.argv) != 5 or int(sys.argv[1]) < 2:
        sys.exit("expected the number of pairs, at least 2, that of seconds, and two commands")
    pairs, seconds, first, second = sys.argv[1:]
    ratios = []
    for pair in turns(int(pairs)):
        speeds = {
            is_first: speed(first if is_first else second, float(seconds)) for is_first in pair
        }
        ratios.append(speeds[True] / speeds[False])
        print(f"{speeds[True]:.0f} and {speeds[False]:.0f} steps/s, ratio {ratios[-1]:.2f}")
    mean, low, high = interval(ratios)
    print(f"ratio {mean:.2f}, 95 % interval {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
