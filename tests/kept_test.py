# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The files of --keep_checkpoints_every."""

import os
from unittest import mock

import pytest

from libtorchbeast import checkpoint
from tests.support.monobeast import IN_ORDER, beast, parse, refusal
from tests.support.processes import load

pytestmark = pytest.mark.usefixtures("as_before")


def kept_steps(folder):
    return [*checkpoint.kept_files(str(folder))]


def test_weights_are_kept_in_a_ring(tmp_path):
    words = [*IN_ORDER, "--keep_checkpoints_every", 200, "--keep_checkpoints", 3]
    beast(tmp_path, *words, "--total_steps", 400)  # also those of the last update
    assert kept_steps(tmp_path / "run") == [0, 200, 400]
    beast(tmp_path, "--total_steps", 1100)
    files = checkpoint.kept_files(str(tmp_path / "run"))
    assert [*files] == [600, 800, 1000]
    assert "at most 3 files of 0." in (tmp_path / "run/out.log").read_text()
    states = [checkpoint.load(path) for path in files.values()]
    assert all("optimizer" not in state for state in states)
    assert all(0 <= state["step"] - step < 80 for step, state in zip(files, states, strict=True))
    beast(tmp_path / "next", *IN_ORDER, "--init_from", files[800], "--total_steps", 80)
    assert load(tmp_path / "next/run")["step"] >= 80
    os.replace(files[800], tmp_path / "run/model.tar")
    assert "has weights only" in refusal(tmp_path)


def test_files_from_after_the_checkpoint_are_made_again_and_those_of_another_run_go(tmp_path):
    words = [*IN_ORDER, "--keep_checkpoints_every", 200]
    beast(tmp_path, *words, "--total_steps", 300)
    files = checkpoint.kept_files(str(tmp_path / "run"))
    os.rename(files[200], files[200].replace("0200.tar", "0400.tar"))
    beast(tmp_path, "--total_steps", 380)
    files = checkpoint.kept_files(str(tmp_path / "run"))
    assert [*files] == [0, 200, 400] and checkpoint.load(files[400])["step"] >= 400
    for path in (tmp_path / "run").glob("model.tar*"):
        path.unlink()
    beast(tmp_path, *words, "--seed", 9, "--total_steps", 80)
    assert kept_steps(tmp_path / "run") == [0]
    assert {"discarded-000000000000.tar", "discarded-000000000200.tar"} <= {
        path.name for path in (tmp_path / "run/kept").iterdir()
    }
    assert checkpoint.load(files[0])["flags"]["seed"] == 9


def test_weights_are_kept_once_there_is_room_again(monkeypatch):
    """Not at every look, which would log an error a second."""
    learner, now = mock.Mock(step=0, net=mock.Mock(state_dict=dict)), mock.Mock(return_value=0.0)
    learner.state_dict = lambda: {"model": {}, "step": learner.step, "updates": 0}
    monkeypatch.setattr(checkpoint.time, "monotonic", now)
    files = mock.Mock(path="/no/such/run/model.tar", enabled=True)
    flags = parse("--keep_checkpoints_every", 100, "--checkpoint_every", 5)
    kept, save = checkpoint.KeptWeights(files, flags, learner), files.try_save
    looks = [(150, 1, False), (160, 4, True), (170, 6, True), (210, 6, False)]
    for step, seconds, has_room in looks:
        learner.step, now.return_value, save.return_value = step, seconds, has_room
        kept.keep()
        kept.keep()
    save.return_value = True
    kept.keep(is_last=True)  # the run ends
    assert [call.args[1]["step"] for call in save.call_args_list] == [0, 150, 170, 210, 210]


def test_files_that_cannot_be_deleted_or_are_others_do_not_end_the_run(tmp_path, monkeypatch):
    words = [*IN_ORDER, "--keep_checkpoints_every", 100, "--keep_checkpoints", 1]
    beast(tmp_path, *words, "--total_steps", 80)
    (tmp_path / "run/kept/mine.tar").write_text("kept by hand")
    refuse = mock.Mock(side_effect=PermissionError("not permitted"))
    monkeypatch.setattr(checkpoint.os, "remove", refuse)
    beast(tmp_path, "--total_steps", 480)
    log = (tmp_path / "run/out.log").read_text()
    assert "could not be deleted: not permitted" in log and len(kept_steps(tmp_path / "run")) > 2
    assert (tmp_path / "run/kept/mine.tar").exists()


@pytest.mark.parametrize("words", [(), ("--keep_checkpoints_every", 100, "--disable_checkpoint")])
def test_without_the_flag_or_checkpoints_nothing_is_kept(tmp_path, words):
    beast(tmp_path, *IN_ORDER, *words, "--total_steps", 300)
    assert not (tmp_path / "run/kept").exists()
    assert "Weights are kept" not in (tmp_path / "run/out.log").read_text()
