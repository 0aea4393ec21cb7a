# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Where a run's numbers go besides logs.csv: TensorBoard, and Weights & Biases if asked for."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from libtorchbeast.flags import UserError

logger = logging.getLogger(__name__)

PROJECT = "torchbeast"  # of Weights & Biases
HEADLINE = "mean_game_return"  # what TensorBoard's table of hyperparameters shows beside them
BINS = 64  # of a histogram

Counts = dict[float, int]  # how often each value was


class Tracker(Protocol):
    def log(self, row: dict[str, float], histograms: dict[str, Counts]) -> None:
        """Adds the numbers of a row, `step` among them, and histograms, none of them empty.

        Raises:
            OSError: they cannot be written.
        """

    def close(self) -> None: ...


def open_trackers(
    path: Path, xpid: str, flags: dict[str, Any], started: str, purge_step: int | None
) -> list[Tracker]:
    """Those that are installed and asked for.

    Args:
        path: the run's folder.
        started: when the run began; with `xpid` it names the run, also after a resume.
        purge_step: older events from this step on are hidden; None: there are none.

    Raises:
        UserError: --wandb cannot be had.
    """
    trackers: list[Tracker] = []
    try:
        trackers.append(TensorBoard(path, flags, purge_step))
    except ImportError as error:
        logger.warning("No TensorBoard events, its package is not usable: %s", error)
    if flags.get("wandb"):
        trackers.append(WeightsAndBiases(path, xpid, flags, started))
    return trackers


def histogram(counts: Counts) -> tuple[np.ndarray, np.ndarray]:
    """How many lie between one edge and the next, [BINS], and the edges, [BINS + 1]."""
    return np.histogram(list(counts), BINS, weights=list(counts.values()))


class TensorBoard:
    def __init__(self, path: Path, flags: dict[str, Any], purge_step: int | None):
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._writer = SummaryWriter(str(path), purge_step=purge_step, flush_secs=30)
        plain = {k: v if isinstance(v, int | float) else str(v) for k, v in flags.items()}
        for summary in hparams(plain, {HEADLINE: None}):
            self._writer.file_writer.add_summary(summary)

    def log(self, row: dict[str, float], histograms: dict[str, Counts]) -> None:
        step = int(row["step"])
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, step)
        for name, counts in histograms.items():
            values, times = np.array(list(counts)), np.array(list(counts.values()))
            heights, edges = histogram(counts)
            self._writer.add_histogram_raw(
                name, values.min(), values.max(), times.sum(), times @ values, times @ values**2,
                edges[1:].tolist(), heights.tolist(), step,
            )  # fmt: skip

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Has settings of its own in environment variables, such as WANDB_MODE=offline."""

    def __init__(self, path: Path, xpid: str, flags: dict[str, Any], started: str):
        try:
            import wandb
        except ImportError as error:
            raise UserError("--wandb: pip install wandb") from error
        self._histogram = wandb.Histogram
        name = xpid + "-" + "".join(filter(str.isdigit, started))
        settings = wandb.Settings(console="off")  # out.log has what is printed
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=name, name=xpid, resume="allow", config=flags, dir=path, settings=settings,
            )  # fmt: skip
        except wandb.Error as error:
            raise UserError(f"--wandb: {error}") from error
        # A resume may take steps back, which W&B's own count of steps may not.
        self._run.define_metric("*", step_metric="step")

    def log(self, row: dict[str, float], histograms: dict[str, Counts]) -> None:
        drawn = {k: self._histogram(np_histogram=histogram(v)) for k, v in histograms.items()}
        self._run.log({**row, **drawn})

    def close(self) -> None:
        self._run.finish()
