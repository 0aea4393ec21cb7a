# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The commands that the pages name for published results make the runs that were published."""

import importlib
import json
import re
import shlex
import shutil

import pytest

import monobeast
from libtorchbeast.tools import sweep
from tests.support.makefile import programs
from tests.support.processes import ROOT

PAGES = "".join((ROOT / name).read_text() for name in ("README.md", "docs/results.md"))
PONG = {"env": "PongNoFrameskip-v4", "seed": 1, "total_steps": 2_000_000}
PONG |= {"observation_scaling": "pixels", "entropy_schedule": "linear"}
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
    "results-memory": ("monobeast", "use_lstm=on_seed1", RECALL | {"core": "lstm"}),
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("as_before")


def test_the_runs_of_every_command_are_those_published(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    targets = set(re.findall(r"\bmake (results-[\w-]+)", PAGES)) - {"results-quick"}
    assert targets >= PUBLISHED.keys()
    poly, runs = {name for name in targets if "poly" in name}, set()
    for names in (poly, targets - poly):  # one `make` makes only one of two with one pattern rule
        for _, words in programs(*sorted(names), "SLOTS=--dry_run", "SEEDS=1", "FLAGS="):
            assert sweep.sweep(words) == 0
    printed = capsys.readouterr().out
    for program, words in re.findall(r"^\S+/python -m (\w+) (.*)", printed, re.MULTILINE):
        flags = importlib.import_module(program).parse(shlex.split(words))
        for target, (beast, name, published) in PUBLISHED.items():
            if (beast, name) == (program, flags.xpid) and published.items() <= vars(flags).items():
                runs.add(target)
    assert runs == PUBLISHED.keys()


def test_the_smallest_result_is_made_and_plotted(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    small = "--total_steps 1000 --log_every 0.5 --batch_size 4 --num_actors 0 --envs_per_actor 4"
    for program, words in programs("results-quick", f"FLAGS={small}"):
        importlib.import_module(program).main(words)
    folder = tmp_path / "logs/torchbeast/quick"
    flags = json.loads((folder / "meta.json").read_text())["flags"]
    assert (ASTERIX | {"seed": 4}).items() <= flags.items()
    assert (folder / "plot.png").exists()


# Steps of one game, and the return that a random agent does not have by then.
AGENTS = {"pong": (1000, 0), "breakout": (300, 1), "asterix": (500, 2), "hopper": (1000, 1000)}


@pytest.mark.parametrize("name", AGENTS)
def test_the_published_agents_play(name, tmp_path, capsys):
    """The shortest game is filmed; a robot's film needs a display."""
    shutil.copytree(ROOT / "results/agents" / name, tmp_path / name)
    steps, by_chance = AGENTS[name]
    flags = f"FLAGS=--savedir {tmp_path} --max_episode_steps {steps}"
    flags += "" if name == "breakout" else " --mode test"
    [(_, words)] = programs("play", f"GAME={name}", flags)
    monobeast.main(words)
    [score] = re.findall(r"^Mean return (\S+),", capsys.readouterr().out, re.MULTILINE)
    assert float(score) > by_chance
    assert name != "breakout" or (tmp_path / name / "test.mp4").stat().st_size > 100_000
