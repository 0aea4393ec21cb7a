# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Prints what a fork has changed outside the marked places, where merges with newer versions of
TorchBeast may conflict (`make fork-diff`).

    python -m libtorchbeast.tools.fork_diff [BASE]    # BASE is a commit; default: origin/main
"""

import ast
import re
import subprocess
import sys


def marked(code: str) -> set[int]:
    """The numbers of the lines of a file that a fork may change: the sections FORK HERE, lines with
    this mark, the imports, and the lines before and after "A fork adds its own flags here"."""
    own, in_section = set(), False
    for number, line in enumerate(code.splitlines(), 1):
        if line.startswith("# ====="):
            in_section = line.endswith("FORK HERE")
        elif in_section or "# FORK HERE" in line or "A fork adds its own flags here" in line:
            own.add(number)
    for node in ast.parse(code).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            own |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    return own


def outside(base: str, folder: str = ".") -> str:
    """The changes of the working tree since its last common commit with `base` that are outside the
    marked places of `base`, as a diff. New files do not count."""

    def git(*words: str) -> str:
        return subprocess.check_output(["git", *words], cwd=folder, text=True)

    base = git("merge-base", base, "HEAD").strip()
    found = []
    for name in git("diff", "--name-only", "--no-renames", "--diff-filter=a", base).splitlines():
        own = marked(git("show", f"{base}:{name}")) if name.endswith(".py") else set()
        head, *hunks = re.split(r"^(?=@@)", git("diff", "-U0", base, "--", name), flags=re.M)
        if others := [hunk for hunk in hunks or [""] if not _is_inside(hunk, own)]:
            found += [head, *others]
    return "".join(found)


def _is_inside(hunk: str, own: set[int]) -> bool:
    if not (place := re.match(r"@@ -(\d+)(?:,(\d+))? ", hunk)):
        return False  # a binary file
    first, removed = int(place[1]), int(place[2] or 1)
    if not removed:  # the lines are inserted after line `first`
        return not own.isdisjoint((first, first + 1))
    return own.issuperset(range(first, first + removed))


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else "origin/main"
    print(outside(base) or f"Nothing has changed outside the marked places since {base}.")
