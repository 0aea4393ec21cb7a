# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MinAtar's games as the beasts' networks read them, beside the package's own games."""

import re
import sys

import gymnasium
import numpy as np
import pytest

import polybeast_env
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from minatar_wrappers import is_minatar, make_minatar
from tests.support.processes import ROOT

GAMES = {  # channels and size of the minimal set of actions
    "Asterix": (4, 5), "Breakout": (4, 3), "Freeway": (7, 3), "Seaquest": (10, 6),
    "SpaceInvaders": (6, 4),
}  # fmt: skip


@pytest.mark.parametrize("game", GAMES)
def test_a_game_has_its_channels_first_its_minimal_actions_and_sticky_ones(game):
    channels, actions = GAMES[game]
    env = polybeast_env.create_env(polybeast_env.parse(["--env", f"MinAtar/{game}-v1"]))
    spec = Environment(lambda: env, 1).spec
    assert spec.observations == {"frame": ((channels, 10, 10), "bool")}
    assert spec.num_actions == actions
    assert env.unwrapped.game.sticky_action_prob == 0.1
    env.close()
    assert is_minatar(f"MinAtar/{game}-v1")
    assert not any(map(is_minatar, ["Breakout-v5", "ALE/Breakout-v5", "minatar", "xMinAtar/A-v1"]))


def test_it_plays_the_packages_game():
    played, name = [], "MinAtar/Breakout-v1"
    for env in (make_minatar(name), gymnasium.make(name, disable_env_checker=True)):
        frames, told = [env.reset(seed=3)[0].copy()], []
        for action in np.random.default_rng(0).integers(3, size=200).tolist():
            frame, *rest = env.step(action)
            frames.append((env.reset()[0] if rest[1] else frame).copy())
            told.append(rest)
        played.append((np.stack(frames), told))
    (ours, seen), (theirs, expected) = played
    assert ours.dtype == bool and ours.shape == (201, 4, 10, 10) and seen == expected
    np.testing.assert_array_equal(ours, np.moveaxis(theirs, -1, 1))
    assert len({frame.tobytes() for frame in ours}) > 20


def test_without_the_package(monkeypatch):
    env = "MinAtar/Breakout-v1"
    monkeypatch.delitem(gymnasium.registry, env, raising=False)
    monkeypatch.setitem(sys.modules, "minatar.gym", None)  # as if it were not installed
    (pin,) = re.findall(r"^MinAtar==\S+", (ROOT / "requirements-dev.txt").read_text(), re.M)
    with pytest.raises(UserError, match=f"--env {env}: pip install {pin}$"):
        make_minatar(env)


def test_a_misspelt_game_does_not_register_the_others_again(monkeypatch):
    """Gymnasium would warn of each that is replaced, ten times before the error."""
    import minatar.gym

    make_minatar("MinAtar/Breakout-v1")
    monkeypatch.setattr(minatar.gym, "register_envs", lambda: pytest.fail("again"))
    with pytest.raises(gymnasium.error.NameNotFound, match="Nonsense"):
        make_minatar("MinAtar/Nonsense-v1")
