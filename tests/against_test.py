# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`python -m benchmarks --against REF`: its pairs, its interval, and the checkout of REF."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import against, catalogue, programs
from benchmarks.__main__ import main
from benchmarks.catalogue import Catalogue, Part, Run
from tests.support.processes import ROOT, wait_for

RAW = Part("raw MinAtar", "raw_minatar")


def git(*words, cwd):
    words = ["git", "-c", "user.name=me", "-c", "user.email=me@here", *words]
    return subprocess.run(words, cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of one commit, in the place of this one: its only part prints its own speed, and
    its build takes long where `slow` lies in this test's folder."""
    root = tmp_path / "repository"
    (root / "benchmarks").mkdir(parents=True)
    (root / "benchmarks/__init__.py").touch()
    (root / "benchmarks/parts.py").write_text(
        "import json, sys\n"
        "\ndef raw_minatar(): pass\n"
        "print(json.dumps('ready'), flush=True)\n"
        "for line in sys.stdin: print(json.dumps({'steps_per_second': 50.0}), flush=True)\n"
    )
    (root / "setup.py").write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'built')!r}).write_text(str(pathlib.Path.cwd()))\n"
        f"if pathlib.Path({str(tmp_path / 'slow')!r}).exists(): time.sleep(600)\n"
    )
    git("init", "--quiet", cwd=root)
    git("add", ".", cwd=root)
    git("commit", "--quiet", "-m", "one", cwd=root)
    monkeypatch.setattr(against, "ROOT", root)
    monkeypatch.setattr(against.tempfile, "tempdir", str(tmp_path))
    return root


def worktrees(root):
    return git("worktree", "list", cwd=root).splitlines()


# ======================================================================================= statistics
def test_students_quantiles():
    table = {4: 2.776, 5: 2.571, 9: 2.262, 19: 2.093, 120: 1.980}
    for freedom, value in table.items():
        assert against.student(freedom) == pytest.approx(value, rel=2e-3)


def test_the_interval_holds_the_ratio_in_95_of_100_cases():
    random, hits = np.random.default_rng(0), 0
    for _ in range(2000):
        ratio, low, high = against.interval(list(1.2 * np.exp(random.normal(0, 0.1, 5))))
        assert low < ratio < high
        hits += low < 1.2 < high
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)
    assert against.interval([2.0] * 5) == pytest.approx((2, 2, 2))


def test_the_checkouts_take_turns_and_a_drift_favours_neither():
    calls = []

    def measure(here):
        calls.append("A" if here else "B")
        return {"steps_per_second": (150.0 if here else 100.0) * 0.9 ** len(calls)}

    row = against.compare("row", measure, 6)
    assert "".join(calls) == "ABBA" * 3
    assert row["ratio"] == pytest.approx(1.5) and row["low"] < 1.5 < row["high"]
    assert len(row["all_steps_per_second"]) == row["pairs"] == 6


def test_a_row_that_fails_has_its_error():
    def measure(here):
        raise RuntimeError("it ended early: no such game")

    row = against.compare("row", measure, 5)
    assert row == {"name": "row", "error": "RuntimeError: it ended early: no such game"}


# =============================================================================== the other checkout
def refusal(capsys, tmp_path, *words):
    with pytest.raises(SystemExit) as refused:
        main(["--out", str(tmp_path / "out"), *words])
    assert refused.value.code == 2 and not (tmp_path / "out").exists()
    return capsys.readouterr().err.splitlines()[-1].removeprefix("benchmarks: error: ")


@pytest.mark.parametrize("ref", ["nosuchref", "--all", "HEAD:benchmarks"])
def test_what_is_no_commit_is_refused_in_one_sentence(repository, tmp_path, capsys, ref):
    said = refusal(capsys, tmp_path, "--only", "^raw MinAtar$", f"--against={ref}")
    assert said == f"--against {ref}: this repository has no such commit"


def test_a_dirty_commit_and_too_few_pairs_are_refused(repository, tmp_path, capsys):
    said = refusal(capsys, tmp_path, "--against", "9357c50-dirty")
    expected = "expected a commit; uncommitted changes were not kept"
    assert said == f"--against 9357c50-dirty: {expected}"
    said = refusal(capsys, tmp_path, "--against", "HEAD", "--pairs", "4")
    assert said == "--pairs 4: expected at least 5"


