# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A sweep makes each run once, whatever happens to its launcher."""

import os
import re
import shlex
import signal
import subprocess
import sys
from unittest import mock

import psutil
import pytest

from libtorchbeast import workers
from libtorchbeast.flags import UserError
from libtorchbeast.loggers.csv_table import last_row
from libtorchbeast.loggers.files import hold
from libtorchbeast.tools import sweep
from libtorchbeast.tools.study import Run, read_plan
from tests.support.processes import ROOT, Command, rows, wait_for
from tests.support.terminal import InTerminal

PROGRAM = [sys.executable, "-m", "libtorchbeast.tools.sweep"]
FAKE = "-- python -m tests.support.fake_program"


def words(folder, line):
    """The arguments of a sweep `study`, with the program FAKE unless the line has one."""
    line = line if "--" in line.split() else f"{line} {FAKE}"
    return ["study", "--savedir", str(folder), *line.split()]


class Sweep(Command):
    """A sweep in a process of its own."""

    def __init__(self, folder, line):
        super().__init__(folder, [*PROGRAM, *words(folder, line)])


@pytest.fixture
def complete(tmp_path, capfd, monkeypatch):
    """Runs a sweep to its end in this process; returns what it printed."""
    monkeypatch.chdir(ROOT)

    def run(line, code=0):
        assert sweep.sweep(words(tmp_path, line)) == code
        return capfd.readouterr().err

    return run


def counted(path):
    """The steps that a run has made, in the order in which it made them."""
    return [int(line) for line in (path / "counted").read_text().split()]


def step_of(path):
    return int(last_row(path).get("step", 0))


def names(folder):
    return sorted(path.parent.name for path in (folder / "study").glob("*/counted"))


# ============================================================================================ whole
def test_every_combination_is_trained_once(tmp_path, complete):
    line = "--learning_rate 1e-3 --seed 1-2 --use_lstm off,on"
    printed = complete(line)
    runs = ("off_seed1", "off_seed2", "on_seed1", "on_seed2")
    wanted = [f"learning_rate=1e-3_use_lstm={run}" for run in runs]
    assert names(tmp_path) == wanted and sorted(read_plan(tmp_path / "study")["runs"]) == wanted
    for name in wanted:
        path = tmp_path / "study" / name
        assert counted(path) == [row["step"] for row in rows(path)] == [1, 2, 3, 4, 5]
        assert printed.count(f"{name}: starts on cores") == 1
        assert printed.count(f"{name}: complete at step 5, return ") == 1
    assert "0 of 4 runs are complete\n" in printed and "4 runs are complete, 0 failed." in printed


def test_a_study_grows(tmp_path, complete):
    complete("--cores_per_run 1 --seed 1")
    own = sorted(os.sched_getaffinity(0))[:1]
    assert (tmp_path / "study/seed1/printed.txt").read_text() == f"cores {own}, GPUs \n"
    printed = complete("--seed 1-2")
    assert "1 of 2 runs are complete, about 00:03:00\n" in printed  # as long as the first took
    assert counted(tmp_path / "study/seed1") == counted(tmp_path / "study/seed2")
    line = f"--seed 1-2 {FAKE} --total_steps 7"
    assert "seed1: its command has changed" in complete(line)
    assert counted(tmp_path / "study/seed1") == [1, 2, 3, 4, 5, 6, 7]
    again = complete(line)
    assert "2 of 2 runs are complete\n" in again and "starts" not in again


