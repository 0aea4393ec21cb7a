# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The README's commands run, its fork is an example, and its tables name what there is."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import monobeast
import polybeast
import polybeast_env
from libtorchbeast.loggers.columns import FIELDS

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
    ".venv/bin/python -m libtorchbeast.tools.plot ~/logs/torchbeast/pong": (
        # A run this short has finished no game; any column with numbers will do.
        ".venv/bin/python -m libtorchbeast.tools.plot {savedir}/pong --y sps "
        "--out {savedir}/plot.png"
    ),
    "make poly": f'make poly FLAGS="{SMALL} --envs_per_server 2"',
    ".venv/bin/python -m polybeast --xpid pong-poly --mode test": (
        "{} --savedir {savedir} --num_episodes 1 --max_episode_steps 30"
    ),
    ".venv/bin/python -m polybeast --xpid pong-poly --mode test_render": (
        "{} --savedir {savedir} --num_episodes 1 --max_episode_steps 30"
    ),
    "make minatar": f'make minatar FLAGS="{SMALL} --envs_per_actor 4 --batch_size 4"',
    ".venv/bin/python -m monobeast --env CartPole-v1 --total_steps 500_000": (
        "{} " + SMALL + " --envs_per_actor 4 --batch_size 4"
    ),
    "make bench": (
        ".venv/bin/python -m benchmarks --quick --out {savedir}/bench "
        "--only '^transport_small$|^raw Pong$'"  # benchmarks_test.py has a whole run
    ),
    "make lint": "{}",
    ".venv/bin/python -m libtorchbeast.tools.certificates certificates --hosts envs-1,envs-2": (
        ".venv/bin/python -m libtorchbeast.tools.certificates {savedir}/certificates --hosts envs-1"
    ),
}
NOT_RUN = {
    "make test": "it is this",
    "make test-examples": "it needs Node.js and more packages",
    "make tsan": "core_test.py does it",
    "make asan": "core_test.py does it",
    "make fuzz": "it needs clang; faults_strangers_test.py gives the decoder the same corpus",
    "make faults": "hours; faults_*_test.py do it in small",
    "make soak": "an hour; soak_test.py does it in small",
    "python3 -m venv .venv && .venv/bin/pip install -r requirements-env.txt": "it would change the "
    "environment that runs the tests",
}
MANY_MACHINES = "network_test.py does it between two network namespaces, tls_test.py with TLS"
OLD = "from_torchbeast_test.py does it"
FORK = "examples/minatar/minatar_test.py does it, in a copy"
NOT_RUN |= {
    ".venv/bin/python -m polybeast_env --server_addresses 0.0.0.0:5000-5015 --tls_cert envs-1.crt "
    "--tls_key envs-1.key --tls_ca ca.crt": MANY_MACHINES,
    ".venv/bin/python -m polybeast --xpid pong-many --server_addresses "
    "envs-1:5000-5015,envs-2:5000-5015 --tls_cert certificates/learner.crt "
    "--tls_key certificates/learner.key --tls_ca certificates/ca.crt": MANY_MACHINES,
    ".venv/bin/python -m libtorchbeast.tools.from_torchbeast OLD/model.tar --xpid old": OLD,
    ".venv/bin/python -m libtorchbeast.tools.plot OLD/logs.csv": OLD,
    "git apply examples/minatar/monobeast.diff": FORK,
    ".venv/bin/python -m monobeast --env MinAtar/Breakout-v1 --xpid minatar "
    "--total_steps 300_000": FORK,
}


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
        assert (savedir / command.split()[4] / "test.mp4").stat().st_size > 1000
    if "plot" in command:
        assert (savedir / "plot.png").stat().st_size > 1000


PONG = {"env": "PongNoFrameskip-v4"}
ASTERIX = {"env": "MinAtar/Asterix-v1"}
RECALL = {"env": "examples.memory.recall:Recall-v0", "learning_rate": 4e-4, "seed": 1}

