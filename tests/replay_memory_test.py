# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A replay's memory: how much it is, that it is refused where it is too much, and stacks."""

import errno
import logging
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import r2d2
from libtorchbeast import shared_memory
from libtorchbeast.flags import UserError, replace
from libtorchbeast.q_learning.replay_memory import (
    allocate,
    block_shapes,
    required_bytes,
    stack_frames,
)
from libtorchbeast.spec import Actions, Spec

ATARI = Spec(
    "Pong", 16, {"frame": ((4, 84, 84), "uint8")}, Actions("discrete", (18,)), 4, {"frame": 4}
)
STATE = (torch.zeros(1, 1, 512), torch.zeros(1, 1, 512))
DESCRIPTION = SimpleNamespace(row_bytes=28_224, num_envs=16)  # of a server


def test_the_bytes_are_said_and_refused_where_they_do_not_fit(tmp_path, caplog):
    """A million steps of Atari take seven gigabytes."""
    shapes = block_shapes(ATARI, STATE, r2d2.OWN_OUTPUTS, 40)
    assert shapes["frame"] == ((40, 84, 84), "uint8")
    assert 7.0e9 < required_bytes(shapes, 25_000) < 7.3e9
    caplog.set_level(logging.INFO)
    flags = r2d2.parse(["--env", "CartPole-v1"])
    shapes = {"frame": ((20, 4), "float32"), "serial": ((), "int64")}
    arrays = allocate(flags, shapes, 10, None)
    assert arrays["frame"].shape == (10, 20, 4) and arrays["serial"].dtype == np.int64
    assert "takes 0.000 GB" in caplog.text
    for is_saved, said in ((False, "needed"), (True, "disk")):
        own = dict(replay_capacity=10**12, save_replay=is_saved, savedir=str(tmp_path / "new/one"))
        with pytest.raises(UserError, match=f"^--replay_capacity {10**12}: expected .* {said}"):
            own = replace(flags, **own)
            replay = r2d2.replay_memory(own, ATARI, STATE)
            shared_memory.require_stream_memory(own, DESCRIPTION, STATE, replay)
    assert not list(tmp_path.iterdir())


def test_the_buffer_and_the_rollouts_must_fit_together(monkeypatch):
    flags = replace(r2d2.parse(["--env", "CartPole-v1"]), replay_capacity=10_000, num_actors=2)
    replay = r2d2.replay_memory(flags, ATARI, STATE)
    available = [replay, 2 * replay]
    monkeypatch.setattr(shared_memory, "available_bytes", lambda: available[0])
    assert shared_memory.require_stream_memory(flags, DESCRIPTION, STATE) == replay // 4
    with pytest.raises(UserError, match="^--replay_capacity 10000: expected a smaller number"):
        shared_memory.require_stream_memory(flags, DESCRIPTION, STATE, replay)
    with pytest.raises(UserError, match="^--batch_size 1000000: expected a smaller number"):
        more = replace(flags, batch_size=10**6)
        shared_memory.require_stream_memory(more, DESCRIPTION, STATE, replay)
    del available[0]
    assert shared_memory.require_stream_memory(flags, DESCRIPTION, STATE, replay) == replay // 4


def test_a_disk_that_fills_up_meanwhile_is_said_in_one_sentence(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    flags, path = r2d2.parse(["--env", "CartPole-v1"]), str(tmp_path / "replay.bin")
    with pytest.raises(UserError, match="^--save_replay: .*bin, 320 bytes: No space left on dev"):
        allocate(flags, {"frame": ((8,), "float32"), "serial": ((), "int64")}, 8, path)
    assert not list(tmp_path.iterdir())


def test_a_file_keeps_its_content_if_it_has_the_right_size(tmp_path):
    flags, path = r2d2.parse(["--env", "CartPole-v1"]), str(tmp_path / "replay.bin")
    shapes = {"frame": ((3,), "int16"), "serial": ((), "int64")}
    allocate(flags, shapes, 5, path)["frame"][:] = 7
    assert (allocate(flags, shapes, 5, path)["frame"] == 7).all()
    assert (allocate(flags, shapes, 50, path)["frame"] == 0).all()


@pytest.mark.parametrize("k, dtype", [(2, torch.int64), (4, torch.uint16)])
def test_stacks_are_made_of_their_games_frames(k, dtype):
    ages = [5, 6, 0, 1, 2, 3, 4, 0, 0]  # rows 2, 7 and 8 are the first of their games
    frames = torch.arange(1, k - 1 + len(ages) + 1)[:, None].to(dtype)
    stacks = stack_frames(frames, torch.tensor(ages)[:, None], k)
    for t, age in enumerate(ages):
        newest = k + t
        older = [newest - i if i <= age else 0 for i in range(k - 1, -1, -1)]
        assert stacks[t, 0].tolist() == older
