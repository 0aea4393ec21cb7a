# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The original MinAtar beside the games of tensors, for the checker:

    python -m examples.tensors.consistency examples.tensors.reference:breakout

The functions at the end name the pairs.
"""

import sys

import numpy as np
from minatar import Environment

from examples.tensors.asterix import Asterix
from examples.tensors.breakout import Breakout
from examples.tensors.consistency import Draws
from examples.tensors.freeway import Freeway
from examples.tensors.seaquest import Seaquest
from examples.tensors.space_invaders import SpaceInvaders

# The functions of the original that draw random numbers -> the names of the same draws in tensors.
NAMES = {
    "act": "sticky",
    "reset": "start",
    "_spawn_entity": "spawn",
    "_spawn_enemy": "enemy",
    "_spawn_diver": "diver",
    "_randomize_cars": "cars",
}


class Script:
    """Takes the place of a game's np.random.RandomState, and returns the numbers of `draws`."""

    draws: Draws

    def rand(self, size=None):
        name = self._name()
        return self.draws.take(name) if size is None else self._many(size, self.draws.take, name)

    def randint(self, low, high=None, size=None):
        name, (low, high) = self._name(), (0, low) if high is None else (low, high)
        one = lambda name: low + self.draws.pick(name, high - low)
        return one(name) if size is None else self._many(size, one, name)

    def _many(self, size, one, name):
        return np.array([one(name) for _ in range(size)])

    def _name(self):
        return NAMES[sys._getframe(2).f_code.co_name]


class Original:
    """One game of the package MinAtar.

    Args:
        name: the package's, for example space_invaders.
        moves: the minimal actions.
        revives: whether the game can be played on after its end.
        choose: (game, random) -> action, because random actions may lose too early.
    """

    def __init__(self, name, moves, revives=True, choose=None):
        self.game = Environment(name)
        self.game.random = self.game.env.random = Script()
        self.actions = self.game.minimal_action_set()
        assert moves == "".join(self.game.env.action_map[action] for action in self.actions)
        if revives:
            self.revive = lambda: setattr(self.game.env, "terminal", False)
        if choose:
            self.choose = lambda random: choose(self.game.env, random)

    def reset(self, draws):
        self.game.random.draws = draws
        self.game.reset()
        return self.observation()

    def step(self, action, draws):
        self.game.random.draws = draws
        reward, terminated = self.game.act(self.actions[action])
        return self.observation(), reward, terminated, False

    def observation(self):
        return {"frame": self.game.state().transpose(2, 0, 1)}


def follow_ball(game, random):
    """Goes where the ball will come down."""
    way = 1 if game.ball_dir in (1, 2) else -1
    rows = 9 - game.ball_y if game.ball_dir > 1 else game.ball_y + 2  # it comes back at row 3
    x = (game.ball_x + way * rows) % 20
    target = min(x, 19 - x)  # it stays beside a wall for a step
    towards = 0 if game.pos == target else 1 if target < game.pos else 2
    return towards if random.random() < 0.99 else random.integers(3)


def go_up(game, random):
    return 1 if random.random() < 0.6 else random.integers(3)


def fire_and_dive(game, random):
    """Shoots, and goes up only with a diver on board."""
    action = random.choice([1, 2, 3, 4, 5, 5])
    return 4 if action == 2 and game.diver_count == 0 else action


def _pair(name, game, **options):
    return game, lambda: Original(name, game.moves, **options)


def asterix():
    return _pair("asterix", Asterix())


def breakout():
    # A lost ball has left the image, so the original cannot play on.
    return _pair("breakout", Breakout(), revives=False, choose=follow_ball)


def freeway():
    return _pair("freeway", Freeway(), choose=go_up)


def seaquest():
    return _pair("seaquest", Seaquest(), choose=fire_and_dive)


def space_invaders():
    return _pair("space_invaders", SpaceInvaders())
