# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The README and the pages behind it: their commands run, and what they name exists."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import monobeast
import polybeast
import polybeast_env
import r2d2
import warpbeast
from docs import generate
from libtorchbeast.tools import plot, report, sweep
from tests.gpu import __main__ as gpu
from tests.support.forks import copy_repository
from tests.support.makefile import printed, programs
from tests.support.processes import ROOT, load, rows

DOCS = sorted((ROOT / "docs").glob("*.md"))
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]
EVERY_PAGE = [*PAGES, ROOT / "results/README.md", *sorted(ROOT.glob("examples/**/README.md"))]

SMALL = "--total_steps 400 --log_every 0.5 --torch_threads 1 --savedir {savedir}"
FOUR = "--envs_per_actor 4 --batch_size 4"
ONE_GAME = "{} --savedir {savedir} --num_episodes 1 --max_episode_steps 30"

# How each command is made small. They run in this order; later ones use what earlier ones left.
# Here and below, commands have lost the words that most of them begin with.
PYTHON = ".venv/bin/python -m "
SCALED = {
    "make train": f'make train FLAGS="{SMALL} --envs_per_actor 2"',
    "monobeast --xpid pong --mode test": ONE_GAME,
    "monobeast --xpid pong --mode test_render": ONE_GAME,
    "monobeast --xpid pong --mode export": "{} --savedir {savedir}",
    # A run this short has finished no game; any column with numbers will do.
    "libtorchbeast.tools.plot ~/logs/torchbeast/pong": (
        "libtorchbeast.tools.plot {savedir}/pong --y sps --out {savedir}/plot.png"
    ),
    "make poly": f'make poly FLAGS="{SMALL} --envs_per_server 2 --num_servers 1"',
    "polybeast --xpid pong-poly --mode test": ONE_GAME,
    "polybeast --xpid pong-poly --mode test_render": ONE_GAME,
    "r2d2 --env examples.memory.recall:Recall-v0 --xpid recall-r2d2 --total_steps 100_000 "
    "--eval_every 20_000": f"{{}} {SMALL} --envs_per_server 4 --replay_start 100",
    "r2d2 --xpid recall-r2d2 --mode test": ONE_GAME,
    "make lint": "{}",
}

# How the others begin, after the reason for which they are not run here.
FORK = "monobeast --env FrozenLake-v1"
NOT_RUN = {
    "test_the_readmes_fork_trains does it, in a copy": [FORK],
    "results_test.py does it, in small": ["make play", "make results-", "make minatar"],
    "run_test.py begins runs in this way": ["monobeast --xpid hard"],
    "r2d2_test.py learns a shorter one": ["r2d2 --env examples.memory.recall:Recall-20-v0"],
    "control_test.py does it": ["polybeast --env arm:Arm-v0", "monobeast --env CartPole-v1"],
    "several_learners_test.py does it": [".venv/bin/torchrun "],
    "it runs this test, or needs Node.js and more packages": ["make test"],
    "core_test.py does it": ["make tsan", "make asan"],
    "faults_strangers_test.py has the same corpus; it needs clang": ["make fuzz"],
    "the tests of that name do it in small; it takes long, or needs a GPU": [
        "make bench", "make faults", "make fork-diff", "make gpu", "make mutants", "make soak",
        "libtorchbeast.tools.certificates", "libtorchbeast.tools.report ",
        "libtorchbeast.tools.sweep lr",
    ],
    "against_test.py does it with a small repository": ["benchmarks "],
    "`name` stands for a test's name": ["pytest tests/vtrace_test.py -k name"],
    "it would change files": [
        "make docs", "make format", "make clean", "protoc ", "python3 -m venv .venv",
    ],
    "network_test.py does it, and tls_test.py": [
        "polybeast_env --server_addresses", "polybeast --xpid pong-many",
    ],
    "plot_test.py draws such groups and columns": [
        "libtorchbeast.tools.plot ~/logs/torchbeast/lr",
        "libtorchbeast.tools.plot ~/logs/torchbeast/recall",
    ],
}  # fmt: skip

