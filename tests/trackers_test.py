# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""TensorBoard's and Weights & Biases's copies of the rows, and runs without them."""

import math
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.support.run_files import column, log_steps, writer


def scalars(path, name):
    events = EventAccumulator(str(path)).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_forgets_what_a_resume_took_back(tmp_path):
    log_steps(tmp_path, [10, 20, 30])
    time.sleep(1 - time.time() % 1)  # TensorBoard reads the files in the order of their seconds
    log_steps(tmp_path, [25], resume_step=20)
    assert scalars(tmp_path / "run", "frame") == [(10, 40.0), (20, 80.0), (25, 100.0)]


def test_tensorboard_has_the_rows_of_the_table_and_hyperparameters(tmp_path):
    flags = {"learning_rate": 0.5, "env": "Catch", "use_lstm": True, "net": None}
    with writer(tmp_path, flags=flags) as files:
        files.log({"step": 10, "loss": 0.5, "mean_game_return": None})
        files.log({"step": 20, "loss": math.nan})
        files.log({"step": 30, "loss": 0.25})
    assert scalars(files.path, "loss") == [(10, 0.5), (30, 0.25)]
    events = EventAccumulator(str(files.path)).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["learning_rate"].number_value == 0.5
    assert hparams["env"].string_value == "Catch" and hparams["use_lstm"].number_value == 1
    assert hparams["net"].string_value == "None"


def test_weights_and_biases_gets_the_rows_also_after_a_resume(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb brings 31 packages; make test-examples has it")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    flags = {"wandb": True, "learning_rate": 0.5}
    with writer(tmp_path, flags=flags) as files:
        files.log({"step": 10, "loss": 0.375})
    with writer(tmp_path, flags=flags, resume_step=5) as files:
        files.log({"step": 7, "loss": 0.625})
    logs = sorted(files.path.glob("wandb/offline-run-*/run-*.wandb"))
    first, second = (path.read_bytes() for path in logs)
    assert b"learning_rate" in first
    assert b"0.375" in first and b"0.375" not in second
    assert b"0.625" in second and b"0.625" not in first
    assert logs[0].name == logs[1].name and logs[0].name.startswith("run-run-2")  # one run


def test_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # the import fails
    log_steps(tmp_path, [1, 2])
    assert column(tmp_path / "run" / "logs.csv", "step") == ["1", "2"]
    assert (tmp_path / "run" / "out.log").read_text().count("No TensorBoard events") == 1