def test_a_row_that_the_other_commit_does_not_have_is_refused(repository, tmp_path, capsys):
    commit = git("rev-parse", "HEAD", cwd=repository)[:12]
    said = refusal(capsys, tmp_path, "--only", "^raw Pong$", "--against", "HEAD")
    assert said == f"raw Pong: commit {commit} does not have this row"
    said = refusal(capsys, tmp_path, "--only", "^MonoBeast, Pong, deep$", "--against", "HEAD")
    name = "MonoBeast, Pong, deep"
    assert said == f"{name}: commit {commit} cannot run it, it has no monobeast"
    assert len(worktrees(repository)) == 1


def test_an_older_program_gets_no_flag_that_only_says_what_it_does_anyway(monkeypatch):
    run = Run("r", "monobeast", ("--batch_size", "4", "--passes", "1", "--net", "x"))
    every = [word for word in programs.arguments(run) if word.startswith("--")]
    assert against.words_for(run, set(every)) == programs.arguments(run)
    words = against.words_for(run, set(every) - {"--passes"})
    assert words == programs.arguments(Run("r", "monobeast", ("--batch_size", "4", "--net", "x")))
    other = against.Other("c" * 40, ROOT)
    for unknown in ("--net", "--batch_size"):
        monkeypatch.setattr(against, "flags_known", lambda *_, u=unknown: {*every} - {u})
        with pytest.raises(against.Refused, match=f"r: .* monobeast has no {unknown} there"):
            against.check_known(Catalogue({}, {"r": run}), other)


def test_two_commits_are_compared(repository, tmp_path, monkeypatch, capsys):
    rows = Catalogue({p.name: p for p in (RAW, Part("raw Pong", "raw_pong"))}, {})
    monkeypatch.setattr(catalogue, "everything", lambda: rows)
    here = repository / "benchmarks/parts.py"
    here.write_text(here.read_text().replace("50.0", "75.0"))  # not committed
    words = ["--quick", "--only", "MinAtar", "--against", "HEAD", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    result = json.loads((tmp_path / "out/against.json").read_text())
    (row,) = result["rows"]  # without the ceiling that other comparisons bring
    assert (row["steps_per_second"], row["other_steps_per_second"]) == (75.0, 50.0)
    assert row["ratio"] == row["low"] == row["high"] == 1.5 and row["pairs"] == 5
    assert result["other_commit"] == git("rev-parse", "HEAD", cwd=repository)
    assert "raw MinAtar" in capsys.readouterr().out
    assert len(worktrees(repository)) == 1 and not list(tmp_path.glob("benchmarks-*"))
    assert not (tmp_path / "built").exists()  # MinAtar needs no extension


SCRIPT = """
import sys, tempfile
from pathlib import Path
from benchmarks import against
against.ROOT, tempfile.tempdir = Path(sys.argv[1]), sys.argv[2]
try:
    with against.checked_out(against.commit_of("HEAD"), needs_extension=True):
        pass
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_the_checkout_is_removed_after_a_signal(repository, tmp_path):
    (tmp_path / "slow").touch()
    words = [sys.executable, "-c", SCRIPT, str(repository), str(tmp_path)]
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
    try:
        wait_for(lambda: (tmp_path / "built").exists() and (tmp_path / "built").read_text())
        there = Path((tmp_path / "built").read_text())
        assert there.exists() and len(worktrees(repository)) == 2
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait() == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert not there.exists() and not list(tmp_path.glob("benchmarks-*"))
    assert len(worktrees(repository)) == 1


def test_a_build_that_fails_is_refused_and_leaves_nothing(repository, tmp_path, capsys):
    (repository / "setup.py").write_text("raise SystemExit('no gRPC here')")
    git("commit", "--quiet", "-a", "-m", "two", cwd=repository)
    said = refusal(capsys, tmp_path, "--only", "^transport$", "--against", "HEAD")
    assert said == "the extension of the other commit is not built: no gRPC here"
    assert len(worktrees(repository)) == 1 and not list(tmp_path.glob("benchmarks-*"))