def test_a_dry_run_prints_and_does_nothing(tmp_path, capfd):
    cores = len(os.sched_getaffinity(0))
    assert sweep.sweep(words(tmp_path, f"--seed 1-3 --dry_run {FAKE}")) == 0
    out, err = capfd.readouterr()
    lines = [shlex.split(line) for line in out.splitlines()]
    assert [line[-1] for line in lines] == ["seed1", "seed2", "seed3"]
    assert "0 of 3 runs are complete\n" in err and "about" not in err
    assert not (tmp_path / "study").exists()
    subprocess.run(lines[0], check=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert sweep.sweep(words(tmp_path, f"--seed 1-3 --dry_run --cores_per_run {cores} {FAKE}")) == 0
    assert "1 of 3 runs are complete, about 00:06:00\n" in capfd.readouterr().err


# ========================================================================================= failures
def test_what_fails_is_told_and_tried_again_but_not_too_often(tmp_path, complete):
    line = f"--cores_per_run 1 --seed 1 --learning_rate oops,1e-3 {FAKE} --fail_at 3"
    printed = complete(line, code=1)
    good, bad = "learning_rate=1e-3_seed1", "learning_rate=oops_seed1"
    assert f"{good}: failed at step 2, return " in printed
    assert "exit code 1, will be tried again:" in printed
    assert "    RuntimeError: fails at step 3\n" in printed
    assert f"{bad}: failed at step 0, return -, exit code 2, given up:" in printed
    assert "error: argument --learning_rate: invalid float value: 'oops'" in printed
    assert printed.count(f"{bad}: starts on") == 2
    assert "1 runs are complete, 1 failed." in printed
    assert names(tmp_path) == [good] and counted(tmp_path / "study" / good) == [1, 2, 3, 4, 5]
    assert complete(f"--retries 0 {line}", code=1).count("starts on") == 1


def test_what_a_program_refuses_is_not_tried_again_and_a_misspelt_flag_ends_the_sweep(complete):
    cores = len(os.sched_getaffinity(0))
    line = f"--cores_per_run {cores} --seed 1-9 --sed 1 -- python -m monobeast"
    printed = complete(line, code=1)
    told = "monobeast: error: unrecognized flag --sed: did you mean --seed?\n"
    assert f"exit code 1, given up:\n    {told}" in printed
    assert printed.count(told) == printed.count("starts on") == 1
    assert "The other runs have the same flags and are not tried." in printed
    printed = complete("--seed 1-2 --num_episodes 0 -- python -m monobeast", code=1)
    assert printed.count("starts on") == printed.count("exit code 1, given up") == 2


@pytest.mark.parametrize(
    "line, message",
    [
        ("study --seed 1", "expected NAME, flags, and `-- python -m PROGRAM`"),
        (f"study --seed 1 --cores_per_run 0 {FAKE}", "--cores_per_run 0: expected at least 1"),
        (f"study --runs_per_gpu 2 {FAKE}", "--runs_per_gpu 2: expected --gpus_per_run 1"),
        (f"study --cores_per_run 9999 {FAKE}", "a run needs 9999 cores and 0 GPUs; there are"),
        (f"study --seed 1 --xpid a {FAKE}", "no --xpid"),
        *((f"{name} --seed 1 {FAKE}", "expected NAME") for name in (".", "..", "a/b")),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, line, message):
    """And a stopped reader of what the sweep prints would not hold it up (display_test.py)."""
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    name, *flags = line.split()
    with pytest.raises(SystemExit) as refused:
        sweep.main([name, "--savedir", str(tmp_path), *flags])
    assert refused.value.code.startswith("sweep: error: ") and message in refused.value.code
    assert not list(tmp_path.iterdir()) and type(sys.stderr) is workers.Patient


def test_without_a_home_folder_the_place_must_be_named(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(SystemExit, match="sweep: error: --savedir ~/logs.* has no home folder"):
        sweep.main(f"study --seed 1 {FAKE}".split())
    with pytest.raises(SystemExit, match="--savedir .*: expected UTF-8"):
        sweep.main(words("/a\udcff", "--seed 1"))


# ============================================================================================ slots
def test_slots_do_not_overlap(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9, 2, 4, 5, 7})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,3")
    assert sweep.make_slots(2, 0, 1) == [([2, 4], []), ([5, 7], [])]
    assert sweep.make_slots(1, 1, 1) == [([2], ["GPU-a"]), ([4], ["3"])]
    assert [slot.gpus for slot in sweep.make_slots(1, 1, 2)] == [["GPU-a"], ["GPU-a"], ["3"], ["3"]]
    assert sweep.make_slots(2, 2, 1) == [([2, 4], ["GPU-a", "3"])]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="a run needs 1 cores and 1 GPUs; there are 5 and 0"):
        sweep.make_slots(1, 1, 1)


@pytest.mark.parametrize("script, gpus", [("echo 0; echo 1", 2), ("echo it failed; exit 9", 0)])
def test_gpus_are_those_that_nvidia_smi_lists_unless_it_fails(tmp_path, monkeypatch, script, gpus):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    if gpus:
        assert sweep.make_slots(1, 1, 1) == [([0], ["0"]), ([1], ["1"])]
    else:
        with pytest.raises(UserError, match="a run needs 1 cores and 1 GPUs; there are 2 and 0"):
            sweep.make_slots(1, 1, 1)


def test_a_run_has_its_slot(tmp_path, monkeypatch, complete):
    """The fake program prints the cores and GPUs that it may use. A run above has one core."""
    cores = sorted(os.sched_getaffinity(0))
    line = f"--cores_per_run {len(cores)} --gpus_per_run 1 --seed 1"
    shown = f"seed1: starts on cores {', '.join(map(str, cores))}, GPUs 5\n"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert shown in complete(line)
    assert (tmp_path / "study/seed1/printed.txt").read_text() == f"cores {cores}, GPUs 5\n"


# ========================================================================================== the end
def test_killed_at_many_moments(tmp_path, complete):
    line = f"--seed 1-6 {FAKE} --total_steps 40"
    program = [sys.executable, "-m", "tests.support.killed_launchers", tmp_path / "study", 25]
    with Command(tmp_path, [*program, *words(tmp_path, line)]) as killer:
        killer.wait_for(lambda: "killed all" in killer.printed())
        wait_for(lambda: killer.session() <= {killer.pid})  # nothing is left running
    complete(line)
    for path in (tmp_path / "study").glob("seed*"):
        assert counted(path) == [row["step"] for row in rows(path)] == list(range(1, 41))
    assert len(names(tmp_path)) == 6


def test_a_second_launcher_is_refused_and_a_signal_stops_all_runs_with_their_checkpoints(
    tmp_path, complete
):
    line = f"--seed 1-3 {FAKE} --total_steps 1000000"
    with Sweep(tmp_path, line) as launcher:
        launcher.wait_for(lambda: step_of(tmp_path / "study/seed1") > 3)
        with pytest.raises(SystemExit) as refused:
            sweep.main(words(tmp_path, line))
        used = f"{tmp_path}/study is in use by process {launcher.pid}"
        assert re.fullmatch(f"sweep: error: another launcher .* {used}", refused.value.code)
        for run in launcher.session() - {launcher.pid}:  # as Slurm does before a time limit
            os.kill(run, signal.SIGUSR2)
        step = step_of(tmp_path / "study/seed1")
        launcher.wait_for(lambda: step_of(tmp_path / "study/seed1") > step)
        os.kill(launcher.pid, signal.SIGTERM)
        assert launcher.wait_for_end() == 130
        assert launcher.session() == set()
        printed = launcher.printed()
    step = step_of(tmp_path / "study/seed1")
    assert f"seed1: stopped at step {step}, return " in printed and "exit code 0" in printed
    assert "about" not in printed and "failed" not in printed
    complete(f"--seed 1-3 {FAKE} --total_steps {step + 2}")
    assert counted(tmp_path / "study/seed1") == list(range(1, step + 3))


@pytest.mark.parametrize("signals", [[], ["SIGHUP"] * 2, ["SIGINT"] * 2])
def test_a_signal_between_two_looks_at_it_stops_the_runs_too(tmp_path, monkeypatch, signals):
    """A terminal that is closed, or the program `timeout`, may send two at once."""
    looks = iter([False])  # the signal comes after the first look
    monkeypatch.setattr(workers.PipeEvent, "is_set", lambda self: next(looks, True))
    ends = iter([None, None, None])  # by itself at last
    process = mock.Mock(returncode=0, poll=lambda: next(ends, 0))
    launcher = sweep.Launcher([], [sweep.Slot([0], [])], retries=0)
    launcher.running[Run(tmp_path / "seed1", {}, [])] = launcher.free.pop(), process
    launcher.work(workers.PipeEvent(), signals)
    assert process.terminate.called and not process.kill.called


def test_a_second_signal_kills_runs_that_do_not_end(tmp_path):
    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN)"
    (tmp_path / "hangs.py").write_text(f"{ignores}; print(flush=True); time.sleep(99)")
    with Sweep(tmp_path, f"--seed 1 -- python {tmp_path}/hangs.py") as launcher:
        printed = tmp_path / "study/seed1/printed.txt"
        launcher.wait_for(lambda: printed.exists() and printed.read_text())
        os.kill(launcher.pid, signal.SIGINT)
        launcher.wait_for(lambda: "second Ctrl-C" in launcher.printed())
        os.kill(launcher.pid, signal.SIGINT)
        assert launcher.wait_for_end() == 130 and not launcher.session()


