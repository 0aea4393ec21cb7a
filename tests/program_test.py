# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from unittest import mock

import pytest

import monobeast
from libtorchbeast import evaluate, program, workers
from libtorchbeast.checkpoint import CheckpointError
from libtorchbeast.flags import UserError
from libtorchbeast.loggers.files import RunInUse


def run(folder, train, *words):
    """Calls `program.main` with MonoBeast's flags."""
    argv = ["--env", "CartPole-v1", "--savedir", str(folder), "--xpid", "run", *words]
    parts = monobeast.make_parser, monobeast.check_flags, train, monobeast.player
    program.main("beast", *parts, argv)


@pytest.mark.parametrize("kind", [UserError, CheckpointError, RunInUse, ZeroDivisionError])
def test_an_expected_error_is_one_line_and_another_keeps_its_traceback(tmp_path, kind):
    with pytest.raises((SystemExit, ZeroDivisionError)) as ended:
        run(tmp_path, mock.Mock(side_effect=kind("why")))
    seen = kind("why") if kind is ZeroDivisionError else SystemExit("beast: error: why")
    assert repr(ended.value) == repr(seen)


def test_a_flag_that_a_fork_defines_once_more_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(monobeast, "add_own_flags", lambda parser: parser.add_argument("--seed"))
    with pytest.raises(SystemExit, match="beast: error: argument --seed: conflicting option"):
        run(tmp_path, None)


def test_a_full_disk_under_tmp_is_one_line(tmp_path, monkeypatch):
    full = FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")
    monkeypatch.setattr(program.tempfile, "gettempdir", mock.Mock(side_effect=full))
    with pytest.raises(SystemExit, match="beast: error: No usable .*: is the disk full"):
        run(tmp_path, None)


def test_a_test_mode_plays_and_does_not_train(tmp_path, monkeypatch):
    played, trained = [], []
    monkeypatch.setattr(evaluate, "play_newest", lambda flags, player: played.append(flags.mode))
    run(tmp_path, trained.append, "--mode", "test")
    assert (played, trained) == (["test"], [])


def test_too_few_processes_are_one_line(tmp_path, monkeypatch):
    refuse = mock.Mock(side_effect=BlockingIOError(11, "Resource temporarily unavailable"))
    monkeypatch.setattr(workers.Process, "start", refuse)
    with pytest.raises(SystemExit, match="beast: error: the process x cannot be .*ulimit -u"):
        run(tmp_path, lambda flags: workers.Process(print, (), name="x"))
