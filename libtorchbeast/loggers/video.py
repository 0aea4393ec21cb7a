# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The video of `--mode test_render`: an environment's pictures, and below each the game's step and
return so far and the value that the network expects from there."""

import collections
import contextlib
import os
from collections.abc import Callable, Iterator

import gymnasium
import imageio.v2 as imageio
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from libtorchbeast.environment import Environment, Row
from libtorchbeast.flags import UserError

MIN_WIDTH, PANEL = 320, 104  # pixels; the panel's height
SIDE = 480  # a smaller picture is enlarged, by a whole number, to at most this
SHOWN = 120  # newest values in the curve
BACKGROUND, WHITE, GREY, VALUE = "#202020", "#ffffff", "#a0a0a0", "#ffb000"
GOOD, BAD = "#2e8b57", "#c0392b"  # of rewards


@contextlib.contextmanager
def recorder(path: str, env: Environment) -> Iterator[Callable[[Row], None]]:
    """Yields what adds the newest row of `env`, which has to have its `baseline` [1], to the video
    `path`; that is there at the end only.

    Raises:
        UserError: the environment gives no picture; nothing is written then.
    """
    env.initial(seed=0)  # some can be looked at only then
    picture_of(env)
    fps = (getattr(env.first, "metadata", None) or {}).get("render_fps") or 15
    panel = Panel()
    folder, file = os.path.split(path)
    unfinished = os.path.join(folder, "unfinished-" + file)
    with imageio.get_writer(unfinished, fps=fps, macro_block_size=2) as video:
        yield lambda row: video.append_data(panel.below(picture_of(env), row))
    os.replace(unfinished, path)


def picture_of(env: Environment) -> np.ndarray:
    """What the environment, or the only one of its vector, looks like now: uint8 [H, W], [H, W, 3]
    or [H, W, 4].

    Raises:
        UserError: it cannot tell.
    """
    name = env.spec.name
    if not hasattr(env.first, "render"):
        raise UserError(f"--mode test_render: {name} has no render() that could draw it")
    old_gym = "render.modes" in (getattr(env.first, "metadata", None) or {})
    try:
        seen = env.first.render(mode="rgb_array") if old_gym else env.first.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"--mode test_render: {error}") from error
    except NotImplementedError:
        raise UserError(
            f"--mode test_render: {name} has a render() that is not implemented"
        ) from None
    if isinstance(seen, list | tuple) and len(seen):  # one for each of a vector, or a history
        seen = seen[-1]
    picture = np.asarray(seen)
    has_colors = picture.ndim == 3 and picture.shape[2] in (3, 4)
    if picture.dtype.kind not in "buif" or not (has_colors or picture.ndim == 2):
        raise UserError(
            f"--mode test_render: {name}.render() gave {type(seen).__name__} "
            f"{list(picture.shape)}, expected an array [H, W, 3]; create_env has to make it with "
            f"render_mode='rgb_array'"
        )
    if picture.dtype.kind in "bf":  # from 0 to 1
        picture = 255 * picture
    return picture.astype(np.uint8, copy=False)


class Panel:
    """Below a picture: return, step and value estimate, and the curve of the game's newest `SHOWN`
    values between their lowest and highest, with a bar where a reward came."""

    def __init__(self):
        self._values: collections.deque[float] = collections.deque(maxlen=SHOWN)
        self._rewards: collections.deque[float] = collections.deque(maxlen=SHOWN)
        self._large, self._small = (ImageFont.load_default(size) for size in (16, 11))

    def below(self, picture: np.ndarray, row: Row) -> np.ndarray:
        """The picture with the row's panel, uint8 [H, W, 3], both even as videos need."""
        self._add(row)
        scene = Image.fromarray(_enlarged(picture)).convert("RGB")
        width, height = max(MIN_WIDTH, scene.width), scene.height + PANEL
        canvas = Image.new("RGB", (width + width % 2, height + height % 2))
        canvas.paste(scene, ((canvas.width - scene.width) // 2, 0))
        pen = ImageDraw.Draw(canvas)
        pen.rectangle([0, scene.height, *canvas.size], BACKGROUND)
        self._write(pen, row, canvas.width, scene.height + 8)
        self._draw(pen, 56, scene.height + 38, canvas.width - 8, scene.height + PANEL - 10)
        return np.asarray(canvas)

    def _add(self, row: Row) -> None:
        if row["episode_step"][0] == 0:
            self._values.clear()
            self._rewards.clear()
        self._values.append(float(row["baseline"][0]))
        self._rewards.append(float(row["reward"][0]))

    def _write(self, pen: ImageDraw.ImageDraw, row: Row, width: int, top: int) -> None:
        texts = [
            (f"return {row['episode_return'][0]:g}", WHITE),
            (f"step {row['episode_step'][0]}", WHITE),
            (f"value {self._values[-1]:.3f}", VALUE),
        ]
        for i, (text, color) in enumerate(texts):
            pen.text((8 + i * width // 3, top), text, color, self._large)

    def _draw(self, pen: ImageDraw.ImageDraw, left: int, top: int, right: int, bottom: int) -> None:
        """The curve in this box, its newest value at the right."""
        low, high = min(self._values), max(self._values)
        for y, value in ((top, high), (bottom, low)):
            pen.text((left - 6, y), f"{value:.3g}", GREY, self._small, anchor="rm")
        per_step = (right - left) / (SHOWN - 1)
        scale = (bottom - top) / ((high - low) or 1)
        oldest = right - per_step * (len(self._values) - 1)
        points = [
            (oldest + i * per_step, top + (high - value) * scale)
            for i, value in enumerate(self._values)
        ]
        for (x, _), reward in zip(points, self._rewards, strict=True):
            if reward:
                pen.line([(x, top), (x, bottom)], GOOD if reward > 0 else BAD, 2)
        pen.line(points, VALUE, 2, joint="curve")
        x, y = points[-1]
        pen.ellipse([x - 3, y - 3, x + 3, y + 3], VALUE)


def _enlarged(picture: np.ndarray) -> np.ndarray:
    """Repeats the pixels of a small picture, so that a game of 10x10 can be watched."""
    factor = max(1, SIDE // max(picture.shape[:2]))
    return np.ascontiguousarray(picture.repeat(factor, 0).repeat(factor, 1))
