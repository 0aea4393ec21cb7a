# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Forks as diffs: applied to a clean copy of the repository, and trained in real processes."""

import re
import shlex
import shutil
import subprocess
import sys

from tests.support.processes import ROOT, load

FORKS = {  # beast: the files that a fork edits
    "monobeast": {"monobeast.py"},
    "polybeast": {"polybeast.py", "polybeast_env.py"},
}
# Five updates; in bf16, as on a GPU, where a network's outputs must be float32 all the same.
SMALL = "--xpid run --total_steps 400 --batch_size 4 --precision bf16"
ENVS = {"monobeast": "--envs_per_actor 4", "polybeast": "--envs_per_server 4 --num_servers 1"}


def copy_repository(folder):
    """The files that a clone has, and the extension."""
    ignored = shutil.ignore_patterns(".*", "results", "build", "__pycache__", "node_modules")
    return shutil.copytree(ROOT, folder, ignore=ignored)


def apply(diff, folder):
    """Copies the repository to `folder` and applies the diff; returns the names of the files that
    have changed, new ones included."""
    copy_repository(folder)
    git = lambda *words: subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.split()
    git("init", "--quiet")
    git("add", "--all")
    git("apply", str(diff))
    return {*git("diff", "--name-only"), *git("ls-files", "--others", "--exclude=*.so")}


def command(example, beast):
    """The first command of an example's README for the beast: it trains."""
    text = (example / "README.md").read_text()
    return shlex.split(re.search(rf"^\.venv/bin/python (-m {beast} .*)$", text, re.MULTILINE)[1])


def check_fork(example, beast, tmp_path):
    """BEAST.diff of the example edits the marked files only, and its README's command, made small,
    trains."""
    copy = tmp_path / "copy"
    assert apply(example / f"{beast}.diff", copy) == FORKS[beast]
    flags = f"{SMALL} {ENVS[beast]} --savedir {tmp_path}".split()
    train = [sys.executable, *command(example, beast), *flags]
    run = subprocess.run(train, cwd=copy, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert load(tmp_path / "run")["updates"] >= 3
