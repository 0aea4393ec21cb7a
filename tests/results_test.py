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
PONG = {"env": "PongNoFrameskip-v4", "seed": 1}
ASTERIX = {"env": "MinAtar/Asterix-v1", "seed": 1}
RECALL = {"env": "examples.memory.recall:Recall-v0", "learning_rate": 4e-4, "seed": 1}

# One run of each command, by its name, with the flags that make it what it is published as.
PUBLISHED = {
    "results-pong": ("monobeast", "seed1", PONG),
    "results-poly-pong": ("polybeast", "seed1", PONG | {"net": "monobeast.Net"}),
    "results-minatar-Asterix": ("monobeast", "MinAtar-Asterix-v1_seed1", ASTERIX),
    "results-poly-Asterix": (
        "polybeast", "MinAtar-Asterix-v1_seed1", ASTERIX | {"net": "monobeast.Net"},
    ),
    "results-mujoco-Hopper": ("monobeast", "Hopper-v5_seed1", {"env": "Hopper-v5", "seed": 1}),
    "results-poly-mujoco-Hopper": ("polybeast", "Hopper-v5_seed1", {"env": "Hopper-v5", "seed": 1}),
    "results-memory": ("monobeast", "use_lstm=on_seed1", RECALL | {"use_lstm": True}),
}  # fmt: skip


def make(*words, home):
    """What `make` prints, with runs in the folder `home`."""
    environment = os.environ | {"HOME": str(home)}
    command = ["make", "--silent", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_runs_of_every_command_are_those_published(tmp_path):
    targets = set(re.findall(r"\bmake (results-[\w-]+)", PAGES)) - {"results-quick"}
    assert targets >= PUBLISHED.keys()
    poly, printed, runs = {name for name in targets if "poly" in name}, "", set()
    for names in (poly, targets - poly):  # one `make` makes only one of two with one pattern rule
        printed += make(*sorted(names), "SLOTS=--dry_run", "SEEDS=1", "FLAGS=", home=tmp_path)
    for program, words in re.findall(r"^\S+/python -m (\w+) (.*)", printed, re.MULTILINE):
        flags = importlib.import_module(program).parse(shlex.split(words))
        for target, (beast, name, published) in PUBLISHED.items():
            if (beast, name) == (program, flags.xpid) and published.items() <= vars(flags).items():
                runs.add(target)
    assert runs == PUBLISHED.keys()


def test_the_smallest_result_is_made_and_plotted(tmp_path):
    small = "--total_steps 2000 --log_every 0.5 --batch_size 4 --num_actors 0 --envs_per_actor 4"
    make("results-quick", f"FLAGS={small}", home=tmp_path)
    folder = tmp_path / "logs/torchbeast/quick"
    flags = json.loads((folder / "meta.json").read_text())["flags"]
    assert (ASTERIX | {"seed": 4}).items() <= flags.items()
    assert (folder / "plot.png").exists()


# Steps of one game, and the return that a random agent does not have by then.
AGENTS = {"pong": (1000, 0), "asterix": (500, 2), "hopper": (1000, 1000)}


@pytest.mark.parametrize("name", AGENTS)
def test_the_published_agents_play(name, tmp_path):
    """Pong is filmed; a robot's film needs a display."""
    shutil.copytree(ROOT / "results/agents" / name, tmp_path / name)
    steps, by_chance = AGENTS[name]
    flags = f"FLAGS=--savedir {tmp_path} --max_episode_steps {steps}"
    flags += "" if name == "pong" else " --mode test"
    printed = make("play", f"GAME={name}", flags, home=tmp_path)
    [score] = re.findall(r"^Mean return (\S+),", printed, re.MULTILINE)
    assert float(score) > by_chance
    assert name != "pong" or (tmp_path / name / "test.mp4").stat().st_size > 100_000
