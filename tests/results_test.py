# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The commands that the pages name for published results make the runs that were published."""

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = "".join((ROOT / name).read_text() for name in ("README.md", "docs/results.md"))
PONG = {"env": "PongNoFrameskip-v4"}
ASTERIX = {"env": "MinAtar/Asterix-v1"}
RECALL = {"env": "examples.memory.recall:Recall-v0", "learning_rate": 4e-4, "seed": 1}

# The runs that each command makes, with the flags that make them what they are published as.
PUBLISHED = {
    "results-pong": {"results-pong/seed1": PONG | {"seed": 1}},
    "results-poly-pong": {
        "results-poly-pong/seed1": PONG | {"seed": 1, "net": "monobeast.Net"},
    },
    "results-quick": {"quick": ASTERIX | {"seed": 4}},
    "results-minatar-Asterix": {
        "results-minatar/MinAtar-Asterix-v1_seed1": ASTERIX | {"seed": 1},
    },
    "results-poly-Asterix": {
        "results-poly-minatar/MinAtar-Asterix-v1_seed1": ASTERIX
        | {"seed": 1, "net": "monobeast.Net"},
    },
    "results-mujoco-Hopper": {
        "results-mujoco/Hopper-v5_seed1": {"env": "Hopper-v5", "seed": 1, "total_steps": 2000},
    },
    "results-poly-mujoco-Hopper": {
        "results-poly-mujoco/Hopper-v5_seed1": {"env": "Hopper-v5", "seed": 1, "total_steps": 2000},
    },
    "results-memory": {
        "results-memory/use_lstm=off_seed1": RECALL | {"use_lstm": False},
        "results-memory/use_lstm=on_seed1": RECALL | {"use_lstm": True},
    },
}


@pytest.mark.parametrize("target", PUBLISHED)
def test_published_runs(target, tmp_path):
    acting = "--envs_per_server 4" if "poly" in target else "--num_actors 0 --envs_per_actor 4"
    flags = f"--total_steps 2000 --log_every 0.5 --batch_size 4 {acting}"
    command = ["make", target, "SEEDS=1", f"FLAGS={flags}"]
    home = os.environ | {"HOME": str(tmp_path)}
    run = subprocess.run(command, cwd=ROOT, env=home, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    folder = tmp_path / "logs/torchbeast"
    seen = {}
    for path in {path.resolve() for path in folder.rglob("meta.json")}:
        flags = json.loads(path.read_text())["flags"]
        run = str(path.parent.relative_to(folder.resolve()))
        seen[run] = {name: flags[name] for name in PUBLISHED[target].get(run, {})}
    assert seen == PUBLISHED[target]
    assert (folder / "quick/plot.png").exists() == (target == "results-quick")


def test_the_published_agent_leads_its_game(tmp_path):
    shutil.copytree(ROOT / "results/pong/agent", tmp_path / "agent")
    flags = f"FLAGS=--savedir {tmp_path} --max_episode_steps 1000"
    command = ["make", "--silent", "play", flags]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    [score] = re.findall(r"^Mean return (\S+),", printed, re.MULTILINE)
    assert float(score) > 0  # a random agent has lost by then
    assert (tmp_path / "agent/test.mp4").stat().st_size > 100_000


def test_every_published_run_has_a_command():
    named = set(re.findall(r"\bmake (results-[\w-]+)", PAGES))
    assert named >= PUBLISHED.keys()


def test_the_runs_of_every_command_have_good_flags(tmp_path):
    named = set(re.findall(r"\bmake (results-[\w-]+)", PAGES)) - {"results-quick"}
    command = ["make", "--silent", *sorted(named), "SLOTS=--dry_run", "FLAGS="]
    home = os.environ | {"HOME": str(tmp_path)}
    printed = subprocess.run(command, cwd=ROOT, env=home, check=True, capture_output=True).stdout
    runs = re.findall(r"^\S+/python -m (\w+) (.*)", printed.decode(), re.MULTILINE)
    assert {program for program, _ in runs} == {"monobeast", "polybeast", "r2d2"}
    for program, flags in runs:
        importlib.import_module(program).parse(shlex.split(flags))
