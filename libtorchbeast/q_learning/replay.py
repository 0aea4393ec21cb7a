# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A replay of sequences, which lies between the queue of rollouts and the learner.

It keeps rollouts as blocks of T rows (--unroll_length), each row once: row T of a rollout is row 0
of the next one of its environment. A block has the recurrent state before its row 0, and links to
the blocks before and after it. The newest block overwrites the oldest.

A sequence begins at any block and goes on through those that follow, --burn_in rows and
--train_length transitions. So sequences overlap, and cross episodes as rollouts do: where `done`
is set, the network restarts its state. Of a stack of frames only the newest is kept.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libtorchbeast.flags import Flags
from libtorchbeast.learner import Between
from libtorchbeast.models import CoreState
from libtorchbeast.q_learning import replay_memory
from libtorchbeast.q_learning.replay_memory import NONE, Shapes
from libtorchbeast.rollouts import Rollout
from libtorchbeast.spec import Spec

SMALLEST = 1e-6  # priority, so that a sequence without an error can still be drawn
LARGEST = 1e30  # priority, also for NaN: then the sequence is drawn, and the learner reports it

logger = logging.getLogger(__name__)


class Replay(Between):
    """Stands between rollouts and learner. Any thread may call any method.

    --replay_ratio is kept by counting: a batch is drawn only if fewer steps were trained on than
    the ratio times the new steps. Else the learner waits for rollouts, and if it is the slower one,
    the queue fills and the actors wait. Steps are real transitions, without those of the burn-in.

    Args:
        flags: give the sizes, the ratio, the exponent of the priorities and the seed.
        spec: of the environments.
        core_state: of one environment, [layers, 1, H].
        own: the outputs of acting that are kept in the rows: name -> (shape, dtype).
        first_priorities: gives the priorities [B] of new sequences [S+1, B, ...], which it gets
            without observations.
        path: of the file that it is kept in, so that it can be resumed. None: no file.

    Raises:
        UserError: the file cannot be made, for example because the disk is full.
    """

    def __init__(
        self,
        flags: Flags,
        spec: Spec,
        core_state: CoreState,
        own: Shapes,
        first_priorities: Callable[[Rollout], Tensor],
        path: str | None = None,
    ):
        self._flags, self._stacks, self._first_priorities = flags, spec.stacks, first_priorities
        self._T, self._length = flags.unroll_length, flags.burn_in + flags.train_length
        self._blocks_each = self._length // self._T + 1  # of a sequence, with room for its last row
        self._M = -(-flags.replay_capacity // self._T)
        shapes = replay_memory.block_shapes(spec, core_state, own, self._T)
        self._layout = json.dumps([self._M, self._length, shapes])
        self._arrays = replay_memory.allocate(flags, shapes, self._M, path)
        self._serials = self._arrays.pop("serial")  # of the block in each slot, which is serial % M
        self._in_file = self._serials.copy()
        self._serials[:] = NONE
        self._observations = spec.observations.keys()
        self._previous, self._next = np.full((2, self._M), NONE)  # blocks of the same environment
        self._newest: dict[int, int] = {}  # environment -> serial
        # Of the complete sequences that begin at slots, else 0, so that no other is drawn.
        self._priorities = np.zeros(self._M)
        self._random = np.random.default_rng(flags.seed)
        # Numbers of steps, except `blocks`. `unreported` steps came since the last batch was drawn,
        # `new` ones since there were --replay_start, and `trained` ones were drawn to learn from.
        self._counts = dict(blocks=0, received=0, unreported=0, new=0, trained=0)
        self._taking = threading.Lock()  # so that an environment's rollouts stay in order
        self._lock = threading.Lock()  # protects all of the above, and is never held for long

    def batches(self, rollouts: Iterator[Rollout]) -> Iterator[Rollout]:
        """Yields batches of sequences [S+1, B, ...], S = --burn_in + --train_length.

        Besides rows and core states they have `column/chance` [1, B] float32, the probability with
        which each sequence was drawn, `column/serial` [1, B], its number, and `column/new_steps`
        [1, B], how many steps have come since the last batch that was learned from.
        """
        while True:
            with self._taking:
                while not self.may_sample():
                    if (new := next(rollouts, None)) is None:
                        return
                    self.insert(new)
                batch = self.sample()
            yield batch

    def learned(self, batch: Rollout, numbers: dict[str, Any] | None) -> None:
        """Takes the new `priorities` [B] of a batch."""
        serials = batch["column/serial"][0].numpy()
        slots = serials % self._M
        with self._lock:
            if numbers is None:  # the update was skipped, so the next batch reports these steps
                self._counts["unreported"] += int(batch["column/new_steps"][0, 0])
                return
            still = (self._serials[slots] == serials) & (self._priorities[slots] > 0)
            self._set_priorities(slots[still], np.array(numbers["priorities"])[still])

    def may_sample(self) -> bool:
        new, trained = self._counts["new"], self._counts["trained"]
        return trained < self._flags.replay_ratio * new and bool(self._priorities.any())

    def insert(self, batch: Rollout) -> None:
        """Adds rollouts [T+1, C, ...] with the number of each one's `environment` [T+1, C]."""
        with self._lock:
            environments = batch["environment"][0].tolist()
            serials = self._counts["blocks"] + np.arange(len(environments))
            slots = serials % self._M
            self._forget(slots)
            for name, array in self._arrays.items():
                values = batch[name] if name.startswith("core_state/") else batch[name][:-1]
                newest = values[:, :, -1] if name in self._stacks else values
                array[slots] = newest.transpose(0, 1).numpy()
            self._counts["blocks"] += len(serials)
            self._serials[slots] = serials  # last, so that a half-written block never seems whole
            ready = [self._link(*pair) for pair in zip(serials.tolist(), environments, strict=True)]
            if complete := [slot for slot in ready if slot != NONE]:
                rows = self._rows(np.array(complete), self._arrays.keys() - self._observations)
                self._set_priorities(np.array(complete), self._first_priorities(rows).numpy())
            steps = int((~batch["done"][1:]).sum())
            for name in ("received", "unreported"):
                self._counts[name] += steps
            if self._counts["received"] >= self._flags.replay_start:
                self._counts["new"] += steps

    def _link(self, serial: int, environment: int) -> int:
        """Links a new block. Returns the slot of the sequence that it completes, or NONE."""
        before = self._newest.get(environment, NONE)
        self._newest[environment] = serial
        if len(self._newest) > 2 * self._M:  # streams that are opened again have new numbers
            self._newest = {k: v for k, v in self._newest.items() if self._holds(v)}
        self._previous[serial % self._M], self._next[serial % self._M] = before, NONE
        if self._holds(before):
            self._next[before % self._M] = serial
        start = serial
        for _ in range(self._blocks_each - 1):
            start = int(self._previous[start % self._M])
            if not self._holds(start):
                return NONE
        slot = start % self._M
        goes_on = self._arrays["episode_step"][slot, 0] > 0  # else it needs no frames before it
        lacks_frames = self._stacks and goes_on and not self._holds(int(self._previous[slot]))
        return NONE if lacks_frames else slot

    def _holds(self, serial: int) -> bool:
        return serial != NONE and self._serials[serial % self._M] == serial

    def _forget(self, slots: np.ndarray) -> None:
        """Empties slots. Then no sequence right after them can be drawn: its stacks lack frames."""
        if self._stacks:
            after = self._next[slots]
            self._priorities[after[after != NONE] % self._M] = 0.0
        self._priorities[slots] = 0.0
        self._serials[slots] = self._next[slots] = NONE

    def _set_priorities(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        exponent = self._flags.priority_exponent
        in_range = np.fmin(np.maximum(priorities, SMALLEST), LARGEST)  # fmin ignores NaN
        self._priorities[slots] = in_range**exponent

    def sample(self) -> Rollout:
        with self._lock:
            slots, chances = draw(self._priorities, self._random.random(self._flags.batch_size))
            batch = self._rows(slots, self._arrays.keys())
            batch["column/chance"] = torch.from_numpy(chances)[None]
            serials = batch["column/serial"] = torch.from_numpy(self._serials[slots])[None]
            batch["column/new_steps"] = torch.full_like(serials, self._counts["unreported"])
            self._counts["unreported"] = 0
            self._counts["trained"] += int((~batch["done"][self._flags.burn_in + 1 :]).sum())
        return batch

    def _rows(self, slots: np.ndarray, names: Any) -> Rollout:
        """The arrays `names` of the sequences that begin at `slots` [B], as a batch."""
        chain = [slots]
        for _ in range(self._blocks_each - 1):
            chain.append(self._next[chain[-1]] % self._M)
        T = self._T
        steps = (np.array(chain)[:, None] * T + np.arange(T)[:, None]).reshape(-1, len(slots))
        steps = steps[: self._length + 1]  # [S+1, B], where each row lies
        before = self._previous[slots] % self._M * T + T  # where the block before ends
        batch = {}
        for name, array in self._arrays.items():  # core states in their order
            if name not in names:
                continue
            if name.startswith("core_state/"):
                batch[name] = torch.from_numpy(array[slots]).transpose(0, 1)
                continue
            # `take` is six times as fast as indexing.
            flat = array.reshape(self._M * T, *array.shape[2:])
            if k := self._stacks.get(name):
                older = before + np.arange(1 - k, 0)[:, None]
                frames = torch.from_numpy(flat.take(np.concatenate([older, steps]), axis=0))
                ages = torch.from_numpy(self._arrays["episode_step"].reshape(-1).take(steps))
                batch[name] = replay_memory.stack_frames(frames, ages, k)
            else:
                batch[name] = torch.from_numpy(flat.take(steps, axis=0))
        return batch

    def columns(self) -> dict[str, float]:
        """Columns for the log."""
        counts = self._counts
        ratio = {"replay_ratio": counts["trained"] / counts["new"]} if counts["new"] else {}
        return {"replay_steps": float(self._steps())} | ratio

    def changes(self) -> int:
        return self._counts["blocks"]  # see RunState.also_save

    def _steps(self) -> int:
        return int((self._serials != NONE).sum()) * self._T

    def state_dict(self) -> dict[str, Any]:
        """All but the blocks, which are in the file."""
        with self._lock:
            numbers = dict(
                serials=self._serials, previous=self._previous, next=self._next,
                priorities=self._priorities,
            )  # fmt: skip
            state = {name: torch.from_numpy(array.copy()) for name, array in numbers.items()}
            random = json.dumps(self._random.bit_generator.state)
            rules = dict(exponent=self._flags.priority_exponent, ratio=self._flags.replay_ratio)
            return {**state, **self._counts, **rules, "random": random, "layout": self._layout}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with those blocks of the checkpoint that the file still has. If they have fewer
        than --replay_start steps, learning begins when there are as many again. A new
        --priority_exponent holds for them, too, and a new --replay_ratio for the steps to come."""
        if state["layout"] != self._layout:
            logger.warning("The checkpoint's replay buffer has another layout and is not used")
            return
        names = ("serials", "previous", "next")
        serials, self._previous[:], self._next[:] = (state[name].numpy() for name in names)
        saved, exponent = state["priorities"].numpy(), self._flags.priority_exponent
        if (before := state.get("exponent", exponent)) != exponent:
            saved = np.where(saved > 0, saved ** (exponent / max(before, 1e-9)), 0.0)
        self._priorities[:] = saved
        self._random.bit_generator.state = json.loads(state["random"])
        self._counts = {name: state[name] for name in self._counts}
        if state.get("ratio", ratio := self._flags.replay_ratio) != ratio:
            self._counts |= dict(new=0, trained=0)
        is_kept = self._in_file == serials  # the others were overwritten after the checkpoint
        self._forget(np.flatnonzero(~is_kept))
        self._serials[:] = np.where(is_kept, serials, NONE)
        if (held := self._steps()) < self._flags.replay_start:
            self._counts |= dict(received=min(held, self._counts["received"]), new=0, trained=0)


def draw(priorities: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The slots [B] on which `shares` [B], each in [0, 1), of the sum of all priorities fall, and
    with which chance each of them was drawn, float32 [B]. None of them has the priority 0. For the
    usual sizes adding up all priorities takes less time than keeping a tree of sums."""
    sums = priorities.cumsum()
    # Products are rounded, so that a share of almost 1 might lie beyond the last slot.
    places = np.minimum(shares * sums[-1], np.nextafter(sums[-1], 0))
    slots = np.searchsorted(sums, places, side="right")
    return slots, (priorities[slots] / sums[-1]).astype(np.float32)
