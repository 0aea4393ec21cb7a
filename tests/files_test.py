# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A run's folder: its one owner, the link to it, and the copy of the log."""

import logging
import os
import subprocess
import sys

import pytest

from libtorchbeast.flags import UserError
from libtorchbeast.loggers.files import LineFile, RunInUse, hold
from tests.support.processes import GUARD_S, ROOT
from tests.support.run_files import file_size_limit, writer

HOLD = """
import os, sys
from libtorchbeast.loggers.files import hold
with hold(sys.argv[1]):
    if not os.fork():  # the child lives longer, and does not hold it
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


def test_a_run_that_starts_on_a_full_disk_says_where(tmp_path):
    for _ in range(2):  # the second time there is a file, and nothing holds it
        with pytest.raises(UserError, match=rf"cannot be written: .*{tmp_path}/run"):
            with file_size_limit(0), hold(tmp_path / "run"):
                pass


def test_latest_links_to_the_newest_run(tmp_path, caplog):
    for xpid in ("a", "b"):
        writer(tmp_path, xpid=xpid).close()
        assert os.readlink(tmp_path / "latest") == xpid
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "b", "latest"]
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    writer(tmp_path, xpid="c").close()
    assert not (tmp_path / "latest").is_symlink() and "is not a link" in caplog.text


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


def test_a_log_that_is_emptied_meanwhile_goes_on_from_its_beginning(tmp_path):
    """By `> out.log`, or by a program that copies and empties logs."""
    file = LineFile(tmp_path / "out.log")
    for i in range(3):
        file.write(f"line {i}\n")
    (tmp_path / "out.log").write_text("")
    file.write("line 3\n")
    (tmp_path / "out.log").open("a").write("half a li")  # which this file did not write
    file.write("line 4\n")
    file.close()
    assert (tmp_path / "out.log").read_text() == "line 3\nline 4\n"


DISK = """
import pathlib, signal, sys
from libtorchbeast.loggers import files
files.LAST_WRITE_S, must_end = float(sys.argv[2]), not sys.argv[3:]
if not must_end:  # as if the main thread slept in the kernel
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    print("ready", file=sys.stderr)
with files.watched_disk("runs/a", must_end=lambda: must_end) as writing, writing():
    files.write_whole(pathlib.Path(sys.argv[1]), "whole")
"""


@pytest.mark.parametrize("seconds", [1, 1000])
def test_a_disk_that_hangs_is_told_and_does_not_keep_a_process_that_must_end(tmp_path, seconds):
    """A pipe that nobody reads stands for the disk. In the second case somebody does, in time."""
    os.mkfifo(tmp_path / "file.tmp")
    command = [sys.executable, "-c", DISK, str(tmp_path / "file"), str(seconds)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        if seconds > 1:
            assert process.stderr.readline() == "Writing to runs/a has taken 5 s so far.\n"
            with open(tmp_path / "file.tmp", "rb") as reader:
                assert reader.read() == b"whole"
        said = process.stderr.read()
    hangs = "Writing to runs/a hangs. What is not saved is lost.\n"
    assert process.returncode == 1 and ("hangs" not in said if seconds > 1 else said == hangs)


def test_a_signal_that_the_main_thread_does_not_take_ends_a_process_whose_disk_hangs(tmp_path):
    os.mkfifo(tmp_path / "file.tmp")
    command = [sys.executable, "-c", DISK, str(tmp_path / "file"), "1", "signal"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "ready\n"
        process.terminate()
        _, said = process.communicate(timeout=GUARD_S)
    assert process.returncode == 1
    assert said == "Writing to runs/a hangs. What is not saved is lost.\n"