BAD = """
import os, pathlib, shutil, sys
from tests.support import fake_program
_, _, seed, _, savedir, _, xpid = sys.argv
path = pathlib.Path(savedir, xpid)
if seed == "1":
    shutil.rmtree(path)
elif seed == "2":
    (path / "meta.json").write_text('{"flags": {"total_steps": []}, "resumed": []}')
    (path / "logs.csv").write_text("step,hours\\n1,inf\\n2,1\\n3,nan\\n")
elif seed == "3":
    (path / "printed.txt").unlink()
    (path / "printed.txt").mkdir()
else:
    fake_program.main()
"""


def test_no_fault_of_a_run_or_its_folder_stops_the_others(tmp_path, monkeypatch, complete):
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "study").mkdir()
    (tmp_path / "study/seed5").touch()  # where its folder should be
    line = f"--cores_per_run 1 --retries 1 --seed 1-5 -- python {tmp_path}/bad.py"
    monkeypatch.setenv("PYTHONPATH", ".")
    printed = complete(line, code=1)
    assert "1 runs are complete, 4 failed." in printed and names(tmp_path) == ["seed4"]
    assert "seed5: cannot be started: the run's folder cannot be" in printed
    assert "seed2: failed at step 2" in printed and "seed3: cannot be started" in printed


