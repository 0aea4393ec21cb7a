# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""meta.json: where a run's numbers come from (flags, command, commit, versions, machine).

The file holds no environment variables, because these may hold secrets.
"""

import contextlib
import datetime
import functools
import importlib.metadata
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from libtorchbeast.flags import as_plain
from libtorchbeast.linux import cpu_model
from libtorchbeast.loggers.files import write_whole

logger = logging.getLogger(__name__)


def write_meta(path: Path, xpid: str, flags: dict[str, Any], resume_step: int | None) -> str:
    """Writes the file, or adds an entry under "resumed" to the file that is there. If the code has
    changes that are not committed, a file beside it has them, changes-STEP.diff.

    Args:
        flags: a value that JSON does not know is written as `str(value)`.
        resume_step: the step from which the run goes on; None if it starts from 0.

    Returns:
        The date at which the run was first started.
    """
    flags = as_plain(flags)
    now = {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), **_origin()}
    if changes := now.pop("changes", b""):
        write_whole(path.with_name(f"changes-{resume_step or 0}.diff"), changes)
    if meta := read(path):
        before = flags_of(meta)
        changed = {
            name: {"old": before.get(name), "new": flags.get(name)}  # None: there is no such flag
            for name in sorted({*before, *flags})
            if before.get(name) != flags.get(name)
        }
        meta["resumed"].append({"step": resume_step or 0, "changed_flags": changed, **now})
    else:
        meta = {"xpid": xpid, "flags": flags, **now, "resumed": []}
    write_whole(path, json.dumps(meta, indent=2) + "\n")
    return meta["date"]


def read(path: Path) -> dict[str, Any]:
    """What the file holds; {} if there is none, or it is damaged, as by a power failure."""
    meta: Any = read_json(path, "flags resumed".split())
    try:
        flags_of(meta)
    except (TypeError, KeyError, AttributeError):
        logger.warning("%s is damaged, and counts as missing.", path)
        return {}
    return meta


def read_json(path: Path, names: Iterable[str]) -> dict[str, Any] | None:
    """The object in a JSON file, which has these `names`; {} if there is no file, None if it is
    damaged."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.keys() >= set(names) else None


def flags_of(meta: dict[str, Any]) -> dict[str, Any]:
    """The flags of the last start that the file holds; {} for {}."""
    if meta == {}:
        return {}
    changes = [entry["changed_flags"].items() for entry in meta["resumed"]]
    return meta["flags"] | {name: v["new"] for change in changes for name, v in change}


def _origin() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in ("torch", "numpy", "gymnasium", "ale-py"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    machine = {"platform": platform.platform(), "cpu_count": os.cpu_count(), "cpu": cpu_model()}
    return {"command": sys.argv, **_commit(), "versions": versions, "machine": machine}


def _commit() -> dict[str, Any]:
    """The commit of the repository that this file is part of, whether the code differs from that
    commit, and how, as a diff: tracked files, and modules that are new. Empty if git does not track
    this file, for example in an installed package."""
    folder = Path(__file__).resolve().parents[2]

    def git(*args: str, **variables: str) -> bytes:
        command = ["git", "--no-optional-locks", "-C", str(folder), *args]
        env = os.environ | variables
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=20, env=env)

    try:
        git("ls-files", "--error-unmatch", __file__)  # fails if the file is not tracked
        commit = git("rev-parse", "HEAD").decode().strip()
        options = "--binary --no-color --no-ext-diff --no-textconv --src-prefix=a/ --dst-prefix=b/"
        diff = functools.partial(git, "-c", "diff.relative=false", "diff", *options.split(), "HEAD")
        index = folder / git("rev-parse", "--git-path", "index").decode().strip()
        try:
            with tempfile.TemporaryDirectory() as copies:  # the user's own index stays as it is
                own = {"GIT_INDEX_FILE": shutil.copy2(index, copies)}  # with the time, for git
                git("add", "--sparse", "-N", "--", "*.py", ":(exclude)*/lib/python3*/*", **own)
                changes = diff(**own)
        except (OSError, subprocess.SubprocessError):  # a module that cannot be read, for example
            changes = diff()
        return {"commit": commit, "dirty": bool(changes), "changes": changes}
    except (OSError, subprocess.SubprocessError):
        return {}
