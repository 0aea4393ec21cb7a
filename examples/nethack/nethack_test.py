# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("nle", reason="nle needs --no-deps; make test-examples has it")

from nle import nethack
from nle.agent import agent

from examples.nethack import net, wrapper
from libtorchbeast.flags import Flags
from libtorchbeast.spec import Actions, Spec, flatten_space
from libtorchbeast.tools import fork_diff
from tests.support import forks
from tests.support.monobeast import beast, parse
from tests.support.processes import ROOT
from tests.support.processes import rows as rows_of

EXAMPLE = Path(__file__).parent
WAIT = 0  # NLE's action MORE, which takes no time while nothing is to be confirmed


def make(env="NetHackScore-v0", mode="train", env_index=0):
    return wrapper.make_nethack(Flags(env=env, mode=mode, env_index=env_index))


def game(env, num_steps=200, **seed):
    """The maps and the rewards of one game with fixed actions."""
    actions = np.random.default_rng(0).integers(env.action_space.n, size=num_steps)
    maps, rewards = [env.reset(**seed)[0]["glyphs"].copy()], []
    for action in actions.tolist():
        seen, reward, terminated, _, _ = env.step(action)
        maps.append(seen["glyphs"].copy())
        rewards.append(reward)
        if terminated:
            break
    return np.stack(maps).tobytes(), rewards


# ====================================================================================== the wrapper
def test_only_what_the_network_reads_travels():
    env = make()
    seen, _ = env.reset(seed=0)
    expected = {"glyphs": ((21, 79), "int16"), "blstats": ((27,), "int64")}
    assert flatten_space(env.observation_space) == expected
    assert {key: (x.shape, x.dtype.name) for key, x in seen.items()} == expected
    assert sum(x.nbytes for x in seen.values()) == 3534
    assert env.step(WAIT)[0].keys() == seen.keys()


def test_a_seed_decides_this_game_and_the_next():
    first, second = make(), make()
    games = [game(first, seed=7), game(first)]
    assert [game(second, seed=7), game(second)] == games
    assert games[0] != games[1]  # NLE itself would play this one by chance
    assert game(second, seed=8) not in games


def test_the_limit_is_a_truncation_after_5000_steps_and_the_map_is_still_there():
    env = make()
    env.reset(seed=0)
    for _ in range(4999):
        _, _, terminated, truncated, _ = env.step(WAIT)
        assert not terminated and not truncated
    seen, _, terminated, truncated, info = env.step(WAIT)
    assert truncated and not terminated
    assert info["end_status"] == 0  # NLE itself would have quit the game
    assert seen["blstats"][nethack.NLE_BL_HP] > 0
    assert len(np.unique(seen["glyphs"])) > 3
    assert game(env, seed=7) == game(make(), seed=7)


def test_the_challenge_has_its_own_limit_and_no_seeds():
    env = make("NetHackChallenge-v0")
    assert env.reset(seed=0)[0].keys() == {*wrapper.KEYS}
    assert env.env._max_episode_steps == 1_000_000


def test_each_environment_records_its_games_in_a_folder_of_its_own_if_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NETHACK_TTYRECS", raising=False)
    game(make(), seed=0)
    assert not any(tmp_path.iterdir())
    monkeypatch.setenv("NETHACK_TTYRECS", str(tmp_path))
    for index in range(2):
        env = make(env_index=index)
        for seed in range(2):
            game(env, seed=seed)
        env.close()
    for folder in ("train-0", "train-1"):
        files = sorted((tmp_path / folder).glob("*.ttyrec3.bz2"))
        assert [file.name.split(".")[2] for file in files] == ["0", "1"]
        assert all(file.stat().st_size > 1000 for file in files)


def test_a_film_shows_each_character_in_its_cell_and_colour():
    chars = np.full((24, 80), ord(" "), np.uint8)
    colors = np.zeros((24, 80), np.int8)
    chars[[0, 23], [0, 79]] = ord("@")
    colors[[0, 23], [0, 79]] = 1, 10  # red, bright green
    picture = wrapper.draw(chars, colors).astype(int)
    h, w = picture.shape[0] // 24, picture.shape[1] // 80
    cells = picture.reshape(24, h, 80, w, 3).max((1, 3))  # [24, 80, 3]
    np.testing.assert_array_equal(np.argwhere(cells.any(-1)), [[0, 0], [23, 79]])
    assert cells[0, 0, 0] > 2 * cells[0, 0, 1] and cells[23, 79, 1] > 2 * cells[23, 79, 0]
    env = make(mode="test_render")
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.shape[2] == 3
    lines = picture.reshape(24, -1).any(1)  # those that are not black
    assert lines[0] and lines[1:22].any() and lines[22:].all()  # message, map and status


