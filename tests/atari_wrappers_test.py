"""The two forms of the Atari recipe against each other, and each against what it promises."""

import contextlib
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

import atari_wrappers
from libtorchbeast.environment import Environment
from libtorchbeast.seeds import MAX_SEED

FIRE = 1  # in every game below
MEANINGS = ["NOOP", "FIRE", "UP"]  # of a scripted game
NOT_ATARI = ["CartPole-v1", "MinAtar/Breakout-v1", "NoSuchGame-v4", "NoSuchGameNoFrameskip-v4", ""]
REFUSED = ["Pong-v4", "Pong-v0", "PongDeterministic-v4", "ALE/Pong", "BackgammonNoFrameskip-v4"]


def classic(env_id, *, max_frames=108_000, **kwargs):
    env = atari_wrappers.make_atari(env_id, max_frames=max_frames)
    return atari_wrappers.wrap_deepmind(env, **kwargs)


def classic_rows(env, actions):
    """Step `env` as the row adapter does: yields the fields of `native_rows`, without the resets.

    Where the native form resets a finished game by itself, so does this one, reward 0.
    """
    ended = False
    for action in actions:
        if ended:
            obs, info = env.reset()
            own = info.get("torchbeast", {})
            reward = own.get("reward", 0.0)
            terminated, truncated = own.get("terminated", False), own.get("truncated", False)
        else:
            obs, reward, terminated, truncated, info = env.step(action.item())
        ended = terminated or truncated
        life_lost = info.get("torchbeast", {}).get("life_lost", False)
        yield obs, float(reward), terminated, truncated, life_lost, info["lives"]


def native_rows(env, actions):
    """Step a vector environment of one game: (obs, reward, terminated, truncated, lost, lives)."""
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(np.reshape(action, 1))
        assert obs.shape == (1, 4, 84, 84) and obs.dtype == np.uint8 and reward.dtype == np.float32
        flags = terminated[0], truncated[0], info["torchbeast"]["life_lost"][0]
        yield obs[0], float(reward[0]), *map(bool, flags), int(info["lives"][0])


def is_over(row):
    """Whether a whole game ended in the row."""
    _, terminated, truncated, life_lost, _ = row
    return (terminated or truncated) and not life_lost


def play_both(env_id, actions, *, max_frames=108_000, seed=0, life=None):
    """Play `actions` in both forms, every pixel and flag compared.

    Returns the rows (reward, terminated, truncated, life_lost, lives), one for each action.
    """
    kwargs = {"max_frames": max_frames, "noop_max": 0, "terminal_on_life_loss": life}
    native = atari_wrappers.make_atari_vector(env_id, 1, **kwargs)
    player = classic(env_id, **kwargs)
    obs, info = native.reset(seed=seed)
    # The native form's way of seeding, so that sticky actions stick at the same frames.
    player.unwrapped.ale.setInt("random_seed", seed)
    player.unwrapped.load_game()
    first, first_info = player.reset()
    np.testing.assert_array_equal(obs[0], first)
    assert not info["torchbeast"]["life_lost"][0]
    for key in ["lives", "episode_frame_number"]:
        assert info[key][0] == first_info[key]
    rows = []
    pairs = zip(native_rows(native, actions), classic_rows(player, actions), strict=True)
    for t, (one, other) in enumerate(pairs):
        assert one[1:] == other[1:], f"{env_id} step {t}"
        np.testing.assert_array_equal(one[0], other[0], f"{env_id} step {t}")
        rows.append(one[1:])
    return rows


def random(num_actions, steps):
    return np.random.default_rng(0).integers(num_actions, size=steps)


@pytest.mark.parametrize(
    "game, num_actions, lost_lives, ended", [("Pong", 6, 0, 1), ("Seaquest", 18, 6, 2)]
)
def test_forms_agree_over_lives_and_games(game, num_actions, lost_lives, ended):
    rows = play_both(f"{game}NoFrameskip-v4", random(num_actions, 1200))
    lost = sum(row[3] for row in rows)
    games = sum(is_over(row) for row in rows)
    assert lost >= lost_lives and games >= ended and any(row[0] for row in rows)
    assert all(row[1] for row in rows if row[3])  # life_lost implies terminated
    assert sum(row[1] for row in rows) == lost + games