# Flags on these pages that are not the beasts', their servers' or the tools'.
OTHER_FLAGS = """
    --nproc_per_node --nnodes --node_rank --master_addr --max_restarts --only --no --target
    --against --pairs --modules --sample --seconds --training_seconds --logdir --python_out
    --num_actions --write_profiler_trace --pipes_basename --disable_cuda --alpha --momentum
    --level --rnd_weight --rnd_learning_rate --help --hosts
""".split()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_blocks(page: Path, language: str, after: str = "# ") -> list[str]:
    """Those after these words. Each page begins with a title."""
    _, _, text = page.read_text().partition(after)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands() -> set[str]:
    lines = "".join(block for page in PAGES for block in code_blocks(page, "bash")).splitlines()
    return {line.split("#")[0].strip().removeprefix(PYTHON) for line in lines}


# ========================================================================================= commands
@pytest.fixture(scope="module")
def savedir(tmp_path_factory):
    return tmp_path_factory.mktemp("savedir")


def test_every_command_is_known_here():
    others, starts = commands() - SCALED.keys(), sum(NOT_RUN.values(), [])
    assert commands() - others == SCALED.keys()
    assert [start for start in starts if not any(x.startswith(start) for x in others)] == []
    assert [command for command in others if not command.startswith(tuple(starts))] == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", SCALED)
def test_command(command, savedir, capfd, as_before):
    """Python programs, which `make` would start, run in this process: imports take seconds."""
    if "plot" in command and not (savedir / "pong" / "logs.csv").exists():
        pytest.fail("run the whole file: a command before this one makes the logs")
    words = shlex.split(SCALED[command].format(command, savedir=savedir))
    if words == ["make", "lint"]:
        printed(*words)
        return
    [(program, words)] = programs(*words[1:]) if words[0] == "make" else [(words[0], words[1:])]
    with pytest.raises(SystemExit) as ended:
        sys.exit(importlib.import_module(program).main(words))
    assert not ended.value.code
    assert "Traceback" not in capfd.readouterr().err
    if "test_render" in command:
        assert (savedir / command.split()[2] / "test.mp4").stat().st_size > 1000
    if "plot" in command:
        assert (savedir / "plot.png").stat().st_size > 1000
    if command == "make poly":
        assert load(savedir / "pong-poly")["net"] == "polybeast.Net"


