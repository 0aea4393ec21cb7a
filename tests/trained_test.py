# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A trained agent in another program, as docs/export.md shows it."""

import numpy as np
import pytest
import torch

import monobeast
import warpbeast
from libtorchbeast import evaluate, models
from libtorchbeast.flags import UserError
from libtorchbeast.seeds import seed_everything
from libtorchbeast.trained import Agent
from tests.support import games  # noqa: F401, registers them

SMALL = "--num_actors 0 --envs_per_actor 4 --batch_size 4 --unroll_length 8 --total_steps 60"
SMALL += " --eval_every 0 --torch_threads 1 --passes 1 --minibatches 1"
CASES = {  # flags of the training and of the test
    "Pairs-v0": ("--use_lstm", "--greedy"),  # a Dict, two choices
    "Allowed-v0": ("", ""),  # a mask
    "Target-v0": ("--observation_scaling moments", ""),  # a Box, so its actions have many digits
    "Number-v0": ("", ""),  # a Box without axes
    "PongNoFrameskip-v4": ("", "--greedy --max_episode_steps 30"),  # pixels
}


@pytest.fixture(params=CASES)
def case(request, tmp_path, as_before):
    """The flags of the test of a run."""
    words, more = CASES[request.param]
    module = "" if "Pong" in request.param else "tests.support.games:"
    run = f"--xpid run --savedir {tmp_path}"
    monobeast.main(f"--env {module}{request.param} {run} {words} {SMALL}".split())
    return f"{run} {more}"


def test_an_agent_acts_as_the_test_mode_does(case, capsys):
    capsys.readouterr()
    agent = Agent(monobeast, case)
    assert not capsys.readouterr().out  # with which a bot may speak to its referee
    flags = agent._flags
    net, env = evaluate.load(flags, monobeast.player)
    rows = []
    seed_everything(3)
    (game,) = evaluate.play(flags, net, env, 7, lambda row: rows.append(row["action"].copy()))

    single = monobeast.create_env(flags)
    observation, _ = single.reset(seed=7)
    seed_everything(3)
    action, state = agent.act(observation)
    actions, score, over = [state[1]], 0.0, False
    while not over and len(actions) < len(rows):
        observation, reward, terminated, truncated, _ = single.step(action)
        score, over = score + reward, terminated or truncated
        action, state = agent.act(observation, state, reward)
        actions.append(state[1])
    assert len(rows) > 7 and score == pytest.approx(game.score, rel=1e-6)  # a float32
    np.testing.assert_array_equal(np.stack(actions), np.stack(rows))


def test_an_agent_of_warpbeast_acts(tmp_path, as_before):
    run = f"--xpid run --savedir {tmp_path}"
    words = "--num_envs 4 --batch_size 4 --unroll_length 8 --total_steps 60 --eval_every 0"
    warpbeast.main(f"--env breakout {run} {words}".split())
    agent = Agent(warpbeast, run)
    action, _ = agent.act({k: np.zeros(s, d) for k, (s, d) in agent.spec.observations.items()})
    assert action in range(agent.spec.num_actions)


def test_an_agent_acts_for_many_at_once(tmp_path, as_before):
    run = f"--xpid run --savedir {tmp_path}"
    monobeast.main(f"--env tests.support.games:Pairs-v0 {run} --use_lstm {SMALL}".split())
    agent = Agent(monobeast, f"{run} --greedy --precision fp32")
    rng = np.random.default_rng(0)
    states, many = [None, None, None], None
    for t in range(6):
        hands, tables = rng.random((3, 3), np.float32), rng.integers(256, size=(3, 2, 2))
        tables, rewards = (tables.astype(np.uint8), rng.random((3, 1), np.float32)), rng.random(3)
        done = np.array([False, t == 3, False])
        actions, many = agent.act({"hand": hands, "table": tables}, many, rewards, done)
        assert actions.shape == (3, 2)
        for i in range(3):
            one = {"hand": hands[i], "table": (tables[0][i], tables[1][i])}
            action, states[i] = agent.act(one, None if done[i] else states[i], rewards[i])
            np.testing.assert_array_equal(action, actions[i])
            for own, of_all in zip(states[i][0], many[0], strict=True):
                np.testing.assert_allclose(own[:, 0], of_all[:, i], atol=1e-5)
    flipped = {"hand": hands[:, ::-1], "table": tables}
    assert agent.act(flipped, many, rewards, done=[0, 1, 0])[0].shape == (3, 2)
    with pytest.raises(UserError, match="expected observations for a state of 3, seen 1"):
        agent.act(one, many)
    with pytest.raises(UserError, match="expected the last action's reward beside the state"):
        agent.act(flipped, many, done=[True, False, True])
    assert agent.act(flipped, many, done=True)[0].shape == (3, 2)
    agent.act(flipped, many, [None, 1.0, np.nan], done=[True, False, True])
    for wrong in ([0.0, np.nan, 0.0], [0.0, 1e39, 0.0], "1"):
        with pytest.raises(UserError, match="Reward: expected a finite number, seen"):
            agent.act(flipped, many, wrong)
    with pytest.raises(UserError, match=r"reward: expected one or \[3\] of them, seen .0.0, 0.0"):
        agent.act(flipped, many, [0.0, 0.0])
    with pytest.raises(UserError, match=r"done: expected one or \[3\] of them, seen .True, False"):
        agent.act(flipped, many, rewards, done=[True, False])
    with pytest.raises(UserError, match=r"expected the parts .*'hand', .* seen \['frame'\]"):
        agent.act(hands)
    with pytest.raises(UserError, match=r"'hand': expected float32\[1, 3\], seen float32\[1, 2\]"):
        agent.act({"hand": hands[0, :2], "table": (tables[0][0], tables[1][0])})


@pytest.mark.parametrize("words", ["Allowed-v0", "Target-v0 --observation_scaling moments"])
def test_a_network_refuses_a_call_that_would_play_wrongly(words):
    words = f"--env tests.support.games:{words} --mode test --num_episodes 1".split()
    net, env = monobeast.player(monobeast.parse(words))
    row = {k: torch.from_numpy(x)[None] for k, x in env.initial(0).items()}
    models.act_on(net, row, ())
    with pytest.raises(UserError, match="expected a call of models.act_on or models.forward"):
        net(row, ())