def test_forms_agree_at_a_frame_limit_inside_a_step():
    rows = play_both("SeaquestNoFrameskip-v4", random(18, 160), max_frames=203)
    assert [t for t, row in enumerate(rows) if row[2]] == [50, 102, 154]  # 51 steps and a reset


def test_forms_agree_with_sticky_actions_and_no_life_rule():
    rows = play_both("ALE/Breakout-v5", random(4, 400))
    assert {row[4] for row in rows} >= {5, 4, 3}
    assert not any(row[3] for row in rows)
    assert sum(row[1] for row in rows) == sum(is_over(row) for row in rows)


@pytest.mark.parametrize("env_id", ["ALE/Backgammon-v5", "ALE/VideoCheckers-v5"])
def test_forms_agree_in_games_without_noop(env_id):
    play_both(env_id, random(3, 30), life=True)
    assert classic(env_id).reset(seed=0)[0].shape == (4, 84, 84)


def test_actions_stick_in_v5_only():
    """A quarter of the frames. That native ones stick as often is in the agreement above."""
    for env_id, sticky in [("PongNoFrameskip-v4", 0.0), ("ALE/Pong-v5", 0.25)]:
        ale = atari_wrappers.make_atari(env_id).unwrapped.ale
        assert ale.getFloat("repeat_action_probability") == sticky


def test_breakout_is_served_by_the_recipe_alone():
    """Without FIRE at the reset and after each life, a player that does nothing waits for ever."""
    rows = play_both("BreakoutNoFrameskip-v4", np.zeros(200, int))
    ends = [row for row in rows if row[1]]
    assert [row[4] for row in ends[:6]] == [4, 3, 2, 1, 0, 4]
    assert [row[3] for row in ends[:6]] == [True] * 4 + [False, True]


@pytest.mark.parametrize("frames, truncated, lives", [(196, True, 3), (493, False, 0)])
def test_a_life_lost_at_the_frame_limit_ends_the_game(frames, truncated, lives):
    """If it is the last one, the game is over and not cut. Who presses NOOP loses the second life
    after 196 frames, and the fifth after 493."""
    t = (frames + 3) // 4 - 1
    rows = play_both("BreakoutNoFrameskip-v4", np.zeros(t + 3, int), max_frames=frames)
    assert rows[t] == (0.0, True, truncated, False, lives)
    assert rows[t + 1] == (0.0, False, False, False, 5)  # a new game


# One game's emulator, scripted. A step: lives, terminated, truncated. None is a reset.
# Then the action that reaches the emulator, and what is told: terminated, truncated, life_lost.
STORY = [
    ((3, False, False), 2, (False, False, False)),
    ((2, False, False), 2, (True, False, True)),  # a life
    ((1, False, False), FIRE, (True, False, True)),  # and another in the FIRE step
    ((2, False, False), FIRE, (False, False, False)),  # FIRE step; an extra life
    ((1, False, False), 2, (True, False, True)),  # a life
    ((0, False, False), FIRE, (False, False, False)),  # the last, which the game has not noticed
    ((0, True, False), 2, (True, False, False)),  # game over
    (None, None, (False, False, False)),
    ((2, False, True), 2, (True, True, False)),  # a life at the frame limit
    (None, None, (False, False, False)),
    ((3, False, False), 2, (False, False, False)),
    ((2, True, False), 2, (True, False, False)),  # game over with lives left
    (None, None, (False, False, False)),
    ((7, False, True), 2, (False, True, False)),
    (None, None, (False, False, False)),  # the next game starts with fewer lives
]
SCRIPT, PRESSED, FLAGS = (list(column) for column in zip(*STORY, strict=True))


