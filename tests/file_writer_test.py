# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The files of a run: whole lines, one header, one owner, a curve that is a function of step."""

import json
import logging
import math
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from libtorchbeast.loggers.csv_table import read_csv
from libtorchbeast.loggers.files import RunInUse, hold
from tests.support.processes import ROOT
from tests.support.run_files import WITHOUT_PACKAGE, column, file_size_limit, log_steps, writer

LOGGERS = "libtorchbeast/loggers"


def test_header_once_and_a_line_per_row(tmp_path):
    log_steps(tmp_path, [10, 20])
    lines = (tmp_path / "run" / "logs.csv").read_text().splitlines()
    assert lines[0] == "_tick,_time,step,frame,mean_game_return,loss"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1"]
    assert lines[2].split(",")[2:] == ["20", "80", "", "2.0"]


def test_a_row_is_in_the_file_before_close(tmp_path):
    with writer(tmp_path) as files:
        files.log({"step": 1})
        assert column(files.path / "logs.csv", "step") == ["1"]


def test_values_that_do_not_exist_are_empty_cells(tmp_path):
    nothing = [None, math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(math.nan)]
    with writer(tmp_path) as files:
        for step, value in enumerate(nothing):
            files.log({"step": step, "loss": value})
    assert column(files.path / "logs.csv", "loss") == [""] * len(nothing)
    assert "nan" not in (files.path / "logs.csv").read_text()


def test_numbers_of_every_kind(tmp_path):
    numbers = [True, 3, 0.1, np.float32(0.5), np.int64(2**40), torch.tensor(1.5).bfloat16()]
    with writer(tmp_path) as files:
        for step, value in enumerate(numbers):
            files.log({"step": step, "loss": value})
    expected = ["1", "3", "0.1", "0.5", str(2**40), "1.5"]
    assert column(files.path / "logs.csv", "loss") == expected


def test_wrong_rows_are_refused_and_write_nothing(tmp_path):
    with writer(tmp_path) as files:
        with pytest.raises(ValueError, match=r"unknown columns \['_time', 'los'\].*'loss'"):
            files.log({"step": 1, "los": 2, "_time": 3})
        with pytest.raises(ValueError, match="column 'loss' takes numbers, not 'high'"):
            files.log({"step": 1, "loss": "high"})
        assert column(files.path / "logs.csv", "step") == []


