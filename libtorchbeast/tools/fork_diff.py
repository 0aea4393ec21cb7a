# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Prints what a fork has changed outside the marked places, where merges with newer versions of
TorchBeast may conflict (`make fork-diff`).

    python -m libtorchbeast.tools.fork_diff [BASE]    # BASE is a commit; default: origin/main
"""

import ast
import re
import subprocess
import sys
from pathlib import Path


def marked(code: str) -> tuple[set[int], set[int]]:
    """The numbers of the lines of a file that a fork may change: the sections FORK HERE, and lines
    with this mark; and, if it has any of these, its imports, which may be changed to other imports.
    """
    places, imports, in_section = set(), set(), False
    for number, line in enumerate(code.splitlines(), 1):
        if line.startswith("# ====="):
            in_section = line.endswith("FORK HERE")
        elif in_section or "# FORK HERE" in line:
            places.add(number)
    for node in ast.parse(code).body if places else ():
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    return places, imports


def outside(base: str, folder: str = ".") -> str:
    """The changes of the working tree since its last common commit with `base` that are outside the
    marked places of `base`, as a diff. New files do not count."""

    def git(*words: str) -> str:
        words = (*"git -c color.ui=never -c diff.relative=true -C".split(), folder, *words)
        return subprocess.check_output(words, errors="replace", stderr=subprocess.PIPE)

    try:
        base = git("merge-base", "--", base, "HEAD").strip()
    except subprocess.CalledProcessError:
        why = f"{base} is missing here, or has no commit in common with HEAD"
        sys.exit(f"fork_diff: error: {why}; give another: make fork-diff BASE=COMMIT")
    found = []
    for name in git("diff", "--name-only", "--no-renames", "--diff-filter=a", base).splitlines():
        own = marked(git("show", f"{base}:./{name}")) if name.endswith(".py") else (set(), set())
        head, *hunks = re.split(r"^(?=@@)", git("diff", "-U0", base, "--", name), flags=re.M)
        if others := [hunk for hunk in hunks or [""] if not _is_inside(hunk, *own)]:
            found += [head, *others]
    return "".join(found)


def _is_inside(hunk: str, places: set[int], imports: set[int]) -> bool:
    if not (place := re.match(r"@@ -(\d+)(?:,(\d+))? ", hunk)):
        return False  # a binary file
    first, removed = int(place[1]), int(place[2] or 1)
    # Where nothing is removed, lines are inserted between these two, of which one is enough.
    lines = {*range(first, first + removed)} or {first, first + 1}
    is_in = lambda own: lines <= own if removed else not lines.isdisjoint(own)
    only_imports = not re.search(r"^\+(?!import |from |[ )#]|$)", hunk, re.M)
    return is_in(places) or (only_imports and is_in(places | imports))


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else "origin/main"
    found = outside(base, str(Path(__file__).resolve().parents[2]))
    print(found or f"Nothing has changed outside the marked places since {base}.")