def scripted_game():
    """The game in the classic form. Reward: the step's number."""
    game = Mock(spec=gymnasium.Env, ale=Mock(), get_action_meanings=lambda: MEANINGS)
    game.unwrapped, game.reset.return_value = game, (0, {"lives": 3})
    game.ale.lives.side_effect = [3, *(step[0] if step else 3 for step in SCRIPT)]
    steps = enumerate(SCRIPT, 1)
    game.step.side_effect = [(0, n, *step[1:], {"lives": step[0]}) for n, step in steps if step]
    return game


def scripted_vector():
    """The same behind the interface of ale-py's vector environment, which resets by itself."""
    obs, vector = np.zeros((1, 4, 84, 84), np.uint8), Mock(spec=VectorEnv, ale=Mock(), num_envs=1)
    vector.single_action_space = gymnasium.spaces.Discrete(3)
    vector.ale.get_action_set.return_value = [SimpleNamespace(name=name) for name in MEANINGS]
    vector.reset.return_value = obs, {"lives": np.array([3])}
    steps = []
    for number, step in enumerate(SCRIPT, 1):
        lives, *ends = step or (3, False, False)
        values = (np.array([value]) for value in (number if step else 0, *ends))
        steps.append((obs, *values, {"lives": np.array([lives])}))
    vector.step.side_effect = steps
    return vector


def test_scripted_lives():
    game, vector, actions = scripted_game(), scripted_vector(), np.full((len(SCRIPT), 1), 2)
    classic_form = atari_wrappers.EpisodicLife(game)
    native_form = atari_wrappers.AtariVector(vector, terminal_on_life_loss=True)
    for env, play in ((classic_form, classic_rows), (native_form, native_rows)):
        env.reset()
        rows = list(play(env, actions))
        assert [row[2:5] for row in rows] == FLAGS
        rewards = [row[1] for row in rows]
        assert rewards == [t if step else 0 for t, step in enumerate(SCRIPT, 1)]  # none is lost
    pressed = [call.args[0] for call in game.step.call_args_list]
    assert pressed == [action for action in PRESSED if action is not None]
    assert game.reset.call_count == 1 + SCRIPT.count(None)
    pressed = [int(call.args[0][0]) for call in vector.step.call_args_list]
    assert [seen if step else None for seen, step in zip(pressed, SCRIPT, strict=True)] == PRESSED
    assert (actions == 2).all()  # the caller's array is not written to
    native_form.close()
    assert vector.close.called and vector.ale is None  # which holds the games


def test_classic_reset_with_a_seed_or_within_a_life_starts_a_new_game():
    env = classic("BreakoutNoFrameskip-v4", noop_max=0)
    start = env.reset(seed=0)[1]["episode_frame_number"]
    for seed in [None, 0]:
        info = {"torchbeast": {"life_lost": False}}
        while not info["torchbeast"]["life_lost"]:
            info = env.step(0)[4]
        _, info = env.reset(seed=seed)
        restarted = info["episode_frame_number"] == start
        assert restarted == (seed is not None) == ("reward" not in info["torchbeast"])
        env.step(0)
        obs, info = env.reset()  # in the middle of a life
        assert info["episode_frame_number"] == start and not obs[:3].any() and obs[3].any()


@pytest.mark.parametrize(
    "actions, text",
    [
        (np.array([0, 6]), "expected 0 to 5, seen 6 for environment 1"),
        (np.array([True, False]), r"expected int64\[2\], seen bool\[2\]"),
    ],
)
def test_bad_actions_are_refused_and_the_game_goes_on(actions, text):
    env = atari_wrappers.make_atari_vector("PongNoFrameskip-v4", 2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=text):
        env.step(actions)
    for good in ([0, 5], np.array([0, 5], np.uint8), np.array([0, 5], np.int32)):
        assert env.step(good)[0].shape == (2, 4, 84, 84)


