# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Writes the files of a run and reads them back."""

import contextlib
import resource
from pathlib import Path

from libtorchbeast.loggers.csv_table import read_csv
from libtorchbeast.loggers.file_writer import FileWriter

FIELDS = ["step", "frame", "mean_game_return", "loss"]


def writer(savedir, xpid="run", flags=None, fields=FIELDS, resume_step=None):
    return FileWriter(Path(savedir, xpid), flags or {}, fields, resume_step)


def log_steps(savedir, steps, **kwargs):
    with writer(savedir, **kwargs) as files:
        for step in steps:
            files.log({"step": step, "frame": 4 * step, "loss": step / 10})


def column(path, name):
    return [row[name] for row in read_csv(path)[1]]


@contextlib.contextmanager
def file_size_limit(size):
    """Acts like a full disk: the kernel refuses to make a file larger than `size` bytes, also if
    root writes it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
