# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""NetHack (NLE) as an environment for both beasts. Servers import this file, so it needs no torch.

The variable NETHACK_TTYRECS=FOLDER records all games as NLE does, in files .ttyrec3.bz2.
"""

import contextlib
import logging
import math
import os
from typing import Any

import gymnasium
import nle  # noqa: F401  # registers its environments
import numpy as np

from libtorchbeast.flags import Flags

KEYS = ("glyphs", "blstats")  # what the network reads, 3,534 bytes; all of NLE's 14 keys: 149,949
SCREEN = ("tty_chars", "tty_colors")  # what a film shows besides
FONT_SIZE = 15  # pixels
# The terminal's 16 colours. 0 is black in NetHack, too dark to see, and drawn as blue is.
COLORS = (
    "#4060ff #cc3030 #30b030 #b08030 #4060ff #b040b0 #30a0a0 #c0c0c0 "
    "#707070 #ff8030 #60ff60 #ffff60 #80a0ff #ff80ff #60ffff #ffffff"
).split()


logging.getLogger("nle").setLevel(logging.WARNING)  # it tells of each environment that is made


def make_nethack(flags: Flags) -> gymnasium.Env:
    """Makes the environment --env of NLE, such as NetHackScore-v0. In the mode test_render its
    `render` draws the terminal, with the message line and the status lines."""
    is_filmed = flags.mode == "test_render"
    folder = os.environ.get("NETHACK_TTYRECS")
    own = f"{flags.mode}-{flags.env_index}"  # because NLE names files only after the process
    env = gymnasium.make(
        flags.env,
        observation_keys=KEYS + SCREEN if is_filmed else KEYS,
        savedir=os.path.join(os.path.expanduser(folder), own) if folder else None,
        save_ttyrec_every=1 if folder else 0,
        fix_moon_phase=True,  # otherwise a game depends on the date and the hour, too
        disable_env_checker=True,
    )
    # At its own limit NLE quits the game, says `terminated`, and its map is empty.
    game: Any = env.unwrapped
    limit, game._max_episode_steps = game._max_episode_steps, math.inf
    return NetHack(gymnasium.wrappers.TimeLimit(env, int(limit)))


class NetHack(gymnasium.Wrapper):
    """Seeds NLE before each reset, returns the observations KEYS, and draws the terminal.

    NLE ignores `reset(seed=...)`, and forgets the seeds of its own method `seed` after one game.
    Here `reset(seed=...)` decides all games up to the next seed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        parts = env.observation_space.spaces  # type: ignore[attr-defined]
        self.observation_space = gymnasium.spaces.Dict({key: parts[key] for key in KEYS})
        self._seeds = np.random.default_rng()
        self._seen: dict[str, np.ndarray] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        core, display = self._seeds.integers(2**31, size=2).tolist()
        with contextlib.suppress(RuntimeError):  # NetHackChallenge allows no seeds
            self.unwrapped.seed(core, display, reseed=False)  # type: ignore[attr-defined]
        self._seen, info = self.env.reset(options=options)
        return self._read(), info

    def step(self, action: int):
        self._seen, *others = self.env.step(action)
        return self._read(), *others

    def _read(self) -> dict[str, np.ndarray]:
        return {key: self._seen[key] for key in KEYS}

    def render(self) -> np.ndarray:
        """Draws `tty_chars` and `tty_colors` [24, 80]. Returns uint8 [24 h, 80 w, 3]."""
        return draw(*(self._seen[key] for key in SCREEN))


def draw(chars: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """Draws a terminal: the characters' codes and colours, uint8 and int8 [rows, columns], in cells
    of h x w pixels. Returns uint8 [rows h, columns w, 3]."""
    import matplotlib  # has a font of fixed width
    from PIL import Image, ImageDraw, ImageFont

    path = os.path.join(matplotlib.get_data_path(), "fonts/ttf/DejaVuSansMono.ttf")
    font = ImageFont.truetype(path, FONT_SIZE)
    w, h = math.ceil(font.getlength("M")), sum(font.getmetrics())
    rows, columns = chars.shape
    picture = Image.new("RGB", (columns * w, rows * h))
    pen = ImageDraw.Draw(picture)
    for y, x in np.argwhere(chars > ord(" ")):
        pen.text((x * w, y * h), chr(chars[y, x]), COLORS[colors[y, x] & 15], font)
    return np.asarray(picture)
