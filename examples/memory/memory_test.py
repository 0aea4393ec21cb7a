# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from examples.memory.maze import EAST, NORTH, SOUTH, WEST
from examples.memory.recall import RIGHT, WAIT
from tests.support.forks import SMALL, command, run_python
from tests.support.processes import ROOT, load

RECALL = "examples.memory.recall:Recall"
CHAIN = "examples.memory.chain:Chain"
MAZE = "examples.memory.maze:TMaze"


def play(game, choose, seed):
    """Plays a game with the actions `choose(observations so far, last action)`. Returns its return
    and its number of steps."""
    env, action, total, ended, steps = gymnasium.make(game), None, 0.0, False, 0
    observation, _ = env.reset(seed=seed)
    seen = [observation]
    while not ended:
        action = choose(seen, action)
        observation, reward, ended, _, _ = env.step(action)
        assert observation in env.observation_space
        seen.append(observation)
        total += reward
        steps += 1
    return round(total, 6), steps


def returns(game, choose, games=400):
    return [play(game, choose, seed)[0] for seed in range(games)]


def at_junction(seen):
    return list(seen[-1]) == [0, 1, 0]


# What a player does who remembers what he saw first.
ANSWER = lambda seen, _: int(seen[0].argmax()) if seen[-1][2] else WAIT
BIT = lambda seen, _: int(seen[0][0] > 0)
TURN = lambda seen, _: (NORTH if seen[0][2] else SOUTH) if at_junction(seen) else EAST
WON = [
    *((f"{RECALL}{n}-v0", ANSWER, (1, d + 1)) for n, d in (("", 5), ("-20", 20), ("-50", 50))),
    *((f"{CHAIN}-{n}-v0", BIT, (1, n)) for n in (10, 100)),
    *((f"{MAZE}-{n}-v0", TURN, (4, n + 1)) for n in (10, 50)),
]


@pytest.mark.parametrize("game, remember, result", WON)
def test_a_game_is_won_by_who_remembers(game, remember, result):
    assert all(play(game, remember, seed) == result for seed in range(20))


@pytest.mark.parametrize("game", [f"{RECALL}-v0", f"{RECALL}-20-v0"])
def test_recall_without_memory_is_a_guess(game):
    """A policy without memory sees the observation and its last action. Waiting and then guessing
    is right half of the time. Keeping the answer in its actions always loses."""
    guess = returns(game, lambda seen, _: RIGHT if seen[-1][2] else WAIT)
    assert set(guess) == {-1, 1} and abs(np.mean(guess)) < 0.2
    lamp = lambda seen: seen.any() and not seen[2]
    keep = lambda seen, last: int(seen[-1].argmax()) if lamp(seen[-1]) else last
    assert set(returns(game, keep, 20)) == {-1}


def test_a_chain_without_memory_is_a_guess_or_a_message_in_actions():
    for guess in (lambda seen, _: 1, lambda seen, _: int(len(seen) % 2)):
        assert abs(np.mean(returns(f"{CHAIN}-10-v0", guess))) < 0.2
    hand_on = lambda seen, last: int(seen[-1][0] > 0) if seen[-1][0] else last
    assert set(returns(f"{CHAIN}-10-v0", hand_on, 20)) == {1}


def test_a_maze_without_memory_is_a_guess():
    """The best is to walk east, so the last action at the junction is always the same."""
    guess = returns(f"{MAZE}-10-v0", lambda seen, _: NORTH if at_junction(seen) else EAST)
    assert set(guess) == {4, -0.1} and abs(np.mean(guess) - 1.95) < 0.4


def test_a_chain_shows_its_bit_once_and_the_time_left():
    env = gymnasium.make(f"{CHAIN}-10-v0")
    for seed in range(4):
        seen = [env.reset(seed=seed)[0], *(env.step(0)[0] for _ in range(9))]
        context, time = np.transpose(seen)
        assert abs(context[0]) == 1 and not context[1:].any()
        np.testing.assert_allclose(time, np.arange(10, 0, -1) / 10, rtol=1e-6)


def test_the_walls_of_a_maze_cost_and_a_way_back_does_not():
    env = gymnasium.make(f"{MAZE}-10-v0")
    sign = env.reset(seed=0)[0].tolist()
    assert sign in ([0, 1, 1], [1, 1, 0])
    walk = [(NORTH, -0.1), (SOUTH, -0.1), (WEST, -0.1), (EAST, 0), (NORTH, -0.1), (WEST, 0)]
    seen = [env.step(action) for action, _ in walk]
    assert [reward for _, reward, *_ in seen] == [reward for _, reward in walk]
    corridor = [1, 0, 1]
    assert [o.tolist() for o, *_ in seen] == [sign] * 3 + [corridor] * 2 + [sign]
    seen = [env.step(EAST) for _ in range(11)]
    assert [reward for _, reward, *_ in seen] == [0] * 10 + [-0.1]
    assert [o.tolist() for o, *_ in seen] == [corridor] * 9 + [[0, 1, 0]] * 2
    assert not any(ended for _, _, ended, *_ in seen)


@pytest.mark.parametrize("has_core", [True, False])
def test_the_command_trains(tmp_path, has_core):
    words = command(Path(__file__).parent, "monobeast")
    core = words.index("--core")
    words = words if has_core else words[:core] + words[core + 2 :]
    flags = f"{SMALL} --envs_per_actor 4 --total_steps 1600 --savedir {tmp_path}".split()
    run_python([*words, *flags], ROOT)
    state = load(tmp_path / "run")
    assert state["updates"] >= 3
    assert any(name.startswith("core.") for name in state["model"]) == has_core
