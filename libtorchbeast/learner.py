# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The learner, which updates the network from batches of rollouts. docs/design.md lists the
functions that a batch passes ("An update")."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from libtorchbeast import models
from libtorchbeast.accelerator.devices import Event, copy_to_host, device_stream, to_device
from libtorchbeast.checkpoint import misfit
from libtorchbeast.distributed.pulse import RankLost
from libtorchbeast.flags import UserError
from libtorchbeast.loggers.stats import summary
from libtorchbeast.loggers.timing import LEARNER_ACTIVITIES, Clock, shares
from libtorchbeast.passes import NO_PART, Part
from libtorchbeast.rollouts import Rollout
from libtorchbeast.update import Updater

Publish = Callable[[dict[str, torch.Tensor], int], None]  # takes (state_dict, version)

NEW_STEPS = "column/new_steps"  # key of a batch
CLOSE_S = 60.0  # an update of a large network on a CPU may take this long


class UpdateHung(RuntimeError):
    """An update did not end in time after the run was told to end."""


class Learner:
    """The network in training and the run's counters. Any thread may call any method.

    Attributes:
        step: number of steps learned from.
        updates: number of optimizer steps made, which is also the version of the weights.
        must_end: says whether a signal or a failure has told the run to end.
        net, device, skips, graphs: see `Updater`.
    """

    def __init__(self, updater: Updater, must_end: Callable[[], bool] = lambda: False):
        self.updater, self._flags, self._ranks = updater, updater.flags, updater.ranks
        self.must_end = must_end
        self.net, self.device = updater.net, updater.device
        self.skips, self.graphs = updater.skips, updater.graphs
        self.step = self.updates = 0
        self._closed = self._ended = False  # `close` was called; all ranks have agreed to stop
        self._is_updating = False  # stays True after an error: other ranks may wait in a sum
        self._updated = Event(updater.device)
        # Held by an update, which changes the above. It may itself save and load the state.
        self._one_at_a_time = threading.RLock()

    def _progress(self) -> float:
        return min(1.0, self.step / self._flags.total_steps)

    def update(self, batch: Rollout, publish: Publish) -> dict[str, Any] | None:
        """Makes --passes updates. After each it calls `publish(state_dict, version)` with the
        weights that have changed.

        Args:
            batch: a rollout batch [T+1, B, ...]; `done`, `policy_version` and `column/new_steps` on
                the CPU. The last, [1, B], says how many steps the batch adds to the run. Without
                it each transition that is `own` (see Transitions) is a step.

        Returns:
            Numbers for the log, which are means over the updates (`largest_reward`: maximum), and
            the vectors of the loss. The lag of a transition is the number of updates between the
            weights that chose its action and those before the first update from the batch.
            None if the first update was skipped or the learner is closed. A part without a real
            transition makes no update either, because the optimizer's averages would move the
            weights, but it does not count as skipped.

        Raises:
            UserError: too many updates in a row had a loss or gradient that was not finite, too
                many batches no real transition, or the network or the loss raised an error.
        """
        on_device = to_device(batch, self.device)
        if self.device.type != "cpu":
            models.remember_beginnings(on_device["done"], batch["done"])
        with self._one_at_a_time, self._updated:  # the last update may still run on the device
            is_over, is_alone = self._closed or self._ended, self._ranks is None
            if is_over or (is_alone and self.skips.note_empty(bool(batch["done"][1:].all()))):
                return None
            lag = self.updates - batch["policy_version"][:-1]
            if self._ranks is not None:
                self._ranks.learned(int((~batch["done"][1:]).sum()))
            self._is_updating = True
            each: list[dict[str, Any]] = []
            stated = int(batch[NEW_STEPS][0, 0]) if NEW_STEPS in batch else None
            forget = self.updater.keep_buffers()
            self.updater.take_in(on_device)
            for part in self.updater.parts(on_device, self._progress()):
                if part.new_steps == 0 and not each:  # the first pass had no real transition
                    break
                if stated is not None:  # it counts in one update only, as the statistics do
                    part = part._replace(new_steps=0 if each else stated)
                if each:
                    part = part._replace(sums={})
                one = self._update_once(batch, part, publish)
                if one is None and not each:
                    forget()  # the moments of this batch
                each += [one] if one else []
                if one is None or self._ended or (is_alone and self._closed):
                    break
            self._is_updating = False
            if self._ranks is not None and one is not None:
                self.skips.note_empty(not each)
        return summary(each, lag) if each else None

    def _update_once(
        self, batch: Rollout | None, part: Part, publish: Publish
    ) -> dict[str, Any] | None:
        """An update from a part of the batch. Returns its numbers for the log, {} if no transition
        was real, or None if it was skipped. If `batch` is None, this rank has none to learn from
        and makes its last update, from the batches of the other ranks."""
        restore_buffers = self.updater.keep_buffers()  # running means, for example
        numbers, sums, clipped = self.updater.gradients(part, self._progress())
        self._ended = numbers.pop("stops", 0.0) > 0
        count, steps = (int(numbers.pop(name)) for name in ("real_transitions", "new_steps"))
        if not count:
            restore_buffers()
            return {}
        if self.skips.must_skip(numbers):
            restore_buffers()
            self.skips.skip(batch, part.batch, numbers, self.updates)
            return None
        version = self.updates + 1
        numbers["learning_rate"] = self.updater.step(clipped, sums, self._progress(), version)
        self.updates = version
        self.step += steps
        if self.updater.gradient_sum is not None:
            self.updater.gradient_sum.compare(self.updates, self.state_dict, self.load_state_dict)
        publish(self.updater.optimizer.published(), self.updates)
        return numbers

    def close(self) -> None:
        """Waits for the running update. Calls of `update` that wait for it return None. Under
        torchrun all ranks then stop, after the same update. Raises UpdateHung if the update has not
        ended within CLOSE_S seconds (one second if this is not the first call). The learner's state
        must not be saved in that case."""
        timeout = 1.0 if self._closed else CLOSE_S
        self._closed = True
        if self._ranks is not None and self._progress() < 1:  # an error may have ended this rank
            self._ranks.ask_to_stop()
        if not self._one_at_a_time.acquire(timeout=timeout):
            raise UpdateHung(f"an update has not ended within {CLOSE_S:g} s of the run's end")
        try:
            is_over = self._ended or self._is_updating
            if self._ranks is not None and not is_over and self._ranks.pulse.failure is None:
                with device_stream(self.device), self._updated:
                    forget = self.updater.keep_buffers()
                    self.updater.take_in({})
                    if self._update_once(None, NO_PART, lambda weights, version: None) is None:
                        forget()
        except RankLost:
            self._ended = True  # the run says so when it is saved
        finally:
            self._one_at_a_time.release()

    def state_dict(self) -> dict[str, Any]:
        """The learner's part of a checkpoint, with its tensors on the CPU. Waits for the running
        update; if the run `must_end` meanwhile, this is `close`, with its UpdateHung."""
        while not self._one_at_a_time.acquire(timeout=1.0):
            if self.must_end():
                self.close()
        try:
            with self._updated:
                tensors = {
                    "model": dict(self.net.state_dict()),
                    "loss": dict(models.of_learner(self.net).state_dict()),
                    **self.updater.optimizer.state_dict(self._progress()),
                }
                counts = dict(step=self.step, updates=self.updates, skipped=self.skips.count)
                return copy_to_host(tensors) | counts
        finally:
            self._one_at_a_time.release()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the state of a checkpoint (see `Optimizer.load_state_dict`)."""
        with self._one_at_a_time:
            own, saved = models.of_learner(self.net), state["loss"]
            if why := misfit(dict(own.state_dict()), saved):
                said = f"than {models.name_of(self.net)}: {why}; choose another --xpid"
                raise UserError(f"The checkpoint has other parts for the loss {said}")
            self.net.load_state_dict(state["model"])
            own.load_state_dict(saved)
            self.step, self.updates = state["step"], state["updates"]
            self.skips.count = state["skipped"]
            self.updater.optimizer.load_state_dict(state)
            self.updater.make_graphs()


class Between:
    """Stands between the queue of rollouts and the learner, and passes them on as they are. A
    replay takes its place, with the same methods. Learner threads share it."""

    def batches(self, rollouts: Iterator[Rollout]) -> Iterator[Rollout]:
        """Yields the batches that the learner learns from, as long as there are rollouts."""
        return rollouts

    def learned(self, batch: Rollout, numbers: dict[str, Any] | None) -> None:
        """Gets what `Learner.update` returned. It is None if that made no update."""


def start_learners(run: Any, batches: Callable[[], Iterator[Rollout]], publish: Publish) -> None:
    """Starts --num_learner_threads threads of a run.Run. Each learns from what `run.between` makes
    of an iterator that `batches` returns, and hands new weights to `publish`."""
    clocks = [Clock(LEARNER_ACTIVITIES) for _ in range(run.flags.num_learner_threads)]
    run.log.sources.append(shares(LEARNER_ACTIVITIES, lambda: sum(c.seconds for c in clocks)))
    for i, clock in enumerate(clocks):
        run.threads.start(learn, (run, batches(), publish, clock), f"learner-{i}")


def learn(run: Any, batches: Iterable[Rollout], publish: Publish, clock: Clock) -> None:
    """Runs in a learner thread of a run.Run. It updates the network from one batch after the other,
    until there are no more batches or the run is finished."""
    with device_stream(run.learner.device):
        for batch in run.between.batches(run.stats.counted(batches)):
            clock.lap("learner_waiting")
            if not learn_batch(run, batch, publish):
                return
            clock.lap("learning")


def learn_batch(run: Any, batch: Rollout, publish: Publish = lambda weights, version: None) -> bool:
    """Updates the network of a run.Run, which takes note of it. Returns False, and does not learn
    from the batch, if the run is finished."""
    is_finished = run.finished()
    numbers = None if is_finished else run.learner.update(batch, publish)
    if numbers is not None:
        run.stats.add_update(numbers)
    run.between.learned(batch, numbers)
    return not is_finished