# ====================================================================================== the network
def nets(core):
    """Our network and that of NLE's agent, with the same weights."""
    env = make()
    parts = flatten_space(env.observation_space)
    spec = Spec("NetHackScore-v0", 1, parts, Actions("discrete", (int(env.action_space.n),)))
    torch.manual_seed(0)
    ours = net.NetHackNet(spec, parse("--env", "NetHackScore-v0", *core))
    theirs = agent.NetHackNet(env.observation_space, spec.num_actions, use_lstm=bool(core))
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        own.data.copy_(other.data)  # fails if the shapes differ
    return ours, theirs


def rows(T, B):
    """Random maps and stats, with the agent anywhere, and ends of episodes."""
    draws = torch.Generator().manual_seed(1)
    draw = lambda high, *shape: torch.randint(high, (T, B, *shape), generator=draws)
    stats = draw(1000, 27)
    stats[..., 0], stats[..., 1] = draw(79), draw(21)
    glyphs = draw(net.GLYPHS, 21, 79).short()
    return dict(glyphs=glyphs, blstats=stats, done=draw(4) == 0)


@pytest.mark.parametrize("core, weights", [([], 7_637_576), (["--use_lstm"], 9_738_824)])
def test_the_network_is_that_of_nles_agent(core, weights):
    ours, theirs = nets(core)
    assert sum(x.numel() for x in ours.parameters()) == weights
    inputs, state = rows(6, 3), ours.initial_state(3)
    outputs, after = ours(inputs, state)
    expected, expected_after = theirs(inputs, state)
    for name in ("policy_logits", "baseline"):
        torch.testing.assert_close(outputs[name], expected[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after, expected_after, rtol=1e-4, atol=1e-5)


def test_a_crop_is_that_of_nles_agent_at_every_place():
    x, y = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, (79, 21)), indexing="ij"))
    glyphs = rows(1, len(x))["glyphs"][0]
    theirs = agent.Crop(21, 79, 9, 9)(glyphs, torch.stack([x, y], dim=1))
    ours = net.crop(glyphs.transpose(1, 2), x, y)
    torch.testing.assert_close(ours.transpose(1, 2).long(), theirs, rtol=0, atol=0)
    agents = glyphs[torch.arange(len(x)), y, x]
    assert (ours[:, net.BEFORE, net.BEFORE] == agents).all()
    assert net.GLYPHS == nethack.MAX_GLYPH


# ======================================================================================== the forks
@pytest.mark.parametrize(
    "program, edited", [("monobeast", "monobeast.py"), ("polybeast", "polybeast_env.py")]
)
def test_the_fork_trains_and_is_filmed_and_exported(program, edited, tmp_path):
    copy = forks.check_fork(EXAMPLE, program, tmp_path, {edited}, "--unroll_length 20")
    assert fork_diff.outside("HEAD", copy) == ""
    own = ["-m", program, "--xpid", "run", "--savedir", str(tmp_path), "--mode"]
    film = "test_render --num_episodes 1 --max_episode_steps 20".split()
    forks.run_python([*own, *film], copy)
    assert (tmp_path / "run/test.mp4").stat().st_size > 10_000
    forks.run_python([*own, "export"], copy)


class Door(gymnasium.Env):
    """A map as NLE's, with a glyph on one side of the agent; to go there is rewarded by 1."""

    observation_space = make().observation_space
    action_space = gymnasium.spaces.Discrete(2)
    SIDES = (-1, 1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def seen(self):
        self.side = int(self.np_random.integers(2))
        x, y = self.np_random.integers((5, 5), (74, 16)).tolist()
        glyphs = np.full((21, 79), nethack.GLYPH_CMAP_OFF, np.int16)
        glyphs[y, x + self.SIDES[self.side]] = 2370
        stats = np.zeros(27, np.int64)
        stats[:2] = x, y
        return dict(glyphs=glyphs, blstats=stats)

    def step(self, action):
        reward, self.steps = float(action == self.side), self.steps + 1
        return self.seen(), reward, self.steps == 8, False, {}


gymnasium.register("Door-v0", Door)


def test_the_network_learns_where_to_go(tmp_path):
    """Learning in small: of 8 steps, actions at random get 4 right."""
    words = "--env examples.nethack.nethack_test:Door-v0 --net examples.nethack.net.NetHackNet"
    words += " --num_actors 0 --envs_per_actor 16 --batch_size 16 --learning_rate 5e-4 --passes 4"
    words += " --minibatches 4 --ppo_clip 0.2"
    beast(tmp_path, *words.split(), "--total_steps", 4000, "--eval_every", 0)
    assert float(rows_of(tmp_path / "run")[-1]["mean_game_return"]) > 6


def test_a_server_needs_no_torch():
    """The wrapper imports neither torch nor what only a film needs."""
    code = "import sys, examples.nethack.wrapper; print({'torch', 'matplotlib'} & {*sys.modules})"
    assert forks.run_python(["-c", code], ROOT) == "set()\n"
