# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The video of the test mode: every step, of every kind of environment, with its panel."""

import contextlib
from itertools import pairwise
from unittest import mock

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest

import monobeast
from benchmarks.mock import make_mock
from libtorchbeast import evaluate, models
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.loggers import video
from tests.support.envs import Catch
from tests.support.monobeast import CATCH, parse

pytestmark = pytest.mark.usefixtures("as_before")


class OldCatch(Catch):
    """An old Gym environment: `step` returns four values, and `render` takes the mode."""

    metadata = {"render.modes": ["rgb_array"], "video.frames_per_second": 30}

    def reset(self):
        return super().reset(seed=0)[0]

    def step(self, action):
        observation, reward, over, _, info = super().step(action)
        return observation, reward, over, info

    def render(self, mode="human"):
        assert mode == "rgb_array", "there is no screen"
        return np.repeat(self.board()[0][:, :, None], 3, axis=2)


def drawn(change, **metadata):
    """Makes a Catch whose picture is `change(its board)`."""
    own = dict(render=lambda self: change(self.board()[0]), metadata=metadata)
    return lambda: type("DrawnCatch", (Catch,), own)()


def without_pygame(board):
    raise gymnasium.error.DependencyNotInstalled("pygame is not installed")


VIEWABLE = {
    "old Gym": OldCatch,
    "vector": lambda: gymnasium.vector.SyncVectorEnv([lambda: Catch("rgb_array")]),
    "floats": drawn(lambda board: [board / 255]),  # a history, of colours from 0 to 1
}
UNVIEWABLE = {
    "nothing to call": (lambda: make_mock("Mock/4x4", 1), r"has no render\(\) that could draw it"),
    "declared only": (drawn(gymnasium.Env.render), r"render\(\) raised NotImplementedError"),
    "a key lacks": (
        drawn(lambda board: ["glyphs"].index("tty_chars")),  # as NetHack's
        r"render\(\) raised ValueError: 'tty_chars' is not in list; "
        r"create_env has to make it with all that render\(\) reads; .* MUJOCO_GL=egl$",
    ),
    "no such mode": (
        drawn(lambda board: "Invalid render mode", render_modes=["human", "ansi"]),
        r"gave str \[\], .* with a render_mode that gives one, of \['human', 'ansi'\]",
    ),
    "a package lacks": (drawn(without_pygame), "pygame is not installed"),
    "no mode": (Catch, r"gave NoneType \[\], expected an array .* of .*'rgb_array'"),
    "floats up to 255": (
        drawn(lambda board: board * 1.0),
        "expected whole numbers from 0 to 255, ",
    ),
    "one colour": (drawn(lambda board: board[:, :, None]), r"gave ndarray \[10, 5, 1\], expected"),
}


def show(savedir, make, make_net=models.make_net):
    """Plays two games with an untrained network and makes a video of them."""
    where = ["--savedir", str(savedir), "--xpid", "run"]
    flags = parse(*CATCH, "--mode", "test_render", "--num_episodes", 2, *where)
    env = Environment(make, 1, "TheGame")
    loaded = make_net(monobeast.Net, env.spec, flags), env
    with mock.patch.object(evaluate, "load", lambda *_: loaded):
        return evaluate.play_newest(flags, player=None)


@pytest.mark.parametrize("kind", VIEWABLE)
def test_the_video_of_every_kind_of_environment(kind, tmp_path):
    (tmp_path / "run").mkdir()
    games = show(tmp_path, VIEWABLE[kind])
    with imageio.get_reader(tmp_path / "run/test.mp4") as reader:
        frames = [frame for frame in reader]  # list(reader) would ask for its length, which is inf
    assert len(frames) == sum(1 + game.steps for game in games) == 20  # first pictures, and others
    panels = [frame[480:].astype(int) for frame in frames]
    assert all(abs(after - before).max() > 100 for before, after in pairwise(panels))
    assert [file.name for file in tmp_path.rglob("*.mp4")] == ["test.mp4"]
    assert all((frame[:480] > 200).any() for frame in frames)
    assert frames[0].shape == (480 + video.PANEL, video.MIN_WIDTH, 3)  # 10 x 5, 48 times larger
    board = frames[4][:480]  # centred; videos are not exact
    assert not board[:, :30].any() and (board[:, 40:-40] > 200).any(axis=2).sum() > 40**2


@pytest.mark.parametrize("kind", UNVIEWABLE)
def test_an_environment_without_pictures_is_refused_before_a_game(kind, tmp_path):
    (tmp_path / "run").mkdir()
    make, message = UNVIEWABLE[kind]
    with pytest.raises(UserError, match=f"^--mode test_render: (TheGame.*)?{message}"):
        show(tmp_path, make, make_net=lambda *_: None)  # without a network nobody can play
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("fault", ["no folder", "lost pictures"])
def test_a_film_that_cannot_be_written_replaces_none(fault, tmp_path, monkeypatch):
    path = tmp_path / "run/test.mp4"
    if fault == "lost pictures":  # as on a full disk, of which ffmpeg says nothing
        path.parent.mkdir()
        path.write_text("the older film")
        reader = imageio.get_reader
        less = lambda file: mock.Mock(count_frames=lambda: reader(file).count_frames() - 1)
        opened = lambda file: contextlib.nullcontext(less(file))
        monkeypatch.setattr(video.imageio, "get_reader", opened)
    with pytest.raises(UserError, match="test.mp4 was not written: [^\n]* .is the disk full"):
        show(tmp_path, lambda: Catch("rgb_array"))
    assert [file.read_text() for file in tmp_path.rglob("*.mp4")] in ([], ["the older film"])


def test_the_panel_shows_the_value_of_this_game_and_where_rewards_came():
    def rows(*values, step=0):
        for i, (value, reward) in enumerate(values):
            numbers = dict(episode_step=step + i, episode_return=0, baseline=value, reward=reward)
            yield {k: np.array([number]) for k, number in numbers.items()}

    def ink(image, color, axis=0):
        """Columns (or rows) of the panel where the curve, without its last point, has a colour."""
        box = image[-video.PANEL + 30 :, 60:-12].astype(int)
        wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
        return (abs(box - wanted).max(axis=2) < 8).any(axis=axis)

    panel, picture = video.Panel(), np.zeros((20, 20), np.uint8)
    for row in rows((0.0, 0), (1.0, 1), (0.5, 0), (0.7, -2), *[(0.2, 0)] * 9):
        image = panel.below(picture, row)
    assert image.shape == (480 + video.PANEL, 480, 3)
    assert ink(image, video.VALUE).sum() > 5
    assert ink(image, video.GOOD).any() and ink(image, video.BAD).any()
    assert ink(image, video.BAD, 1).sum() > 1.5 * ink(image, video.GOOD, 1).sum()  # twice as large
    for row in rows((3.0, 0)):
        larger = np.zeros((30, 20), np.uint8)
        assert panel.below(larger, row).shape == image.shape  # all in a video have one size
        image = panel.below(picture, row)
    assert not any(ink(image, color).any() for color in (video.VALUE, video.GOOD, video.BAD))
    for row in rows(*[(i % 7, 0) for i in range(3 * video.SHOWN)], step=1):
        image = panel.below(picture, row)
    assert ink(image, video.VALUE).all()  # from end to end
