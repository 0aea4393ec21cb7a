# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`make fork-diff` prints what is outside the marked places, and nothing else."""

import re

import pytest

from libtorchbeast.tools import fork_diff
from tests.support.forks import git
from tests.support.processes import ROOT

CODE = '''"""A page."""

import sys

import torch
from torch import nn, utils  # FORK HERE: a fork may take another

SIZE = 1


# ================================ FORK HERE
def own():
    return 1


# ==================================== flags
def make_parser():
    parser = Parser()
    # FORK HERE: flags of your own
    return parser
'''


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "page.py").write_text(CODE)
    (tmp_path / "plumbing.py").write_text("import sys\n\nSIZE = 1\n")
    (tmp_path / "notes.md").write_text("Notes.\n")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "base")
    return tmp_path


OWN = "torch.relu = abs"
CHANGES = [  # of the page: old and new text, and what is told
    ("    return 1\n", "    return 2\n\n\ndef helper():\n    pass\n", []),
    ("import sys\n", "import os\nimport sys\n", []),
    ("import nn, utils  # FORK HERE: a fork may take another", "import (\n    nn,\n)", []),
    ("    # FORK HERE: flags of your own\n", '    parser.add("--own")\n', []),
    ("flags of your own\n", 'flags of your own\n    parser.add("--own")\n', []),
    ("another\n", f"another\n{OWN}\n", []),  # beside a mark
    # Code below or instead of imports may change what the modules above do.
    *((old, OWN, [f"-{old}", f"+{OWN}"]) for old in ("import sys", "import torch", "SIZE = 1")),
    ("import sys\n", f"import sys\n{OWN}\n", [f"+{OWN}"]),
]


def test_changes_are_told_but_for_those_of_marked_places_and_new_files(repository):
    (repository / "more.py").write_text("SIZE = 2\n")
    git(repository, "add", "--all")

    def told(name, text):
        (repository / name).write_text(text)
        lines = fork_diff.outside("HEAD", repository).splitlines()
        return [line for line in lines if re.match(r"[-+](?![-+])", line)]

    for old, new, expected in CHANGES:
        assert old in CODE and told("page.py", CODE.replace(old, new, 1)) == expected
    told("page.py", CODE)
    git(repository, "config", "color.ui", "always")
    assert told("plumbing.py", "import os\n\nSIZE = 1\n") == ["-import sys", "+import os"]


def test_a_base_that_is_missing_is_one_sentence(repository):
    with pytest.raises(SystemExit, match="^fork_diff: error: .*origin/main.*BASE=COMMIT$"):
        fork_diff.outside("origin/main", repository)


@pytest.mark.parametrize("old, new", [("SIZE = 1", "SIZE = 2"), ("parser =", "own =")])
def test_changes_that_are_committed_are_told(repository, old, new):
    """Changes of the base since then are not the fork's."""
    git(repository, "switch", "--quiet", "--create", "fork")
    (repository / "page.py").write_text(CODE.replace(old, new).replace("return 1", "return 2"))
    git(repository, "commit", "--quiet", "--all", "--message", "fork")
    git(repository, "switch", "--quiet", "-")
    (repository / "notes.md").write_text("More.\n")
    git(repository, "commit", "--quiet", "--all", "--message", "newer")
    base = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "switch", "--quiet", "fork")
    told = fork_diff.outside(base, repository)
    changed = [line for line in told.splitlines() if line.startswith(("-", "+"))]
    assert changed[:2] == ["--- a/page.py", "+++ b/page.py"] and len(changed) == 4
    assert old in changed[2] and new in changed[3]
    (repository / "notes.md").write_text("Own notes.\n")
    assert "+Own notes." in fork_diff.outside(base, repository)


def test_changes_of_a_folder_of_a_larger_repository_are_told(repository):
    (repository / "part").mkdir()
    (repository / "part/own.py").write_text("SIZE = 1\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "part")
    (repository / "part/own.py").write_text("SIZE = 2\n")
    (repository / "plumbing.py").write_text("\n")
    told = fork_diff.outside("HEAD", repository / "part")
    assert "+SIZE = 2" in told and "plumbing" not in told


def test_the_choice_of_opponents_ends_where_the_plumbing_begins():
    code = (ROOT / "libtorchbeast/past.py").read_text()
    places, _ = fork_diff.marked(code)
    lines = code.splitlines()
    assert lines.index("class Past:") + 1 not in places
    assert any(lines[number - 1].startswith("def sides(") for number in places)


def test_all_three_places_of_monobeast_are_marked():
    code = (ROOT / "monobeast.py").read_text()
    numbers = sorted(set.union(*fork_diff.marked(code)))
    own = "".join(code.splitlines(True)[number - 1] for number in numbers)
    for line in ("def create_env(", "class Net(", "def targets(", "def loss(", "import torch\n"):
        assert line in own
    for line in ("RECIPES =", "def check_flags(", "class Actor:", "def train("):
        assert line not in own
