# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Writes the learning curve of a Sample Factory run as a logs.csv, which tools.plot can draw.

    python benchmarks/peers/sample_factory_log.py train_dir/pong/sf_log.txt results/peers/pong

The folder gets a logs.csv with the columns `step` (agent steps), `frame`, `hours` (since the first
line) and `mean_game_return` (of the last 100 games), with about one row for each ten seconds.
"""

import csv
import datetime
import pathlib
import re
import sys

TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),")
STEPS = re.compile(r"Total num frames: (\d+).*Samples: (\d+)")
RETURN = re.compile(r"Avg episode reward: \[\(0, '(-?[\d.]+)'\)\]")


def read_curve(path: str) -> list[dict[str, str]]:
    """The rows of logs.csv. Each return belongs to the number of steps on the line before it."""
    rows, first, counts = [], None, None
    for line in pathlib.Path(path).read_text().splitlines():
        if time := TIME.search(line):
            now = datetime.datetime.fromisoformat(time[1])
            first = first or now
        if steps := STEPS.search(line):
            counts = {"step": steps[2], "frame": steps[1]}
        elif (reward := RETURN.search(line)) and counts:
            hours = f"{(now - first).total_seconds() / 3600:.5f}"
            rows.append(counts | {"hours": hours, "mean_game_return": reward[1]})
    return rows[::-2][::-1]  # it logs every five seconds; the last row stays


def write_log(folder: str, rows: list[dict]) -> None:
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    with open(pathlib.Path(folder) / "logs.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    path, folder = sys.argv[1:]
    rows = read_curve(path)
    if not rows:
        sys.exit(f"{path}: expected lines with 'Avg episode reward', seen none")
    write_log(folder, rows)


if __name__ == "__main__":
    main()
