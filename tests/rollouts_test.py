# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Rollouts cut into batches lose nothing."""

import numpy as np
import pytest
import torch

from libtorchbeast.rollouts import Barrier, batches, core_state_of, rollout_shapes
from tests.support.monobeast import parse
from tests.support.rollouts import LAYERS, H, T, assert_equal, columns


class Source:
    """Rollouts of the given widths, whose memory is overwritten as soon as it is released."""

    def __init__(self, widths):
        self.ends = np.cumsum(widths)
        self.taken, self.released = 0, []

    def __iter__(self):
        for index, end in enumerate(self.ends):
            start = self.ends[index - 1] if index else 0
            rollout = columns(range(start, end))
            self.taken += 1
            yield rollout, lambda rollout=rollout, index=index: self._release(rollout, index)

    def _release(self, rollout, index):
        self.released.append(index)
        for tensor in rollout.values():
            tensor.fill_(1)


@pytest.mark.parametrize("seed", range(6))
def test_batches_are_the_columns_in_order_each_once(seed):
    """Also: a rollout is released once, in order, right after its last column was copied, and the
    next one is asked for only when it is needed."""
    rng = np.random.default_rng(seed)
    highest, batch_size = rng.integers(1, 9, size=2)
    widths = rng.integers(1, highest + 1, size=40)
    if seed % 3 == 0:
        widths[:] = highest  # as MonoBeast's actors have them
    source = Source(widths)
    start = 0
    for batch in batches(source, int(batch_size)):
        assert_equal(batch, columns(range(start, start + batch_size)))
        start += batch_size
        assert source.released == list(range(sum(source.ends <= start)))
        assert source.taken == 1 + sum(source.ends < start)
    assert sum(widths) - start < batch_size  # what is left does not fill a batch
    assert source.released == list(range(len(widths)))


@pytest.mark.parametrize("count", [0, 1, 12])
def test_core_state_keeps_its_order_in_the_shapes_of_a_rollout(count):
    """The shapes of T+1 rows and one state are learned from any number of environments."""
    frame, done = torch.zeros(1, 4, 8, 8, dtype=torch.uint8), torch.zeros(1).bool()
    states = tuple(torch.full((LAYERS, 1, H), float(i)) for i in range(count))
    shapes = rollout_shapes({"frame": frame, "done": done, "reward": torch.zeros(1)}, states, T, 5)
    assert shapes == {
        "frame": ((T + 1, 5, 4, 8, 8), torch.uint8),
        "done": ((T + 1, 5), torch.bool),
        "reward": ((T + 1, 5), torch.float32),
    } | {f"core_state/{i}": ((LAYERS, 5, H), torch.float32) for i in range(count)}
    rollout = {f"core_state/{i}": state for i, state in enumerate(states)}
    seen = core_state_of(rollout | {"reward": torch.zeros(1)})
    assert isinstance(seen, tuple)
    assert [int(state[0, 0, 0]) for state in seen] == list(range(count))


def two_environments(flags):
    return parse(*flags.split(), "--num_actors", 0, "--envs_per_actor", 2)


def over(*rows):
    """A rollout of two environments: row 0, and `episode_over` in the others."""
    return {"episode_over": torch.tensor([[1, 1], *rows], dtype=torch.bool)}


def test_a_barrier_waits_for_the_games_that_run_when_it_is_due():
    barrier = Barrier(7, two_environments("--barrier_updates 3 --batch_size 2"))
    barrier.add(over([1, 1]), updates=9)  # it is not yet due: games go on after these
    assert barrier.playing.tolist() == [True, True] and not barrier.reached()
    barrier.add(over([0, 1], [0, 0]), updates=10)
    assert barrier.playing.tolist() == [True, False] and not barrier.reached()
    barrier.add(over([0, 1], [0, 0]), updates=11)
    assert barrier.playing.tolist() == [True, False] and not barrier.reached()
    barrier.add(over([0, 0], [1, 0]), updates=12)
    assert barrier.reached()


def test_games_that_begin_after_a_barrier_was_due_do_not_count():
    barrier = Barrier(7, two_environments("--barrier_updates 3 --batch_size 2"))
    rows = over([0, 1], [1, 0], [1, 1])
    counted, playing = barrier.add(rows, updates=9)
    assert counted["episode_over"].equal(rows["episode_over"]) and playing.all()
    expected = over([0, 1], [1, 0], [0, 0])["episode_over"]
    counted, playing = barrier.add(rows, updates=10)
    assert counted["episode_over"].equal(expected) and playing.all()
    assert not barrier.add(rows, updates=11)[1].any()
    assert rows["episode_over"][3].all()  # the learner's rollout stays as it is


def test_a_barrier_leaves_no_column_over():
    barrier = Barrier(0, two_environments("--barrier_updates 1 --batch_size 6"))
    reached = []
    for updates in (0, 0, 0, 1, 1, 1):
        barrier.add(over([1, 1]), updates)
        reached.append(barrier.reached())
    assert reached == [False] * 5 + [True]


def test_a_barrier_that_waits_long_says_so_once(caplog):
    barrier = Barrier(0, two_environments("--barrier_updates 5 --batch_size 2"))
    barrier.add(over([0, 1]), updates=4 + Barrier.LONG)
    assert not caplog.text and not barrier.late
    for later in range(5, 9):
        barrier.add(over([0, 1]), updates=later + Barrier.LONG)
    assert caplog.text.count("due at update 5 still waits for 1 games") == 1
    assert barrier.late
