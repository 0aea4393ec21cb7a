# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""TensorBoard, and Weights & Biases with --wandb: where a run's numbers go besides logs.csv."""

import importlib
import logging
import os
from pathlib import Path
from typing import Any

from libtorchbeast.flags import UserError

logger = logging.getLogger(__name__)

HEADLINE = "mean_game_return"  # TensorBoard's table of hyperparameters shows this result


def check_wandb(flags: dict[str, Any]) -> None:
    """Raises UserError if --wandb is given but its package cannot be imported. To be called before
    the run's folder is made."""
    if flags.get("wandb"):
        try:
            importlib.import_module("wandb")
        except ImportError as error:
            raise UserError("--wandb: pip install wandb") from error


def open_trackers(
    path: Path, xpid: str, flags: dict[str, Any], started: str, purge_step: int
) -> "list[TensorBoard | WeightsAndBiases]":
    """Opens TensorBoard's events if its package is installed, and Weights & Biases with --wandb.
    Each takes rows, which have `step`. `log` and `close` raise OSError if they cannot write. Raises
    UserError if Weights & Biases refuses the run.

    Args:
        started: when the run was first started. Together with `xpid` it identifies the run for
            Weights & Biases, also after a resume.
        purge_step: TensorBoard hides older events from this step on.
    """
    trackers: list[TensorBoard | WeightsAndBiases] = []
    try:
        trackers.append(TensorBoard(path, flags, purge_step))
    except ImportError as error:
        logger.warning("No TensorBoard events, because its package cannot be used: %s", error)
    if flags.get("wandb"):
        trackers.append(WeightsAndBiases(path, xpid, flags, started))
    return trackers


class TensorBoard:
    def __init__(self, path: Path, flags: dict[str, Any], purge_step: int):
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        writer: Any = SummaryWriter(str(path), purge_step=purge_step, flush_secs=30)
        self._writer = writer
        plain = {k: v if isinstance(v, int | float) else str(v) for k, v in flags.items()}
        for summary in hparams(plain, {HEADLINE: None}):
            writer.file_writer.add_summary(summary)

    def log(self, row: dict[str, float]) -> None:
        step = int(row["step"])
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Weights & Biases reads its own environment variables, such as WANDB_MODE=offline."""

    def __init__(self, path: Path, xpid: str, flags: dict[str, Any], started: str):
        import wandb

        name = xpid + "-" + "".join(filter(str.isdigit, started))
        settings = wandb.Settings(console="off")  # out.log has what is logged
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "torchbeast"),
                id=name, name=xpid, resume="allow", config=flags, dir=path, settings=settings,
            )  # fmt: skip
        except wandb.Error as error:
            raise UserError(f"--wandb: {error}") from error
        # A resume may go back to an earlier step. W&B's own step cannot go back, so it is not used.
        self._run.define_metric("*", step_metric="step")

    def log(self, row: dict[str, float]) -> None:
        self._run.log(row)

    def close(self) -> None:
        self._run.finish()
