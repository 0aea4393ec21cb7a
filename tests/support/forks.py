# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Applies forks, which are diffs, to a clean copy of the repository, and trains with them."""

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
# Five updates. They run in bf16, as on a GPU, where a network's outputs must still be float32.
SMALL = "--xpid run --total_steps 400 --batch_size 4 --precision bf16"
ENVS = {"monobeast": "--envs_per_actor 4", "polybeast": "--envs_per_server 4 --num_servers 1"}


def copy_repository(folder):
    """Copies the files that a clone has, and the built extension."""
    ignored = shutil.ignore_patterns(".*", "results", "build", "__pycache__", "node_modules")
    return shutil.copytree(ROOT, folder, ignore=ignored)


def apply(diff, folder):
    """Copies the repository to `folder` and applies the diff. Returns the names of the files that
    it changes or adds."""
    copy_repository(folder)
    git = lambda *words: subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.split()
    git("init", "--quiet")
    git("add", "--all")
    git("apply", str(diff))
    return {*git("diff", "--name-only"), *git("ls-files", "--others", "--exclude=*.so")}


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
