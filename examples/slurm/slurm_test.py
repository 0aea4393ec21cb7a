# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Tests the example without Slurm. submitit runs the same jobs on this machine, and the tests send
Slurm's signals: SIGUSR2 before a job's time limit, and SIGTERM to cancel a job."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from examples.slurm import launch
from tests.support.forks import command
from tests.support.processes import ROOT, Command, load, rows, wait_for

LOCAL = command(Path(__file__).parent, "examples.slurm.launch --cluster local")
SMALL = (
    "--xpid run --env tests.support.envs:Catch-v0 --server_flags='--envs_per_server 4' --settle 1 "
    "--minutes 9 --batch_size 4 --log_every 0.5"  # submitit calls it a time-out: below 10 minutes
)


class Jobs(Command):
    """Runs the README's command with small settings. Its jobs go on when the command has ended."""

    def __init__(self, tmp_path, *flags):
        self.path, self.folder = tmp_path / "run", tmp_path / "jobs"
        where = ["--savedir", tmp_path, "--folder", self.folder]
        super().__init__(tmp_path, [sys.executable, *LOCAL, *shlex.split(SMALL), *where, *flags])

    def __enter__(self):
        assert self.wait_for_end() == 0, self.printed()
        return self

    def stop(self):
        """Runs the command that the example has printed."""
        stop = re.search("^To save and stop: (kill [0-9 ]+)$", self.printed(), re.MULTILINE)[1]
        subprocess.run(stop, shell=True, check=True)

    def log(self):
        return "".join(path.read_text() for path in self.folder.glob("*/jobs/*.out"))

    def starts(self, module):
        return len(re.findall(f" -m {module} --env", self.log()))

    def job_of(self, module):
        """The process id of a job whose program is `python -m module`."""
        for pid in self.session():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.cmdline()[1:3] == ["-m", module]:
                    return process.ppid()
        return None

    def wait_for(self, fact):
        return wait_for(fact, describe=self.log)

    def wait_until_all_have_ended(self):
        self.wait_for(lambda: not self.session())


def test_a_time_out_is_survived(tmp_path):
    with Jobs(tmp_path, "--total_steps", 60_000) as jobs:
        before = jobs.wait_for(lambda: [r["step"] for r in rows(jobs.path) if r["step"] > 0])[0]
        os.kill(jobs.job_of("polybeast"), signal.SIGUSR2)
        jobs.wait_until_all_have_ended()
        log = jobs.log()
    resumed = re.findall(r"Resuming from step (\d+)", log)
    assert before <= int(resumed[-1]) < 60_000
    assert "this job is timed-out" in log and "Requeued job" in log
    steps = [row["step"] for row in rows(jobs.path)]
    assert steps == sorted(steps) and steps[-1] >= 60_000
    assert jobs.starts("polybeast_env") == 2  # the servers' jobs ran on
    assert log.count("Job completed successfully") == 3 and "Traceback" not in log


def test_servers_that_move_are_found_and_a_cancelled_run_is_saved(tmp_path):
    streams = lambda: rows(jobs.path)[-1:] and rows(jobs.path)[-1].get("streams")
    with Jobs(tmp_path, "--total_steps", 1_000_000_000) as jobs:
        jobs.wait_for(lambda: streams() == 2)
        os.kill(jobs.job_of("polybeast_env"), signal.SIGUSR2)
        jobs.wait_for(lambda: jobs.starts("polybeast_env") == 3)
        jobs.wait_for(lambda: jobs.starts("polybeast") == 2)
        resumed = jobs.wait_for(lambda: re.findall(r"Resuming from step (\d+)", jobs.log()))
        step = int(resumed[-1])
        jobs.wait_for(lambda: rows(jobs.path)[-1]["step"] > step and streams() == 2)
        jobs.stop()
        jobs.wait_until_all_have_ended()
        log = jobs.log()
    assert load(jobs.path)["step"] == rows(jobs.path)[-1]["step"] > step > 0
    assert "Traceback" not in log


