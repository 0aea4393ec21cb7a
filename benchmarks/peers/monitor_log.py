# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Writes the learning curve of a Stable-Baselines3 run as a logs.csv, which tools.plot can draw.

    python benchmarks/peers/monitor_log.py zoo/ppo/PongNoFrameskip-v4_1 results/peers/sb3-pong 4

The run's folder has a NAME.monitor.csv of each environment, with the return, the length and the
time of each game. The new folder gets a logs.csv with the columns `frame` (of the environment),
`step` (frames divided by the last argument, as one action is repeated), `hours` since the run
began, `games` and `mean_game_return` (of the last 100 games), with a row for each ten seconds in
which a game ended.
"""

import collections
import csv
import json
import pathlib
import sys

from sample_factory_log import write_log


def read_games(folder: str) -> tuple[float, list[tuple[float, float, int]]]:
    """When the run began, and of each game, in the order of their ends, the end, the return and the
    length. Times are in seconds since 1970."""
    begins, games = [], []
    for path in pathlib.Path(folder).glob("*.monitor.csv"):
        lines = path.read_text().splitlines(keepends=True)
        if lines := [line for line in lines if line.endswith("\n")]:  # others are half-written
            begins.append(json.loads(lines[0][1:])["t_start"])
            for row in csv.DictReader(lines[1:]):
                games.append((begins[-1] + float(row["t"]), float(row["r"]), int(row["l"])))
    return min(begins, default=0.0), sorted(games)


def curve(begin: float, games: list[tuple[float, float, int]], repeat: int) -> list[dict]:
    """The rows of logs.csv."""
    last, rows, frames = collections.deque(maxlen=100), {}, 0
    for number, (time, value, length) in enumerate(games, 1):
        last.append(value)
        frames += length
        rows[(time - begin) // 10] = {
            "step": frames // repeat,
            "frame": frames,
            "hours": f"{(time - begin) / 3600:.5f}",
            "games": number,
            "mean_game_return": f"{sum(last) / len(last):.3f}",
        }
    return list(rows.values())


def main() -> None:
    source, folder, repeat = sys.argv[1:]
    begin, games = read_games(source)
    if not games:
        sys.exit(f"{source}: expected games in files called NAME.monitor.csv, seen none")
    write_log(folder, curve(begin, games, int(repeat)))


if __name__ == "__main__":
    main()
