# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Each fork changes one file, in its marked places; and what `make fork-diff` prints."""

import pytest

from libtorchbeast.tools import fork_diff
from tests.support.forks import Fork, git
from tests.support.processes import ROOT

NAMES = sorted(path.stem for path in (ROOT / "tests/forks").glob("*.diff"))


@pytest.mark.parametrize("name", NAMES)
def test_a_fork_changes_one_file_in_its_marked_places(name, tmp_path):
    fork = Fork(name, tmp_path)
    assert fork.changed == {"monobeast.py"}
    added, removed, _ = git(fork.copy, "diff", "--numstat").split()
    assert int(added) + int(removed) <= 60
    assert fork_diff.outside("HEAD", fork.copy) == ""
    assert (ROOT / f"tests/forks/{name}_test.py").exists()
