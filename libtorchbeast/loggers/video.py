# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The video of `--mode test_render`: the environment's pictures, and below each picture the game's
return and step so far and the value that the network predicts."""

import collections
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from libtorchbeast.environment import Environment, Row
from libtorchbeast.flags import UserError
from libtorchbeast.loggers.display import say

# In pixels:
MIN_WIDTH = 320
PANEL = 104  # height of the panel below a picture
ENLARGED_SIDE = 480  # a small picture's longer side becomes at most this long

SHOWN = 120  # how many values the curve shows
BACKGROUND, TEXT, AXIS, VALUE = "#202020", "#ffffff", "#a0a0a0", "#ffb000"  # colors
GOOD, BAD = "#2e8b57", "#c0392b"  # bars of positive and of negative rewards


@contextlib.contextmanager
def recorder(path: str, env: Environment) -> Iterator[Callable[[Row], None]]:
    """Yields a function that adds a picture of `env` to the video `path`. The function takes the
    newest row of `env`, with the network's `baseline` [1]. The file gets its name `path` when it is
    whole. Raises UserError if the environment gives no picture, or the file cannot be written."""
    env.initial(seed=0)  # some environments cannot be drawn before they are reset
    picture_of(env)
    fps = (getattr(env.first, "metadata", None) or {}).get("render_fps") or 15
    panel, count = Panel(), 0
    unfinished = Path(path).with_name(f"unfinished-{Path(path).name}")

    def add(row: Row) -> None:
        nonlocal count
        count += 1
        if count % SHOWN == 0:
            say(f"step {row['episode_step'][0]}, return {row['episode_return'][0]:g}")
        writer.append_data(panel.below(picture_of(env), row))

    try:
        writer: Any = imageio.get_writer(unfinished, fps=fps, macro_block_size=2)
        with writer:
            yield add
        whole: Any = imageio.get_reader(unfinished)  # ffmpeg does not say that a disk was full
        with whole as reader:
            if reader.count_frames() != count:
                raise OSError("not all pictures are in it")
        unfinished.replace(path)
    except OSError as error:  # of ffmpeg with its whole command line, and none of the environment's
        why = str(error).partition("\n")[0]
        raise UserError(f"{path} was not written: {why} (is the disk full?)") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def picture_of(env: Environment) -> np.ndarray:
    """Returns a picture of the environment: uint8 [H, W], [H, W, 3] or [H, W, 4]. A vector
    environment has to be a vector of one. Raises UserError if the environment gives no such
    picture."""
    seen = _render(env)
    if isinstance(seen, list | tuple) and len(seen):  # of each environment, or a history
        seen = seen[-1]
    picture = np.asarray(seen)
    has_colors = picture.ndim == 3 and picture.shape[2] in (3, 4)
    if picture.dtype.kind not in "buif" or not (has_colors or picture.ndim == 2):
        modes = (getattr(env.first, "metadata", None) or {}).get("render_modes") or ["rgb_array"]
        raise UserError(
            f"--mode test_render: {env.spec.name}.render() gave {type(seen).__name__} "
            f"{list(picture.shape)}, expected an array [H, W, 3]; create_env has to make it with a "
            f"render_mode that gives one, of {modes}"
        )
    if picture.dtype.kind in "bf":  # these range from 0 to 1
        picture = 255 * picture
    if not (picture.min() > -1 and picture.max() < 256):
        said = "render(): expected whole numbers from 0 to 255, or floats from 0 to 1"
        raise UserError(f"--mode test_render: {env.spec.name}.{said}")
    return picture.clip(0, 255).astype(np.uint8, copy=False)


def _render(env: Environment) -> Any:
    name = env.spec.name
    if not hasattr(env.first, "render"):
        raise UserError(f"--mode test_render: {name} has no render() that could draw it")
    old_gym = "render.modes" in (getattr(env.first, "metadata", None) or {})
    try:
        return env.first.render(mode="rgb_array") if old_gym else env.first.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"--mode test_render: {error}") from error
    except Exception as error:
        raise UserError(
            f"--mode test_render: {name}.render() raised {type(error).__name__}: {error}; "
            f"create_env has to make it with all that render() reads; without a display, MuJoCo "
            f"needs MUJOCO_GL=egl"
        ) from error


class Panel:
    """What is drawn below each picture: return, step and predicted value, and a curve of the newest
    predicted values of the game. Bars show the rewards; the largest has the full height."""

    def __init__(self):
        # The value and the reward of each step, the newest last.
        self._steps: collections.deque[tuple[float, float]] = collections.deque(maxlen=SHOWN)
        self._size: tuple[int, int] | None = None  # of the first picture, which the video has
        self._large, self._small = (ImageFont.load_default(size) for size in (16, 11))

    def below(self, picture: np.ndarray, row: Row) -> np.ndarray:
        """Returns the picture with the panel below it, uint8 [H, W, 3]. H and W are even, because
        videos need that."""
        if row["episode_step"][0] == 0:
            self._steps.clear()
        self._steps.append((float(row["baseline"][0]), float(row["reward"][0])))
        scene = Image.fromarray(picture).convert("RGB")
        factor = max(1, ENLARGED_SIDE // max(scene.size))
        scene = ImageOps.scale(scene, factor, Image.Resampling.NEAREST)
        self._size = self._size or scene.size
        scene = ImageOps.pad(scene, self._size) if scene.size != self._size else scene
        width, height = max(MIN_WIDTH, scene.width), scene.height + PANEL
        canvas = Image.new("RGB", (width + width % 2, height + height % 2))
        canvas.paste(scene, ((canvas.width - scene.width) // 2, 0))
        pen = ImageDraw.Draw(canvas)
        pen.rectangle([0, scene.height, *canvas.size], BACKGROUND)
        texts = [
            (f"return {row['episode_return'][0]:g}", TEXT),
            (f"step {row['episode_step'][0]}", TEXT),
            (f"value {self._steps[-1][0]:.3f}", VALUE),
        ]
        for i, (text, color) in enumerate(texts):
            pen.text((8 + i * canvas.width // 3, scene.height + 8), text, color, self._large)
        bottom = scene.height + PANEL - 10
        self._draw_curve(pen, 56, scene.height + 38, canvas.width - 8, bottom)
        return np.asarray(canvas)

    def _draw_curve(
        self, pen: ImageDraw.ImageDraw, left: int, top: int, right: int, bottom: int
    ) -> None:
        """Draws the curve into this box, from the lowest to the highest value. The newest value is
        at the right."""
        values = [value for value, _ in self._steps]
        low, high = min(values), max(values)
        for y, value in ((top, high), (bottom, low)):
            pen.text((left - 6, y), f"{value:.3g}", AXIS, self._small, anchor="rm")
        per_step = (right - left) / (SHOWN - 1)
        scale = (bottom - top) / ((high - low) or 1)
        oldest = right - per_step * (len(values) - 1)
        points = [
            (oldest + i * per_step, top + (high - value) * scale) for i, value in enumerate(values)
        ]
        rewards = [reward for _, reward in self._steps]
        largest = max(map(abs, rewards)) or 1.0
        for (x, _), reward in zip(points, rewards, strict=True):
            if reward:
                color = GOOD if reward > 0 else BAD
                tall = (bottom - top) * abs(reward) / largest
                pen.line([(x, bottom - tall), (x, bottom)], color, 2)
        pen.line(points, VALUE, 2, joint="curve")
        pen.circle(points[-1], 3, VALUE)