# The runs that each command makes, with the flags that make them what they are published as.
PUBLISHED = {
    "results-pong": {"pong-1": PONG | {"seed": 1}},
    "results-poly-pong": {"pong-poly-1": PONG | {"seed": 1, "net": "monobeast.Net"}},
    "results-quick": {"quick": ASTERIX | {"seed": 4}},
    "results-minatar-Asterix": {"Asterix-1": ASTERIX | {"seed": 1}},
    "results-poly-Asterix": {"Asterix-poly-1": ASTERIX | {"seed": 1, "net": "monobeast.Net"}},
    "results-memory": {
        "feedforward-1": RECALL | {"use_lstm": False},
        "lstm-1": RECALL | {"use_lstm": True},
    },
}


@pytest.mark.parametrize("target", PUBLISHED)
def test_published_runs(target, tmp_path):
    width = "--envs_per_server" if "poly" in target else "--envs_per_actor"
    flags = f"--total_steps 2000 --log_every 0.5 --batch_size 4 {width} 4"
    command = ["make", target, "SEEDS=1", f"FLAGS={flags}"]
    home = os.environ | {"HOME": str(tmp_path)}
    run = subprocess.run(command, cwd=ROOT, env=home, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    folder = tmp_path / "logs/torchbeast"
    seen = {}
    for path in folder.glob("*/meta.json"):
        flags = json.loads(path.read_text())["flags"]
        wanted = PUBLISHED[target].get(path.parent.resolve().name, {})
        seen[path.parent.resolve().name] = {name: flags[name] for name in wanted}
    assert seen == PUBLISHED[target]
    assert (folder / "quick/plot.png").exists() == (target == "results-quick")


def test_every_published_run_has_a_command():
    named = set(re.findall(r"`make (results-[\w-]+)`", README))
    assert named >= PUBLISHED.keys()
    subprocess.run(["make", "-n", *named], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_the_forks_shown_are_those_of_examples():
    """The examples' tests apply these diffs and train with them."""
    shown = [path.read_text() for path in sorted((ROOT / "examples/minatar").glob("*.diff"))]
    assert code_blocks("diff") == shown


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_what_a_page_names_is_there(page):
    """Links and paths of this repository, and modules of commands."""
    text = (ROOT / page).read_text()
    paths = re.findall(r"\]\(([^)#:]+)\)", text)
    paths += re.findall(r"`((?:libtorchbeast|tests|examples|benchmarks)/[\w./]+)`", text)
    paths += [
        name.replace(".", "/") + ".py" for name in re.findall(r"-m (libtorchbeast[\w.]+)", text)
    ]
    assert paths or page == "SECURITY.md"
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing


def table_names(heading: str) -> set[str]:
    """The words in backquotes in the first column of the tables below a heading."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\|([^|]*)\|", section, re.MULTILINE)
    return set(re.findall(r"`-*([a-z0-9_]+)`", "".join(rows)))


def test_every_logged_column_is_explained():
    assert table_names("What each logged column means") == {"_tick", "_time", *FIELDS}


@pytest.mark.parametrize("program", [monobeast, polybeast, polybeast_env])
def test_defaults_in_the_readme_are_the_recipes(program):
    for name in program.RECIPES["atari"]:
        row = re.search(rf"^\| `--{name}` \| ([^|]*) \|", README, re.MULTILINE)
        values = [float(v.replace("M", "e6")) for v in row[1].split(" / ")]
        assert values == [program.RECIPES[kind][name] for kind in ("atari", "other")], name


def test_nothing_is_left_to_fill_in():
    assert not re.search(r"@[A-Z]+@", README)


def test_flags_named_in_the_readme_exist():
    flags = set()
    for beast in (monobeast, polybeast):
        defaults = vars(beast.make_parser().parse_args([]))
        beast.check_flags(argparse.Namespace(**defaults))
        flags |= defaults.keys()
    assert table_names("The flags that matter") <= flags
