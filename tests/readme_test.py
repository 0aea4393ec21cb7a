# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The README's commands run, its fork trains, and its tables name what there is."""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import monobeast
from libtorchbeast.stats import FIELDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SMALL = "--total_steps 400 --log_every 0.5 --savedir {savedir}"

# How each command is made small. The order is the README's; later ones use what earlier ones left.
SCALED = {
    "make train": f'make train FLAGS="{SMALL} --envs_per_actor 2"',
    ".venv/bin/python -m monobeast --xpid pong --mode test": (
        "{} --savedir {savedir} --num_episodes 1 --max_episode_steps 30"
    ),
    ".venv/bin/python -m monobeast --xpid pong --mode test_render": (
        "{} --savedir {savedir} --num_episodes 1 --max_episode_steps 30"
    ),
    ".venv/bin/python -m libtorchbeast.plot ~/logs/torchbeast/pong": (
        # A run this short has finished no game; any column with numbers will do.
        ".venv/bin/python -m libtorchbeast.plot {savedir}/pong --y sps --out {savedir}/plot.png"
    ),
    "make minatar": f'make minatar FLAGS="{SMALL} --envs_per_actor 4 --batch_size 4"',
    ".venv/bin/python -m monobeast --env CartPole-v1 --total_steps 500_000": (
        "{} " + SMALL + " --envs_per_actor 4 --batch_size 4"
    ),
    "make bench": (
        ".venv/bin/python -m benchmarks.monobeast --task minatar --seconds 0.1 "
        "--training_seconds 1 --envs_per_actor 4 --batch_size 4"
    ),
    "make lint": "{}",
}
NOT_RUN = {"make test": "it is this"}


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    lines = "".join(code_blocks("bash")).splitlines()
    return [line.split("#")[0].strip() for line in lines]


@pytest.fixture(scope="module")
def savedir(tmp_path_factory):
    return tmp_path_factory.mktemp("savedir")


def test_every_command_is_known_here():
    assert set(commands()) == SCALED.keys() | NOT_RUN.keys()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", SCALED)
def test_command(command, savedir):
    if "plot" in command and not (savedir / "pong" / "logs.csv").exists():
        pytest.fail("run the whole file: a command before this one makes the logs")
    scaled = SCALED[command].format(command, savedir=savedir)
    # Whatever Python runs the tests has what the commands need.
    scaled = scaled.replace(".venv/bin/python", sys.executable)
    run = subprocess.run(scaled, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    if "test_render" in command:
        assert (savedir / "pong" / "test.mp4").stat().st_size > 1000
    if "plot" in command:
        assert (savedir / "plot.png").stat().st_size > 1000


@pytest.mark.timeout(240)
def test_fork_of_one_file_trains(tmp_path):
    copy = tmp_path / "fork"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "results", "__pycache__"))
    subprocess.run(["git", "init", "-q", copy], check=True)
    diff = tmp_path / "fork.diff"
    (text,) = code_blocks("diff")
    diff.write_text(text)
    subprocess.run(["git", "apply", diff], cwd=copy, check=True)
    assert set(re.findall(r"^\+\+\+ b/(.*)$", text, re.MULTILINE)) == {"monobeast.py"}
    arguments = "--env FrozenLake-v1 --envs_per_actor 4 --batch_size 4 --total_steps 400 --savedir"
    run = subprocess.run(
        [sys.executable, "-m", "monobeast", *arguments.split(), tmp_path / "runs"],
        cwd=copy,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "Checkpoint saved" in run.stderr


def table_names(heading: str) -> set[str]:
    """What stands in backquotes in the first column of the tables below a heading."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\|([^|]*)\|", section, re.MULTILINE)
    return set(re.findall(r"`-*([a-z_]+)`", "".join(rows)))


def test_every_logged_column_is_explained():
    assert table_names("What each logged column means") == {"_tick", "_time", *FIELDS}


def test_defaults_in_the_readme_are_the_recipes():
    for name in monobeast.RECIPES["atari"]:
        row = re.search(rf"^\| `--{name}` \| ([^|]*) \|", README, re.MULTILINE)
        values = [float(v.replace("M", "e6")) for v in row[1].split(" / ")]
        assert values == [monobeast.RECIPES[kind][name] for kind in ("atari", "other")], name


def test_nothing_is_left_to_fill_in():
    assert not re.search(r"@[A-Z]+@", README)


def test_flags_named_in_the_readme_exist():
    flags = vars(monobeast.make_parser().parse_args([]))
    assert table_names("The flags that matter") <= flags.keys()
    monobeast.check_flags(argparse.Namespace(**flags))