@pytest.mark.parametrize("xpid", ["", ".", "..", "a/b", "/tmp", "latest"])
def test_bad_names_are_refused(tmp_path, xpid):
    with pytest.raises(ValueError, match="xpid must be a plain folder name"):
        writer(tmp_path, xpid=xpid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fields", [["frame"], ["step", "step"], ["step", "_time"]])
def test_bad_fieldnames_are_refused(tmp_path, fields):
    with pytest.raises(ValueError, match="fieldnames must hold 'step'"):
        writer(tmp_path, fields=fields)


def test_resume_goes_on_after_the_checkpoint(tmp_path):
    run = tmp_path / "run"
    log_steps(tmp_path, [10, 20, 30, 40])
    log_steps(tmp_path, [25, 35], resume_step=20)
    assert column(run / "logs.csv", "step") == ["10", "20", "25", "35"]
    assert column(run / "logs.csv", "_tick") == ["0", "1", "2", "3"]
    assert column(run / "logs.discarded.csv", "step") == ["30", "40"]
    log_steps(tmp_path, [30], resume_step=25)
    assert column(run / "logs.csv", "step") == ["10", "20", "25", "30"]
    assert column(run / "logs.discarded.csv", "step") == ["30", "40", "35"]
    assert (run / "logs.csv").read_text().count("_tick") == 1
    assert "2 rows beyond step 20" in (run / "out.log").read_text()


def test_a_run_without_a_checkpoint_starts_its_curve_again(tmp_path):
    log_steps(tmp_path, [0, 10])
    log_steps(tmp_path, [0, 5])
    assert column(tmp_path / "run" / "logs.csv", "step") == ["0", "5"]
    assert column(tmp_path / "run" / "logs.discarded.csv", "step") == ["0", "10"]


def test_new_columns_keep_the_old_rows_and_the_old_file(tmp_path):
    run = tmp_path / "run"
    log_steps(tmp_path, [10, 20])
    old = (run / "logs.csv").read_text()
    log_steps(tmp_path, [30], fields=["step", "lag", "frame", "loss"], resume_step=20)
    assert (run / "logs.csv.1").read_text() == old
    header, rows = read_csv(run / "logs.csv")
    assert header == ["_tick", "_time", "step", "lag", "frame", "loss"]
    assert [row["frame"] for row in rows] == ["40", "80", "120"]
    assert [row["lag"] for row in rows] == ["", "", ""]
    log_steps(tmp_path, [40], resume_step=30)
    assert (run / "logs.csv.2").exists() and (run / "logs.csv.1").read_text() == old


def test_a_line_cut_by_a_kill_is_dropped(tmp_path, caplog):
    path = tmp_path / "run" / "logs.csv"
    log_steps(tmp_path, [10, 20])
    for cut in (1, 5, 12):
        path.write_text(path.read_text() + "2,1700000000.5,30,120,,3\n"[:-cut])
        caplog.clear()
        log_steps(tmp_path, [], resume_step=30)
        assert column(path, "step") == ["10", "20"]
        assert "left out 1 damaged line(s)" in caplog.text


HOLD = """
import sys
from libtorchbeast.loggers.files import hold
with hold(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_owner_until_it_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunInUse, match=rf"run is in use by process {process.pid}; .*xpid"):
            with hold(tmp_path / "run"):
                pass
        with hold(tmp_path / "other"):
            pass
        process.kill()
        process.wait()
        with hold(tmp_path / "run"), pytest.raises(RunInUse), hold(tmp_path / "run"):
            pass


def test_a_start_that_fails_frees_the_run(tmp_path):
    (tmp_path / "run" / "logs.csv").mkdir(parents=True)
    handlers = list(logging.getLogger().handlers)
    with pytest.raises(IsADirectoryError):
        writer(tmp_path)
    assert logging.getLogger().handlers == handlers
    (tmp_path / "run" / "logs.csv").rmdir()
    writer(tmp_path).close()


def test_latest_links_to_the_newest_run(tmp_path, caplog):
    for xpid in ("a", "b"):
        writer(tmp_path, xpid=xpid).close()
        assert os.readlink(tmp_path / "latest") == xpid
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "b", "latest"]
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    writer(tmp_path, xpid="c").close()
    assert not (tmp_path / "latest").is_symlink() and "is not a link" in caplog.text


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with writer("~/runs") as files:
        assert files.path == tmp_path / "runs" / "run"


def test_meta(tmp_path):
    flags = {"lr": 0.1, "sizes": (1, 2), "path": Path("/x")}
    writer(tmp_path, flags=flags).close()
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert meta["flags"] == {"lr": 0.1, "sizes": [1, 2], "path": "/x"}
    assert meta["xpid"] == "run" and meta["command"] == sys.argv and meta["resumed"] == []
    assert meta["versions"]["python"] == platform.python_version()
    assert meta["versions"]["numpy"] == np.__version__
    assert meta["machine"]["cpu_count"] == os.cpu_count()
    assert meta["date"][:2] == "20"


def test_meta_of_a_resumed_run(tmp_path):
    path = tmp_path / "run" / "meta.json"
    writer(tmp_path, flags={"lr": 0.1, "sizes": (1, 2), "old": 1}).close()
    first = json.loads(path.read_text())
    writer(tmp_path, flags={"lr": 0.2, "sizes": (1, 2), "new": 2}, resume_step=50).close()
    writer(tmp_path, flags={"lr": 0.2, "sizes": (1, 2), "new": 2}, resume_step=60).close()
    writer(tmp_path, flags={"lr": 0.1, "sizes": (1, 2), "new": 2}, resume_step=70).close()
    meta = json.loads(path.read_text())
    resumed = meta.pop("resumed")
    assert meta == {key: value for key, value in first.items() if key != "resumed"}
    assert [entry["step"] for entry in resumed] == [50, 60, 70]
    assert [entry["changed_flags"] for entry in resumed] == [
        {
            "lr": {"old": 0.1, "new": 0.2},
            "new": {"old": None, "new": 2},
            "old": {"old": 1, "new": None},
        },
        {},
        {"lr": {"old": 0.2, "new": 0.1}},
    ]


def git(folder, *args):
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def meta_of_code_in(folder, savedir):
    command = [sys.executable, "-c", WITHOUT_PACKAGE, str(savedir), "torch"]  # quicker
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, cwd=folder, check=True, env=env)
    return json.loads((savedir / "run" / "meta.json").read_text())


def test_meta_names_the_commit_of_the_code(tmp_path):
    code = tmp_path / "checkout"
    (code / LOGGERS).mkdir(parents=True)
    for path in (ROOT / "libtorchbeast" / "flags.py", *(ROOT / LOGGERS).glob("*.py")):
        shutil.copy(path, code / path.relative_to(ROOT))
    assert "commit" not in meta_of_code_in(code, tmp_path / "a")
    git(code, "init", "-q")
    git(code, "commit", "-qm", "empty", "--allow-empty")
    assert "commit" not in meta_of_code_in(code, tmp_path / "b")  # in a checkout, not part of it
    git(code, "add", ".")
    git(code, "commit", "-qm", "first")
    meta = meta_of_code_in(code, tmp_path / "c")
    assert (meta["commit"], meta["dirty"]) == (git(code, "rev-parse", "HEAD"), False)
    with (code / LOGGERS / "file_writer.py").open("a") as file:
        file.write("\n")
    assert meta_of_code_in(code, tmp_path / "d")["dirty"] is True


def test_no_environment_variables_in_any_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHBEAST_TEST_TOKEN", "hunter2-secret")
    log_steps(tmp_path, [10])
    log_steps(tmp_path, [20], resume_step=10)
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert len(files) == 5  # meta, logs, out, two event files
    for file in files:
        assert b"hunter2-secret" not in file.read_bytes()
        assert b"TORCHBEAST_TEST_TOKEN" not in file.read_bytes()


def test_out_log_takes_every_module_s_messages(tmp_path):
    log = logging.getLogger("some.fork")
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    with writer(tmp_path) as files:
        log.info("a message of %d", 7)
        log.debug("too fine")
    log.error("after close")
    (line,) = (files.path / "out.log").read_text().splitlines()
    assert line.endswith("INFO some.fork: a message of 7") and line[:2] == "20"
    assert (logging.getLogger().handlers, logging.getLogger().level) == (handlers, level)


def test_close_twice(tmp_path):
    files = writer(tmp_path)
    files.close()
    files.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's
def test_full_disk_costs_rows_and_nothing_else(tmp_path, caplog):
    """Values 1/3 make long lines; the limit then cuts one in half, as a full disk does."""
    with writer(tmp_path) as files:
        files.log({"step": 10, "loss": 1 / 3})
        size = (files.path / "logs.csv").stat().st_size
        with file_size_limit(size + 20):
            for step in (20, 30, 40):
                files.log({"step": step, "loss": 1 / 3})
        assert files.errors >= 3
        assert caplog.text.count("logs.csv misses a row") == 1
        files.log({"step": 50, "loss": 1 / 3})
    assert column(files.path / "logs.csv", "step") == ["10", "50"]
    assert (files.path / "logs.csv").read_text().count("\n") == 3
    assert "left out" not in caplog.text
