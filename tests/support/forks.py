# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Applies forks, which are diffs, to a clean copy of the repository, and trains with them."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

from libtorchbeast.tools import fork_diff
from tests.support.processes import ROOT, load, rows

FORKS = {  # beast: the files that a fork edits
    "monobeast": {"monobeast.py"},
    "polybeast": {"polybeast.py", "polybeast_env.py"},
}
# Five updates. They run in bf16, as on a GPU, where a network's outputs must still be float32.
SMALL = "--xpid run --total_steps 400 --batch_size 4 --precision bf16"
ENVS = {"monobeast": "--envs_per_actor 4", "polybeast": "--envs_per_server 4 --num_servers 1"}


def copy_repository(folder):
    """Copies the files that a clone has, and the built extension."""
    ignored = shutil.ignore_patterns(".*", "results", "build", "__pycache__", "node_modules")
    return shutil.copytree(ROOT, folder, ignore=ignored)


def git(folder, *words):
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def apply(diff, folder):
    """Copies the repository to `folder`, commits it, and applies the diff. Returns the names of the
    files that it changes or adds."""
    copy_repository(folder)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "base")
    git(folder, "apply", str(diff))
    new = git(folder, "ls-files", "--others", "--exclude=*.so").split()
    return {*git(folder, "diff", "--name-only").split(), *new}


def command(example, beast):
    """The words of the first command for the beast in an example's README."""
    text = (example / "README.md").read_text()
    return shlex.split(re.search(rf"^\.venv/bin/python (-m {beast} .*)$", text, re.MULTILINE)[1])


def check_fork(example, beast, tmp_path):
    """Checks that the example's BEAST.diff edits only the files that a fork may edit, and that the
    README's command trains, with small settings."""
    copy = tmp_path / "copy"
    assert apply(example / f"{beast}.diff", copy) == FORKS[beast]
    flags = f"{SMALL} {ENVS[beast]} --savedir {tmp_path}".split()
    train = [sys.executable, *command(example, beast), *flags]
    run = subprocess.run(train, cwd=copy, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert load(tmp_path / "run")["updates"] >= 3


# What the tests in tests/forks use. Each NAME_test.py there is about the fork NAME.diff.
ALGORITHMS = {  # the words of each run in the test's own kind of process
    "impala": "--passes 1 --minibatches 1 --ppo_clip 0",
    "ppo": "--passes 2 --minibatches 2 --ppo_clip 0.2",
}
IN_ORDER = (
    "--num_actors 0 --envs_per_actor 8 --batch_size 8 --unroll_length 20 --precision fp32 "
    "--torch_threads 1 --eval_every 0 --log_every 1000 --seed 1"  # one row, of the whole run
)
PROGRAMS = {  # programs that start processes: their words
    "monobeast": "--num_actors 2 --envs_per_actor 4 --batch_size 8",
    "polybeast": "--num_servers 1 --envs_per_server 8 --batch_size 8 --net monobeast.Net",
}
MAIN = """
import json, sys, monobeast
said = []
for command in sys.stdin.read().splitlines():
    try:
        said.append(monobeast.main(command.split()) or "")
    except SystemExit as refused:
        said.append(refused.code)
print(json.dumps(said))
"""


class Fork:
    """A clean copy of the repository with tests/forks/NAME.diff, and the runs that it trains.

    Attributes:
        copy, savedir: the folders of the copy and of its runs.
    """

    def __init__(self, name, folder):
        self.copy, self.savedir = folder / "copy", folder / "runs"
        self.changed = apply(ROOT / f"tests/forks/{name}.diff", self.copy)

    def lines(self):
        """How many lines the patch adds and removes."""
        added_and_removed = git(self.copy, "diff", "--numstat").split()[:2]
        return sum(map(int, added_and_removed))

    def outside(self):
        """The changes outside the marked places."""
        return fork_diff.outside("HEAD", self.copy)

    def main(self, *commands):
        """Runs MonoBeast with each of the commands, all in one process without actors. Returns for
        each the sentence with which it was refused, or "".

        Args:
            commands: words such as "--xpid run --total_steps 1000".
        """
        lines = [f"--savedir {self.savedir} {command}" for command in commands]
        return json.loads(self._run(["-c", MAIN], "\n".join(lines)).splitlines()[-1])

    def train(self, words, core, first_steps, steps):
        """Trains four runs, "impala", "ppo", "impala-recurrent" and "ppo-recurrent". Each is
        stopped after about `first_steps` steps and resumed, so that its log has two rows, with the
        means over both parts.

        Args:
            words: of each command.
            core: of the recurrent ones, such as "--use_lstm".
        """
        commands = []
        for name, algorithm in ALGORITHMS.items():
            for xpid, own in ((name, ""), (f"{name}-recurrent", core)):
                first = f"--total_steps {first_steps} {IN_ORDER} {words} {algorithm} {own}"
                commands += [f"--xpid {xpid} {first}", f"--xpid {xpid} --total_steps {steps}"]
        said = self.main(*commands)
        assert said == [""] * len(commands), said

    def start(self, program, words):
        """Trains with a program's actors or servers, in a run that has the program's name."""
        where = f"--savedir {self.savedir} --xpid {program} {PROGRAMS[program]}"
        self._run(["-m", program, *f"{where} --eval_every 0 --torch_threads 1 {words}".split()])

    def _run(self, words, text=""):
        run = subprocess.run(
            [sys.executable, *words], cwd=self.copy, input=text, capture_output=True, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def rows(self, xpid):
        """The rows of its logs.csv, as dicts of floats without empty cells."""
        return rows(self.savedir / xpid)

    def checkpoint(self, xpid):
        return load(self.savedir / xpid)

    def log(self, xpid):
        return (self.savedir / xpid / "out.log").read_text()