def test_servers_that_all_fail_end_the_run(tmp_path):
    with Jobs(tmp_path, "--env", "Missing-v0") as jobs:
        jobs.wait_until_all_have_ended()
        log = jobs.log()
    assert "Environment `Missing` doesn't exist" in log
    assert "RuntimeError: all server jobs have failed" in log


def test_servers_do_not_stay_without_a_learner_s_job(tmp_path, monkeypatch):
    """For example, when Slurm accepts the servers' jobs but has no partition `gpu`."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(launch.LEARNER_JOB, "local_partition", "gpu")
    words = ["--folder", str(tmp_path), *LOCAL[2:]]
    with pytest.raises(NameError, match="partition"):
        launch.main(words)
    log = lambda: "".join(path.read_text() for path in tmp_path.glob("*/jobs/*.out"))
    wait_for(lambda: log().count("Job completed successfully") == 2, describe=log)


def test_learners_on_two_machines_start_and_stop_together(tmp_path):
    """The two machines are two processes of this one, each with a torchrun of its own."""
    started = lambda node: jobs.log().count(f"--nnodes 2 --node_rank {node} --nproc_per_node 1 ")
    with Jobs(tmp_path, "--learner_nodes", 2, "--total_steps", 1_000_000_000) as jobs:
        jobs.wait_for(lambda: [r for r in rows(jobs.path) if r["step"] > 0])
        os.kill(jobs.job_of("polybeast_env"), signal.SIGUSR2)  # so the learners start again
        resumed = jobs.wait_for(lambda: re.findall(r"Resuming from step (\d+)", jobs.log()))
        jobs.wait_for(lambda: rows(jobs.path)[-1]["step"] > int(resumed[0]))
        jobs.stop()
        jobs.wait_until_all_have_ended()
    assert "4 columns = 2 ranks x 2; 8 environments" in jobs.log()
    assert load(jobs.path)["step"] == rows(jobs.path)[-1]["step"] > int(resumed[0]) > 0
    assert started(0) == started(1) >= 2


def test_slurm_is_asked_for_machines_and_devices(tmp_path, monkeypatch):
    """A program that stands for sbatch keeps what it gets."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("sbatch", "srun"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\ncat "$1" >> {tmp_path}/asked\necho Submitted job 12345\n')
        program.chmod(0o700)
    words = ["--learners", "4", "--learner_nodes", "2", "--server_jobs", "3"]
    launch.main(["--xpid", "run", "--folder", str(tmp_path / "jobs"), *words])
    servers, learner = (tmp_path / "asked").read_text().split("#!/bin/bash\n")[1:]
    assert "#SBATCH --array=0-2" in servers and "--gpus-per-node" not in servers
    expected = "nodes=2 ntasks-per-node=1 gpus-per-node=4 cpus-per-task=32 mem=128GB requeue"
    for option in [*expected.split(), "dependency=after:12345"]:
        assert f"#SBATCH --{option}\n" in learner, learner


def test_what_the_jobs_share_is_their_users_only(tmp_path):
    flags = launch.parse(["--xpid", "run", "--folder", str(tmp_path / "new")])
    folder = launch.make_folder(flags)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.key")} == {0o600}


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("--batch_sise 4", "unrecognized flag --batch_sise: did you mean --"),
        ("--server_flags=--envs_per_sever=4", "unrecognized flag --envs_per_sever: did you mean"),
        ("--xpid a/b", "--xpid a/b: expected a plain folder name"),
        ("--mode test", "--mode test: expected train"),
        ("--xpid latest", "--xpid latest: expected a plain folder name, and not latest"),
        ("--server_jobs 0", "--server_jobs: 0: expected at least 1"),
    ],
)
def test_a_wrong_flag_is_refused_before_it_waits_in_the_queue(words, wrong, capsys):
    with pytest.raises(SystemExit):
        launch.parse(["--xpid", "run", *words.split()])
    assert wrong in capsys.readouterr().err
