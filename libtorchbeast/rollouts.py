# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The shapes of rollouts in memory, and the batches that are made of them.

A rollout of N columns is a dict of rows [T+1, N, ...] and core states `core_state/i`
[layers, N, H]. In both, dimension 1 is the column. A batch is the same with `batch_size` columns.
"""

import logging
from collections.abc import Callable, Iterable, Iterator

import torch

from libtorchbeast.accelerator.devices import CPU, Slab
from libtorchbeast.flags import Flags
from libtorchbeast.models import CoreState
from libtorchbeast.shared_memory import Shapes

Rollout = dict[str, torch.Tensor]
NOBODY = -1  # in `past`, instead of a kept file's step: the network in training has moved
COLUMN_PREFIXES = ("core_state/", "column/")  # of keys that are not rows, see Transitions

logger = logging.getLogger(__name__)


def rollout_shapes(
    row: dict[str, torch.Tensor], core_state: CoreState, unroll_length: int, num_envs: int
) -> Shapes:
    """The shapes and dtypes of a rollout: {name: (shape, dtype)}.

    Args:
        row: tensors [any number of environments, ...], any row of it.
        core_state: tuple of [layers, any number of environments, H].
        unroll_length: T.
        num_envs: N, the rollout's columns.
    """
    T, N = unroll_length, num_envs
    shapes: Shapes = {k: ((T + 1, N, *v.shape[1:]), v.dtype) for k, v in row.items()}
    for i, state in enumerate(core_state):
        layers, _, *sizes = state.shape
        shapes[f"core_state/{i}"] = ((layers, N, *sizes), state.dtype)
    return shapes


def core_state_of(rollout: Rollout) -> CoreState:
    """The core state [layers, B, H] that `forward` gets at row 0, before `done[0]` resets it."""
    state = tuple(v for k, v in rollout.items() if k.startswith("core_state/"))
    return state[: len(state) // 2] if "past" in rollout else state  # see Past.initial_state


def batches(
    rollouts: Iterable[tuple[Rollout, Callable[[], None]]],
    batch_size: int,
    device: torch.device = CPU,
) -> Iterator[Rollout]:
    """Yields batches of exactly `batch_size` columns, made of rollouts in their order.

    A rollout is split where a batch is full. The next batch overwrites the one before, but not if
    they will be copied to an accelerator, because that copy may still be running.

    Args:
        rollouts: pairs (rollout, release). `release()` is called as soon as the rollout's last
            column has been copied into a batch.
        device: where the batches will be copied to.
    """
    batch: Rollout = {}
    filled = 0
    for rollout, release in rollouts:
        columns, taken = rollout["reward"].shape[1], 0
        while taken < columns:
            if not batch:
                sizes = {k: (len(v), batch_size, *v.shape[2:]) for k, v in rollout.items()}
                batch = Slab({k: (sizes[k], v.dtype) for k, v in rollout.items()}, device)
            count = min(columns - taken, batch_size - filled)
            for name, tensor in rollout.items():
                batch[name][:, filled : filled + count] = tensor[:, taken : taken + count]
            taken += count
            filled += count
            if taken == columns:
                release()
            if filled == batch_size:
                yield batch
                filled = 0
                batch = batch if device.type == "cpu" else {}


class Barrier:
    """The next barrier of a run that acts and learns in turns (--num_actors 0).

    It is due --barrier_updates updates after the one before. It is reached when every game that was
    running when it became due has ended, and no column is left that has not been in a batch. It
    depends on counts only and never on the clock.

    Args:
        updates: how many there were at the barrier before.

    Attributes:
        playing: bool [N], the environments in which games count. Games that began before the
            barrier was due count. Later ones do not, because the barrier cuts off the long ones
            among them, so that short games would count too often.
        late: whether the barrier has been due for LONG updates. Perhaps a game never ends.
    """

    LONG = 1000

    def __init__(self, updates: int, flags: Flags):
        self.playing = torch.ones(flags.envs_per_actor, dtype=torch.bool)
        self._due = updates + flags.barrier_updates
        self.late = False
        self._batch_size, self._columns = flags.batch_size, 0

    def add(self, rollout: Rollout, updates: int) -> tuple[Rollout, torch.Tensor]:
        """Takes note of a rollout of all environments, which began after `updates` updates. Returns
        what `Stats.add_games` counts: the rollout, in which once the barrier is due only each
        environment's first game ends, and `playing` as it was before."""
        over, playing = rollout["episode_over"].clone(), self.playing
        self._columns += len(playing)
        if updates >= self._due:
            over[1:] &= over[1:].cumsum(dim=0) == 1
            self.playing = playing & ~over[1:].any(dim=0)
        if updates >= self._due + self.LONG and not self.late:
            self.late = True
            games = f"{int(self.playing.sum())} games to end"
            what = "No checkpoint that is saved before that can be resumed bit for bit."
            logger.warning(f"The barrier due at update {self._due} still waits for {games}. {what}")
        return rollout | {"episode_over": over}, playing

    def reached(self) -> bool:
        return not self.playing.any() and self._columns % self._batch_size == 0
