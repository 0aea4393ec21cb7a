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


def read_games(folder: pathlib.Path) -> list[tuple[float, float, int]]:
    """The end in seconds since 1970, the return and the length of each game, in their order."""
    games = []
    for path in folder.glob("*.monitor.csv"):
        with path.open() as file:
            begin = json.loads(file.readline()[1:])["t_start"]
            for row in csv.DictReader(file):
                games.append((begin + float(row["t"]), float(row["r"]), int(row["l"])))
    return sorted(games)


def curve(games: list[tuple[float, float, int]], begin: float, repeat: int) -> list[dict]:
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
    source, folder, repeat = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    if not (games := read_games(source)):
        sys.exit(f"{source}: expected games in files called NAME.monitor.csv, seen none")
    first = min(source.glob("*.monitor.csv"))
    begin = json.loads(first.read_text().partition("\n")[0][1:])["t_start"]
    rows = curve(games, begin, repeat)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "logs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
