# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Writes the learning curve of an rl_games run as a logs.csv, which tools.plot can draw.

    python benchmarks/peers/rl_games_log.py runs/ppo_pong_envpool/summaries results/peers/pong 4

The new folder gets a logs.csv with a row for each iteration in which a game had ended: `step`,
`frame` (steps times the last argument, as one action is repeated), `hours` since the run began,
`sps` since the row before, and `mean_game_return`. This is the moving mean that rl_games keeps: the
newest of 100 games or more counts a hundredth.
"""

import sys

from sample_factory_log import write_log
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def curve(folder: str, repeat: int) -> list[dict]:
    """The rows of logs.csv."""
    events = EventAccumulator(folder, size_guidance={"scalars": 0}).Reload()  # 0 keeps each of them
    epochs = events.Scalars("info/epochs") if "info/epochs" in events.Tags()["scalars"] else []
    if len(epochs) < 2 or "rewards/iter" not in events.Tags()["scalars"]:
        sys.exit(f"{folder}: expected two iterations and a game that ended, seen none")
    begin, last, rows = events.FirstEventTimestamp(), (0, 0.0), []
    batch = epochs[1].step - epochs[0].step  # its own steps begin with 0 or with a batch
    for event in events.Scalars("rewards/iter"):
        step, time = event.step * batch, event.wall_time - begin
        row = {"step": step, "frame": step * repeat, "hours": f"{time / 3600:.5f}"}
        row["sps"] = f"{(step - last[0]) / max(time - last[1], 1e-3):.1f}"
        rows.append(row | {"mean_game_return": f"{event.value:.3f}"})
        last = step, time
    return rows


if __name__ == "__main__":
    source, target, frames_per_step = sys.argv[1:]
    write_log(target, curve(source, int(frames_per_step)))
