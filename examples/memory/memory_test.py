# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import subprocess
import sys
from pathlib import Path

import pytest

from examples.memory.recall import DELAY, RIGHT, WAIT, Recall
from tests.support.forks import SMALL, command
from tests.support.processes import ROOT, load


def play(choose, seed):
    """Plays a game with the actions `choose(observation, last_action)` and returns its return."""
    env, action, total, ended = Recall(), None, 0.0, False
    observation, _ = env.reset(seed=seed)
    while not ended:
        action = choose(observation, action)
        observation, reward, ended, _, _ = env.step(action)
        total += reward
    return total


def test_who_remembers_wins():
    for seed in range(20):
        lamps = []

        def remembering(observation, _, lamps=lamps):
            lamps.append(int(observation.argmax()))
            return lamps[0] if observation[2] else WAIT

        assert play(remembering, seed) == 1
        assert len(lamps) == DELAY + 1


def test_who_does_not_cannot():
    """A policy without memory sees the observation and its last action. Waiting and then guessing
    is right half of the time. Keeping the answer in its actions always loses."""
    guess = lambda observation, _: RIGHT if observation[2] else WAIT
    returns = [play(guess, seed) for seed in range(400)]
    assert abs(sum(returns) / 400) < 0.2
    repeat = lambda seen, last: int(seen.argmax()) if seen.any() and not seen[2] else last
    assert all(play(repeat, seed) == -1 for seed in range(20))


@pytest.mark.parametrize("use_lstm", [True, False])
def test_the_command_trains(tmp_path, use_lstm):
    words = command(Path(__file__).parent, "monobeast")
    words = words if use_lstm else [word for word in words if word != "--use_lstm"]
    flags = f"{SMALL} --envs_per_actor 4 --savedir {tmp_path}".split()
    run = subprocess.run([sys.executable, *words, *flags], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    state = load(tmp_path / "run")
    assert state["updates"] >= 3
    assert any(name.startswith("core.") for name in state["model"]) == use_lstm