def test_noop_starts_follow_the_seeds():
    env = atari_wrappers.make_atari_vector("PongNoFrameskip-v4", 4)
    frames = env.reset(seed=5)[1]["episode_frame_number"]
    assert frames.min() >= 1 and frames.max() <= 29 and len(set(frames)) > 1
    again = atari_wrappers.make_atari_vector("PongNoFrameskip-v4", 1)
    for n in range(4):
        assert again.reset(seed=5 + n)[1]["episode_frame_number"][0] == frames[n]
    player = classic("PongNoFrameskip-v4")
    starts = [player.reset(seed=n % 4)[1]["episode_frame_number"] for n in range(8)]
    assert starts[:4] == starts[4:] and len(set(starts)) > 1
    assert min(starts) >= 2 and max(starts) <= 31  # FIRE and 1 to 30


def test_games_do_not_depend_on_the_number_of_threads():
    one, three = (
        atari_wrappers.make_atari_vector("BreakoutNoFrameskip-v4", 3, num_threads=n) for n in (1, 3)
    )
    np.testing.assert_array_equal(one.reset(seed=1)[0], three.reset(seed=1)[0])
    for row in np.random.default_rng(0).integers(0, 4, (60, 3)):
        for a, b in zip(one.step(row)[:4], three.step(row)[:4], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("make", [classic, lambda name: atari_wrappers.make_atari_vector(name, 2)])
def test_the_largest_seed_is_taken(make):
    """Environment i gets the seed + i, which must not exceed what the emulator takes."""
    with contextlib.closing(Environment(lambda: make("PongNoFrameskip-v4"), 2)) as env:
        assert env.initial(MAX_SEED)["done"].all()


def test_both_forms_say_what_they_are():
    vector = atari_wrappers.make_atari_vector("PongNoFrameskip-v4", 3)
    raw = atari_wrappers.make_atari("BreakoutNoFrameskip-v4", render_mode="rgb_array")
    assert raw.reset(seed=0)[0].shape == (210, 160, 3)
    player = atari_wrappers.wrap_deepmind(raw)
    for env in (vector, player):
        assert env.metadata["frames_per_step"] == 4
        assert env.metadata["frame_stacks"] == {"frame": 4}
        assert env.reset(seed=0)[0] in env.observation_space
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert "frames_per_step" not in VectorEnv.metadata
    assert vector.num_envs == 3 and vector.single_action_space.n == 6
    assert player.observation_space.shape == (4, 84, 84)
    assert player.metadata["render_fps"] == 15 and player.render().shape == (210, 160, 3)
    with pytest.raises(ValueError, match="options"):
        vector.reset(options={"reset_mask": np.ones(3, bool)})


def test_is_atari():
    for name in ("PongNoFrameskip-v4", "ALE/Pong-v5", "ale_py:ALE/Pong-v5"):
        assert atari_wrappers.is_atari(name)
    assert all(atari_wrappers.is_atari(env_id) for env_id in REFUSED)  # so that they are refused
    assert not any(atari_wrappers.is_atari(env_id) for env_id in NOT_ATARI)


@pytest.mark.parametrize("env_id", ["Mine/Pong-v0", *REFUSED, *NOT_ATARI])
def test_other_ids_are_refused_with_the_right_form(env_id, monkeypatch):
    """Mine/Pong is ale-py's environment, but not a name of its games."""
    mine = gymnasium.envs.registration.EnvSpec(
        "Mine/Pong-v0", "ale_py.env:AtariEnv", kwargs={"game": "pong", "frameskip": (2, 5)}
    )
    monkeypatch.setitem(gymnasium.registry, "Mine/Pong-v0", mine)
    name = "Backgammon-v5" if "Backgammon" in env_id else "PongNoFrameskip-v4' or 'ALE/Pong-v5"
    for make in [atari_wrappers.make_atari, lambda x: atari_wrappers.make_atari_vector(x, 1)]:
        with pytest.raises(atari_wrappers.UnknownGame, match=f"env_id: '{env_id}' .*{name}'"):
            make(env_id)


@pytest.mark.parametrize("name, value", [
    ("num_envs", 0), ("num_threads", 0), ("max_frames", 0), ("noop_max", -1),
])  # fmt: skip
def test_sizes_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"expected at least 1 .* seen .*{name}={value}"):
        atari_wrappers.make_atari_vector("PongNoFrameskip-v4", **{"num_envs": 1, name: value})
