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
    # A fork adds its own flags here.
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


def changed_lines(repository, name, new):
    """What is told of the new text of a file."""
    (repository / name).write_text(new)
    told = fork_diff.outside("HEAD", repository).splitlines()
    return [line for line in told if re.match(r"[-+](?![-+])", line)]


def test_changes_of_marked_places_are_not_told(repository):
    (repository / "more.py").write_text("SIZE = 2\n")
    git(repository, "add", "--all")
    for old, new in [
        ("    return 1\n", "    return 2\n\n\ndef helper():\n    pass\n"),
        ("import sys\n", "import os\nimport sys\n"),
        ("import nn, utils  # FORK HERE: a fork may take another", "import (\n    nn,\n)"),
        ("    # A fork adds its own flags here.\n", '    parser.add("--own")\n'),
        ("flags here.\n", 'flags here.\n    parser.add("--own")\n'),
        ("another\n", "another\ntorch.relu = abs\n"),  # beside a mark
    ]:
        assert old in CODE and changed_lines(repository, "page.py", CODE.replace(old, new, 1)) == []


def test_code_below_or_instead_of_imports_is_told(repository):
    """It may change what the modules above do."""
    for old in ("import sys\n", "import torch\n", "SIZE = 1\n"):
        own = "torch.relu = abs\n"
        told = changed_lines(repository, "page.py", CODE.replace(old, own))
        assert told == [f"-{old.strip()}", f"+{own.strip()}"]
    new = CODE.replace("import sys\n", "import sys\nsys.exit = print\n")
    assert changed_lines(repository, "page.py", new) == ["+sys.exit = print"]


def test_imports_of_a_file_without_a_mark_are_told(repository):
    told = changed_lines(repository, "plumbing.py", "import os\n\nSIZE = 1\n")
    assert told == ["-import sys", "+import os"]


def test_a_base_that_is_missing_is_one_sentence(repository):
    with pytest.raises(SystemExit, match="^fork_diff: error: .*origin/main.*BASE=COMMIT$"):
        fork_diff.outside("origin/main", repository)


@pytest.mark.parametrize("old, new", [("SIZE = 1", "SIZE = 2"), ("parser =", "own =")])
def test_other_changes_are_told(repository, old, new):
    """Also those that are committed. Changes of the base since then are not the fork's."""
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


def test_all_three_places_of_monobeast_are_marked():
    code = (ROOT / "monobeast.py").read_text()
    numbers = sorted(set.union(*fork_diff.marked(code)))
    own = "".join(code.splitlines(True)[number - 1] for number in numbers)
    for line in ("def create_env(", "class Net(", "def targets(", "def loss(", "import torch\n"):
        assert line in own
    for line in ("RECIPES =", "def check_flags(", "class Actor:", "def train("):
        assert line not in own
