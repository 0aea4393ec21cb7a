# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""meta.json: the flags, versions and commit of a run, and of each of its resumes."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.support.forks import git
from tests.support.processes import ROOT
from tests.support.run_files import writer

LOGGERS = "libtorchbeast/loggers"


def test_meta(tmp_path):
    flags = {"lr": 0.1, "sizes": (1, 2), "path": Path("/x")}
    writer(tmp_path, flags=flags).close()
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert meta["flags"] == {"lr": 0.1, "sizes": [1, 2], "path": "/x"}
    assert meta["xpid"] == "run" and meta["command"] == sys.argv and meta["resumed"] == []
    assert meta["versions"]["python"] == platform.python_version()
    assert meta["versions"]["numpy"] == np.__version__
    assert meta["machine"]["cpu_count"] == os.cpu_count()
    assert meta["date"][:2] == "20"


def test_meta_of_a_resumed_run(tmp_path):
    path = tmp_path / "run" / "meta.json"
    writer(tmp_path, flags={"lr": 0.1, "sizes": (1, 2), "old": 1}).close()
    first = json.loads(path.read_text())
    for step, lr in ((50, 0.2), (60, 0.2), (70, 0.1)):
        writer(tmp_path, flags={"lr": lr, "sizes": (1, 2), "new": 2}, resume_step=step).close()
    meta = json.loads(path.read_text())
    assert meta == first | {"resumed": meta["resumed"]}
    changed = lambda old, new: {"old": old, "new": new}
    changes = dict(lr=changed(0.1, 0.2), new=changed(None, 2), old=changed(1, None))
    assert [(entry["step"], entry["changed_flags"]) for entry in meta["resumed"]] == [
        (50, changes), (60, {}), (70, dict(lr=changed(0.2, 0.1)))
    ]  # fmt: skip


BEGINS_A_RUN = """
import sys
from pathlib import Path
sys.modules["torch"] = None  # quicker
from libtorchbeast.loggers.file_writer import FileWriter
FileWriter(Path(sys.argv[1], "run"), {}, ["step"]).close()
"""


def meta_of_code_in(folder, savedir):
    command = [sys.executable, "-c", BEGINS_A_RUN, str(savedir)]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, cwd=folder, check=True, env=env)
    return json.loads((savedir / "run" / "meta.json").read_text())


def checkout(folder):
    """A copy of the modules that begin a run."""
    code = folder / "checkout"
    (code / LOGGERS).mkdir(parents=True)
    names = ("flags.py", "linux.py", "errors.py", "workers.py")
    needed = [ROOT / "libtorchbeast" / name for name in names]
    for path in (*needed, *(ROOT / LOGGERS).glob("*.py")):
        shutil.copy(path, code / path.relative_to(ROOT))
    return code


def test_meta_names_the_commit_of_the_code(tmp_path, monkeypatch):
    code = checkout(tmp_path)
    assert "commit" not in meta_of_code_in(code, tmp_path / "a")
    git(code, "init", "-q")
    git(code, "commit", "-qm", "empty", "--allow-empty")
    assert "commit" not in meta_of_code_in(code, tmp_path / "b")  # in a checkout, not part of it
    git(code, "add", ".")
    git(code, "commit", "-qm", "first")
    meta = meta_of_code_in(code, tmp_path / "c")
    assert (meta["commit"], meta["dirty"]) == (git(code, "rev-parse", "HEAD").strip(), False)
    assert not [*tmp_path.glob("*/run/changes*")]
    with (code / LOGGERS / "file_writer.py").open("ab") as file:
        file.write(b"# \xff")  # not UTF-8
    new_files = "mine/new net.py", "mine/ignored.py", "mine/data.txt", "env/lib/python3.11/os.py"
    for new in new_files:
        (code / new).parent.mkdir(parents=True, exist_ok=True)
        (code / new).write_text("1\n")
    (code / ".git/info/exclude").write_text("ignored.py\n")
    for setting in ("color.diff always", "diff.noprefix true", "diff.relative true"):
        git(code, "config", *setting.split())
    assert meta_of_code_in(code, tmp_path / "d")["dirty"] is True
    assert "mine" in git(code, "status", "--short")  # the index is as it was
    git(code, "stash")
    shutil.rmtree(code / "mine")
    git(code, "apply", str(tmp_path / "d/run/changes-0.diff"))
    assert (code / LOGGERS / "file_writer.py").read_bytes().endswith(b"\n# \xff")
    assert [path.name for path in (code / "mine").iterdir()] == ["new net.py"]
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")  # then `git add` finds no *.py
    assert meta_of_code_in(code, tmp_path / "e")["dirty"] is True
    assert (tmp_path / "e/run/changes-0.diff").exists()


def test_a_change_of_the_same_size_in_the_second_of_a_checkout_is_noticed(tmp_path):
    """git reads a file that is not older than the index, even if its size and times are the same.
    So the copy of the index needs its time."""
    code = checkout(tmp_path)
    git(code, "init", "-q")
    git(code, "add", ".")
    git(code, "commit", "-qm", "first")
    file = code / "libtorchbeast/linux.py"
    file.unlink()
    git(code, "checkout", "--", ".")
    file.write_text(file.read_text().replace("Copyright", "COPYRIGHT"))
    time.sleep(1.1)  # git compares whole seconds
    assert meta_of_code_in(code, tmp_path / "run")["dirty"] is True
