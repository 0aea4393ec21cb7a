# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`python -m benchmarks --against REF`: its pairs, its interval, and the checkout of REF."""

import json
import os
import signal
from unittest import mock

import numpy as np
import pytest

from benchmarks import against, catalogue, programs
from benchmarks.__main__ import main
from benchmarks.catalogue import Catalogue, Part, Run
from tests.support.forks import git
from tests.support.processes import ROOT


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of one commit, in the place of this one. Its only part prints its own speed."""
    root = tmp_path / "repository"
    (root / "benchmarks").mkdir(parents=True)
    (root / "benchmarks/__init__.py").touch()
    (root / "benchmarks/parts.py").write_text(
        "import json, sys\n"
        "\ndef raw_minatar(): pass\n"
        "print(json.dumps('ready'), flush=True)\n"
        "for line in sys.stdin: print(json.dumps({'steps_per_second': 50.0}), flush=True)\n"
    )
    (root / "setup.py").write_text("raise SystemExit('no gRPC here')")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "one")
    monkeypatch.setattr(against, "ROOT", root)
    monkeypatch.setattr(against.tempfile, "tempdir", str(tmp_path))
    return root


def commit_of(root):
    return git(root, "rev-parse", "HEAD").strip()


def is_clean(root):
    """Whether neither a worktree nor its folder is left."""
    worktrees = git(root, "worktree", "list").splitlines()
    return len(worktrees) == 1 and not list(root.parent.glob("benchmarks-*"))


# ======================================================================================= statistics
def test_the_interval_holds_the_ratio_in_95_of_100_cases():
    table = {4: 2.776, 5: 2.571, 9: 2.262, 19: 2.093, 120: 1.980}  # Student's quantiles
    for freedom, value in table.items():
        assert against.student(freedom) == pytest.approx(value, rel=2e-3)
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
    failing = mock.Mock(side_effect=RuntimeError("no such game"))
    row = against.compare("row", failing, 5)
    assert row == {"name": "row", "error": "RuntimeError: no such game"}


# =============================================================================== the other checkout
def refusal(capsys, tmp_path, *words):
    with pytest.raises(SystemExit) as refused:
        main(["--out", str(tmp_path / "out"), *words])
    assert refused.value.code == 2 and not (tmp_path / "out").exists()
    return capsys.readouterr().err.splitlines()[-1].removeprefix("benchmarks: error: ")


NONE = "this repository has no such commit"
REFUSED = [
    ("raw MinAtar", "nosuchref", NONE),
    ("raw MinAtar", "--all", NONE),
    ("raw MinAtar", "HEAD:benchmarks", NONE),
    ("raw MinAtar", "9357c50-dirty", "expected a commit; uncommitted changes were not kept"),
    ("raw Pong", "HEAD", "commit {} does not have this row"),
    ("MonoBeast, Pong, deep", "HEAD", "commit {} cannot run it, it has no monobeast"),
]


@pytest.mark.parametrize("row, ref, why", REFUSED)
def test_what_cannot_be_compared_is_refused_in_one_sentence(
    repository, tmp_path, capsys, row, ref, why
):
    said = refusal(capsys, tmp_path, "--only", f"^{row}$", f"--against={ref}")
    subject = row if ref == "HEAD" else f"--against {ref}"
    assert said == f"{subject}: {why}".format(commit_of(repository)[:12])
    assert is_clean(repository)


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
    names = {"raw MinAtar": "raw_minatar", "raw Pong": "raw_pong"}
    rows = Catalogue({name: Part(name, function) for name, function in names.items()}, {})
    monkeypatch.setattr(catalogue, "everything", lambda: rows)
    here = repository / "benchmarks/parts.py"
    here.write_text(here.read_text().replace("50.0", "75.0"))  # not committed
    words = ["--quick", "--only", "MinAtar", "--against", "HEAD", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    result = json.loads((tmp_path / "out/against.json").read_text())
    (row,) = result["rows"]  # without the ceiling that other comparisons bring
    assert (row["steps_per_second"], row["other_steps_per_second"]) == (75.0, 50.0)
    assert row["ratio"] == row["low"] == row["high"] == 1.5 and row["pairs"] == 5
    assert result["other_commit"] == commit_of(repository)
    assert "raw MinAtar" in capsys.readouterr().out
    assert is_clean(repository)  # it needs no extension, which cannot be built


def test_the_checkout_is_removed_after_a_signal(repository):
    checkout = against.checked_out(commit_of(repository), needs_extension=False)
    with pytest.raises(KeyboardInterrupt), checkout as other:
        assert (other.root / "setup.py").exists() and not is_clean(repository)
        os.kill(os.getpid(), signal.SIGTERM)
    assert is_clean(repository)


def test_a_build_that_fails_is_refused_and_leaves_nothing(repository, tmp_path, capsys):
    words = ["--only", "^transport$", "--against", "HEAD"]
    assert refusal(capsys, tmp_path, *words, "--pairs", "4") == "--pairs 4: expected at least 5"
    said = refusal(capsys, tmp_path, *words)
    assert said == "the extension of the other commit is not built: no gRPC here"
    assert is_clean(repository)