# ========================================================================================= the fork
PLACE = re.compile(r"^# =+ FORK HERE\n.*?(?=^# =)", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(240)
def test_the_readmes_fork_trains(tmp_path):
    """It replaces the first two marked places, of three. The third, the loss, stays."""
    copy = copy_repository(tmp_path / "copy")
    fork, loss = code_blocks(README, "python")
    new_env, new_net = re.split(r"^(?=class Net)", fork, flags=re.MULTILINE)
    program = (copy / "monobeast.py").read_text()
    _, _, third = PLACE.findall(program)
    places = iter([f"# == FORK HERE\n{new_env}", f"# == FORK HERE\n{new_net}\n\n", third])
    (copy / "monobeast.py").write_text(PLACE.sub(lambda place: next(places), program))
    [command] = [command for command in commands() if command.startswith(FORK)]
    # In bf16, where a network's outputs must be float32 all the same.
    small = f"{SMALL} {FOUR} --precision bf16".format(savedir=tmp_path)
    printed(sys.executable, "-m", *command.split(), *small.split(), cwd=copy)
    assert (tmp_path / "ice" / "model.tar").exists()
    assert loss in (ROOT / "monobeast.py").read_text()


@pytest.mark.timeout(240)
def test_rnd_from_docs_fork_md_trains(tmp_path):
    """A reader makes the fork from the page alone: from its blocks of code, in one file."""
    copy = copy_repository(tmp_path / "copy")
    blocks = code_blocks(ROOT / "docs/fork.md", "python", "A worked example: RND")[:5]
    novelty, methods, targets, loss, flags = (b.rpartition("    ...\n")[2] for b in blocks)
    program = (copy / "monobeast.py").read_text()
    for place, new in (
        (r"^(?=class Net)", f"{novelty}\n\n"),
        (r"\n(?=\n# =+ FORK HERE\ndef targets)", f"{methods}\n\n"),
        (r"^def targets.*?(?=\n\ndef loss)", targets),
        (r"^    return dict\(\n        total_loss=.*?(?=\n\n# =)", loss),
        (r"^def add_own_flags.*?(?=# fmt: on)", flags),
    ):
        new = new.replace("\\", r"\\")
        program, count = re.subn(place, new, program, flags=re.M | re.S)
        assert count == 1, place
    (copy / "monobeast.py").write_text(program)
    # With --net, so that VectorNet does not take the place of Net.
    small = f"{SMALL} {FOUR} --net monobeast.Net --xpid rnd"
    words = f"-m monobeast --env CartPole-v1 {small}".format(savedir=tmp_path)
    printed(sys.executable, *words.split(), cwd=copy)
    assert {"rnd_loss", "bonus"} <= rows(tmp_path / "rnd")[-1].keys()


def test_the_teacher_from_docs_fork_md_follows_with_its_moments(tmp_path, monkeypatch):
    """When a run begins it becomes the network, which may have the weights of --init_from."""
    block = code_blocks(ROOT / "docs/fork.md", "python", "A teacher that follows")[0]
    (tmp_path / "following_teacher.py").write_text("from torch import nn\n" + block)
    monkeypatch.syspath_prepend(str(tmp_path))
    net, teacher = importlib.import_module("following_teacher").Net(), nn.Module()
    for module in (net, teacher):
        module.weight = nn.Parameter(torch.zeros(2))
        module.register_buffer("mean", torch.zeros(2))
    net.__dict__["teacher"] = teacher  # as for_loss does: not a submodule
    for updates, value, expected in ((0, 3.0, 3.0), (1, 5.0, 3.02)):
        net.load_state_dict(dict.fromkeys(("weight", "mean"), torch.full((2,), value)))
        net.after_step(updates)
        for x in teacher.state_dict().values():
            torch.testing.assert_close(x, torch.full((2,), expected))


# ==================================================================================== what is named
@pytest.mark.parametrize("page", EVERY_PAGE, ids=name_of)
def test_what_a_page_names_exists_and_its_prose_is_wrapped(page):
    """Links, paths of this repository in backquotes, and modules of commands. Lines of tables,
    code, pictures and long links cannot be wrapped."""
    text = page.read_text()
    folders = "(?:libtorchbeast|tests|examples|benchmarks|docs)"
    named = [page.parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    named += [ROOT / path for path in re.findall(rf"`({folders}/[\w./-]*)`", text)]
    for module in re.findall(rf"-m ({folders}[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        named.append(path if path.is_dir() else path.with_suffix(".py"))
    assert [path for path in named if not path.exists()] == []
    lines = re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines()
    long = [line for line in lines if len(line) > 100]
    assert [line for line in long if not re.match(r"\||!\[|.*\]\(http|`--", line)] == []


def test_flags_named_on_the_pages_exist():
    known = set(OTHER_FLAGS)
    for program in (monobeast, polybeast, polybeast_env, r2d2, warpbeast, sweep, report, plot, gpu):
        for action in program.make_parser()._actions:
            known |= {*action.option_strings}
    for page in PAGES:
        unknown = set(re.findall(r"(?<![\w-])--[a-z]\w*", page.read_text())) - known
        assert not unknown, page


def test_targets_named_on_a_page_exist():
    text = "\n".join(page.read_text() for page in EVERY_PAGE)
    lines = "\n".join(re.findall(r"^make .*|`make [^`]*`", text, re.MULTILINE))
    targets = {name.replace("GAME", "Asterix") for name in re.findall(r"make ([\w-]+)", lines)}
    printed("make", "-n", *targets)


# ======================================================================================== the pages
def test_the_readme_is_one_page_and_links_the_others_which_begin_with_who_needs_them():
    assert len(README.read_text().splitlines()) <= 150
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert {name_of(page) for page in DOCS} <= set(links)
    for page in DOCS:
        title, blank, first = page.read_text().splitlines()[:3]
        assert title.startswith("# ") and blank == "" and first.startswith("For anyone who "), page


def test_the_page_of_flags_is_current():
    """`make docs` writes it."""
    assert generate.PAGE.read_text() == generate.flags_page()
