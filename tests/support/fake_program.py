# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A program that trains nothing, but leaves a run's files as a beast does, within milliseconds.

It adds a line to the file `counted` for each step, so that a test sees steps that are lost or made
twice. With --fail_at it fails when it comes to that step for the first time.
"""

import argparse
import io
import json
import os
import signal
import struct
import time
import zipfile
from pathlib import Path

from libtorchbeast.loggers.csv_table import CsvTable
from libtorchbeast.loggers.files import hold, write_whole

STEP_S = 0.01


# What torch.save writes of {"step": NUMBER}, before and after the number's four bytes.
BEFORE, AFTER = b"\x80\x02}X\x04\0\0\0stepJ", b"s."


def save(checkpoint, step):
    """Writes what torch.save would, without the seconds that torch's import takes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("model/data.pkl", BEFORE + struct.pack("<i", step) + AFTER)
        archive.writestr("model/version", "3\n")
    write_whole(checkpoint, buffer.getvalue())


def saved(checkpoint):
    with zipfile.ZipFile(checkpoint) as archive:
        return struct.unpack_from("<i", archive.read("model/data.pkl"), len(BEFORE))[0]


def train(flags, path, stopped):
    write_whole(path / "meta.json", json.dumps({"flags": vars(flags), "resumed": []}))
    checkpoint = path / "model.tar"
    step = saved(checkpoint) if checkpoint.exists() else 0
    table = CsvTable(path / "logs.csv", ["step", "frame", "hours", "mean_game_return"], step)
    while step < flags.total_steps and not stopped:
        time.sleep(STEP_S)
        step += 1
        if step == flags.fail_at and not (path / "failed").exists():
            (path / "failed").touch()
            raise RuntimeError(f"fails at step {step}")
        score = flags.seed + 1000 * flags.learning_rate * step / flags.total_steps
        row = {"step": step, "frame": step, "hours": step / 100, "mean_game_return": score}
        save(checkpoint, step)
        table.append(row)
        with open(path / "counted", "a") as counted:
            counted.write(f"{step}\n")


def main():
    parser = argparse.ArgumentParser()
    for name in ("savedir", "xpid"):
        parser.add_argument(f"--{name}")
    for name, value in dict(seed=0, learning_rate=0.1, total_steps=5, fail_at=-1).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--use_lstm", action="store_true")
    flags = parser.parse_args()
    stopped = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    print(f"cores {sorted(os.sched_getaffinity(0))}, GPUs {os.environ['CUDA_VISIBLE_DEVICES']}")
    path = Path(flags.savedir) / flags.xpid
    with hold(path):
        train(flags, path, stopped)


if __name__ == "__main__":
    main()
