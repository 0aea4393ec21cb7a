# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Both beasts learn on the device: Catch, and a game of MinAtar."""

import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import monobeast
import polybeast
from tests.faults.harness import Figure
from tests.gpu.machine import has_transport
from tests.gpu.stages import Answers
from tests.support import monobeast as mono
from tests.support import polybeast as poly
from tests.support.processes import rows

CATCH = "--learning_rate 5e-3 --batch_size 8 --unroll_length 10 --total_steps"
GAME = "--env MinAtar/Breakout-v1 --net monobeast.Net --total_steps 1_000_000"


def learning(device: str, quick: bool) -> Answers:
    steps = "500" if quick else "50000"
    sizes = ["--num_actors", "1" if quick else "2", "--envs_per_actor", "8"]
    beasts = [("MonoBeast", monobeast.main, [*mono.CATCH, *sizes])]
    if has_transport():
        sizes = ["--num_servers", "1", "--num_actors", "2", "--envs_per_server", "8"]
        beasts.append(("PolyBeast", polybeast.main, [*poly.CATCH, *sizes]))
    for name, main, words in beasts:
        learned = 0.9 if not quick else None
        yield from train(f"{name}, Catch", main, [*words, *CATCH.split(), steps], device, learned)
    if quick or device.startswith("sim"):
        return
    if importlib.util.find_spec("minatar") is None:
        yield "MinAtar is not learned, because the package minatar is missing."
        return
    for name, main, _ in beasts:  # 9 to 10 after a million steps of the published runs
        yield from train(f"{name}, MinAtar Breakout", main, GAME.split(), device, 4.0)


def train(what: str, main: Callable, words: list[str], device: str, learned: Any) -> Answers:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as savedir:
        run = ["--savedir", savedir, "--xpid", "run", "--learner_device", device, "--eval_every"]
        main([*words, *run, "0", "--disable_checkpoint"])
        last = rows(Path(savedir, "run"))[-1]
    if "mean_game_return" in last or learned is not None:
        yield Figure(f"{what}: game return", last["mean_game_return"], "", None, learned)
    yield Figure(f"{what}: seconds with the start", time.monotonic() - start, "s")
    yield Figure(f"{what}: skipped updates", last["skipped_updates"], "", 0)
