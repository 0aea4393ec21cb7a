# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Applies forks, which are diffs, to a clean copy of the repository, and trains with them."""

import contextlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys

from libtorchbeast.tools import fork_diff
from tests.support.monobeast import as_it_was
from tests.support.processes import ROOT, load, rows

FORKS = {  # beast: the files that a fork edits
    "monobeast": {"monobeast.py"},
    "polybeast": {"polybeast.py", "polybeast_env.py"},
}
# Five updates. They run in bf16, as on a GPU, where a network's outputs must still be float32.
SMALL = "--xpid run --total_steps 400 --batch_size 4 --precision bf16"
ENVS = {
    "monobeast": "--num_actors 0 --envs_per_actor 4",
    "polybeast": "--num_servers 1 --envs_per_server 4",
}


def copy_repository(folder, root=ROOT):
    """Copies the files that a clone has, and the built extension."""
    ignored = shutil.ignore_patterns(".*", "results", "build", "__pycache__", "node_modules")
    return shutil.copytree(root, folder, ignore=ignored)


def git(folder, *words):
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def apply(diff, folder, copy=copy_repository):
    """Copies the repository to `folder`, commits it, and applies the diff. Returns the names of the
    files that it changes or adds."""
    copy(folder)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "base")
    git(folder, "apply", str(diff))
    new = git(folder, "ls-files", "--others", "--exclude=*.so").split()
    return {*git(folder, "diff", "--name-only").split(), *new}


def command(example, beast):
    """The words of the first command for the beast in an example's README."""
    text = (example / "README.md").read_text().replace("\\\n", " ")
    return shlex.split(re.search(rf"^\.venv/bin/python (-m {beast} .*)$", text, re.MULTILINE)[1])


def run_python(words, folder, text=""):
    """Runs Python in the folder with `text` as its input, and returns what it prints."""
    run = subprocess.run(
        [sys.executable, *words], cwd=folder, input=text, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def check_fork(example, beast, tmp_path, edited=None, more=""):
    """Checks that the example's BEAST.diff edits only the files that a fork may edit (or exactly
    `edited`), and that the README's command trains, with small settings and `more` flags. Returns
    the fork's folder."""
    copy = tmp_path / "copy"
    assert apply(example / f"{beast}.diff", copy) == (edited or FORKS[beast])
    flags = f"{SMALL} {ENVS[beast]} {more} --savedir {tmp_path}".split()
    run_python([*command(example, beast), *flags], copy)
    assert load(tmp_path / "run")["updates"] >= 3
    return copy


def import_fork(copy):
    spec = importlib.util.spec_from_file_location("fork", copy / "monobeast.py")
    fork = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fork)
    return fork


# What the tests in tests/forks use. Each NAME_test.py there is about the fork NAME.diff.
ALGORITHMS = {
    "impala": "--passes 1 --minibatches 1 --ppo_clip 0",
    "ppo": "--passes 2 --minibatches 2 --ppo_clip 0.2",
}
RUNS = ("impala", "impala-recurrent", "ppo", "ppo-recurrent")  # without processes of their own
IN_ORDER = (
    "--num_actors 0 --envs_per_actor 8 --batch_size 4 --unroll_length 10 --precision fp32 "
    "--log_every 1000 --seed 1"  # one row for each command
)
PROGRAMS = {  # with an actor or a server: their words
    "monobeast": "--num_actors 1 --envs_per_actor 8 --batch_size 8",
    "polybeast": "--num_servers 1 --envs_per_server 8 --batch_size 8 --net monobeast.Net",
}
BEASTS = ("monobeast", "polybeast", "warpbeast", "r2d2")


def parts_of(run):
    """The words of the algorithm of one of RUNS, and "-recurrent" or ""."""
    algorithm, dash, core = run.partition("-")
    return ALGORITHMS[algorithm], dash + core


def copy_monobeast(folder):
    folder.mkdir()
    shutil.copy(ROOT / "monobeast.py", folder)


@contextlib.contextmanager
def imported_from(folder):
    """Programs are imported from this folder, if they are there, here and in child processes."""
    before = {name: sys.modules.pop(name) for name in BEASTS if name in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in BEASTS:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def in_programs(words, steps):
    return [f"{p} --xpid {p} --total_steps {steps} {own} {words}" for p, own in PROGRAMS.items()]


class Fork:
    """A copy of monobeast.py with tests/forks/NAME.diff, which may only change its marked places,
    and the runs that it trains, in `savedir`. If there is no such file, because an environment is
    all that is needed, no copy is made."""

    def __init__(self, name, folder):
        self.copy, self.savedir = ROOT, folder / "runs"
        diff = ROOT / f"tests/forks/{name}.diff"
        if diff.exists():
            self.copy = folder / "copy"
            assert apply(diff, self.copy, copy_monobeast) == {"monobeast.py"}
            added, removed, _ = git(self.copy, "diff", "--numstat").split()
            assert int(added) + int(removed) <= 60
            assert fork_diff.outside("HEAD", self.copy) == ""

    def main(self, *commands):
        """Runs commands, such as "monobeast --xpid run --total_steps 1000", one after the other in
        this process, because imports take seconds. Returns for each what it has printed, or the
        sentence with which it was refused."""
        own, said = f"--savedir {self.savedir} --torch_threads 1 --eval_every 0", []
        with imported_from(self.copy), as_it_was():
            for one in commands:
                program, *words = f"{one} {own}".split()
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    try:
                        importlib.import_module(program).main(words)
                        said.append(printed.getvalue())
                    except SystemExit as refused:
                        said.append(refused.code)
        return said

    def train(self, words, core, first_steps, steps, *more):
        """Trains the four RUNS, the recurrent ones with the words `core`. Each is stopped after
        about `first_steps` steps and resumed, so that its log has two rows, with the means over
        both parts. Returns what `main` returns for the further commands `more`."""
        commands = []
        for run in RUNS:
            algorithm, is_recurrent = parts_of(run)
            own = f"{IN_ORDER} {words} {algorithm} {core if is_recurrent else ''}"
            commands.append(f"monobeast --xpid {run} --total_steps {first_steps} {own}")
            commands.append(f"monobeast --xpid {run} --total_steps {steps}")
        said = self.main(*commands, *more)
        trained, others = said[: len(commands)], said[len(commands) :]
        assert not any("error:" in text for text in trained), trained
        return others

    def rows(self, xpid):
        """The rows of its logs.csv, as dicts of floats without empty cells."""
        return rows(self.savedir / xpid)

    def checkpoint(self, xpid):
        return load(self.savedir / xpid)