def test_a_run_that_another_process_has_open_is_waited_for(tmp_path, complete):
    with hold(tmp_path / "study/seed1"), Sweep(tmp_path, "--seed 1-2") as launcher:
        launcher.wait_for(lambda: "seed2: complete" in launcher.printed())
        assert launcher.process.poll() is None and "seed1:" not in launcher.printed()
    assert complete("--seed 1-2").count("starts") == 1


# ============================================================================================ Slurm
def running(*words):
    """The processes whose command line has all these words."""
    found = psutil.process_iter(["cmdline"])
    lines = {process: " ".join(process.info["cmdline"] or ()) for process in found}
    return [process for process, line in lines.items() if all(word in line for word in words)]


@pytest.mark.filterwarnings("ignore:No submission happened")
def test_slurm_starts_a_run_again_after_it_moved_it(tmp_path, complete):
    """With submitit's local jobs, which get the signal that Slurm sends before it moves a job."""
    pytest.importorskip("submitit")
    line = f"--seed 1-2 --slurm cluster=local timeout_min=5 {FAKE} --total_steps 200"
    paths = [tmp_path / "study" / name for name in ("seed1", "seed2")]
    assert "Submitted 2 jobs: " in complete(line)
    wait_for(lambda: all(step_of(path) > 3 for path in paths))
    for job in running(str(tmp_path), "submitit.core._submit"):
        job.send_signal(signal.SIGUSR2)
    wait_for(lambda: not running(str(tmp_path)))
    for path in paths:
        assert counted(path) == list(range(1, 201))
        assert len((path / "printed.txt").read_text().splitlines()) == 2  # one for each start
    assert "Submitted 0 jobs" in complete(line)


def test_a_mistake_about_slurm_is_told(tmp_path):
    pytest.importorskip("submitit")
    unknown = ("cluster=local a_b=1", "Unknown executor 'a'")
    for options, message in (("", "Could not detect"), unknown, ("x", "expected .*, seen x")):
        with pytest.raises(UserError, match=f"--slurm.*: .*{message}"):
            sweep.sweep(words(tmp_path, f"--seed 1 --slurm {options} {FAKE}"))


# ======================================================================================== the table
def test_a_terminal_shows_the_runs_and_stops_them_when_it_is_closed(tmp_path):
    path, line = tmp_path / "study/seed1", f"--seed 1 {FAKE} --total_steps 1000000"
    with InTerminal(tmp_path, [*PROGRAM, *words(tmp_path, line)]) as launcher:
        row = r"seed1 +│ 0.0% +│ [\d.]+ +│ (\d\d:\d\d:\d\d|[\d.]+ days)"
        launcher.wait_while_reading(lambda: re.search(row, launcher.printed()))
        seen = launcher.printed()
        assert "time left" in seen and "0 complete, 0 waiting, 0 failed" in seen
        launcher.close_terminal()
        assert launcher.wait_for_end() > 0
    with hold(path):  # the run has ended
        assert counted(path) == list(range(1, step_of(path) + 1))
