# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Checks all promises about faults, with long measurements, and reports the measured figures.

    python -m tests.faults                          # checks all promises, which takes hours
    python -m tests.faults --only "hung|partition"

It writes faults.json and faults.md into --out after each promise, so that no figure is lost.
"""

import argparse
import json
import logging
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.report import commit, machine
from tests.faults.harness import Figure, all_promises, line, promised


def main() -> None:
    parser = argparse.ArgumentParser("tests.faults", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="Check matching names only.")
    parser.add_argument("--out", type=Path, default=Path("results/faults"), help="Folder to write.")
    flags = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s")
    chosen = [p for p in all_promises() if re.search(flags.only, p.name)]
    if not chosen:
        sys.exit(f"tests.faults: error: --only {flags.only}: no promise's name matches")
    flags.out.mkdir(parents=True, exist_ok=True)
    rows = read(flags.out / "faults.json")
    for promise in chosen:
        print(f"== {promise.name}", flush=True)
        row: dict[str, Any] = {"promise": promise.name, "broken_by": promise.broken_by}
        start = time.monotonic()
        try:
            row["figures"] = [f._asdict() | {"held": f.is_held()} for f in promise.keep()]
        except Exception:
            row["error"] = traceback.format_exc()
        row |= {"seconds": time.monotonic() - start, "commit": commit(), **machine()}
        rows[promise.name] = row
        write(flags.out, rows)
        print(markdown([row]), flush=True)
    is_held = lambda row: "error" not in row and all(figure["held"] for figure in row["figures"])
    sys.exit(not all(map(is_held, rows.values())))


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of an earlier report. Rows of promises that are not checked now stay in it."""
    return {r["promise"]: r for r in json.loads(path.read_text())} if path.exists() else {}


def write(folder: Path, rows: dict[str, dict[str, Any]]) -> None:
    (folder / "faults.json").write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    (folder / "faults.md").write_text(markdown(rows.values()))


def markdown(rows: Any) -> str:
    titles = ["promise", "broken by", "measured", "promised", "held"]
    lines = [line(titles), line(["---"] * len(titles))]
    for row in rows:
        cells = [row["promise"], row["broken_by"]]
        if "error" in row:
            lines.append(line([*cells, row["error"].strip().splitlines()[-1], "", "no"]))
        for held in row.get("figures", []):
            figure = Figure(*(held[k] for k in Figure._fields))
            seen = f"{figure.what}: {figure.measured:.4g} {figure.unit}".strip()
            lines.append(line([*cells, seen, promised(figure), "yes" if held["held"] else "NO"]))
            cells = ["", ""]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
