# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""One training run from its start or resume to its last checkpoint: files, clocks, signals."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from libtorchbeast import checkpoint, models, workers
from libtorchbeast.devices import own_stream
from libtorchbeast.evaluate import Evaluator, Player
from libtorchbeast.flags import UserError, as_plain, run_path
from libtorchbeast.learner import Learner, Publish
from libtorchbeast.loggers import bottleneck, display
from libtorchbeast.loggers.columns import FIELDS
from libtorchbeast.loggers.file_writer import FileWriter
from libtorchbeast.loggers.files import hold
from libtorchbeast.loggers.stats import Means, Stats
from libtorchbeast.loggers.timing import LEARNER_ACTIVITIES, Clock, CpuCores, ThreadClocks
from libtorchbeast.rollouts import Rollout
from libtorchbeast.spec import Spec

logger = logging.getLogger(__name__)


class Run:
    """What a beast's `train` stands in:

        with Run(flags, spec, net, device) as run:
            ... start workers ...
            while not run.finished():
                ... wait for workers or run.wakeup, at most run.seconds_to_tick() ...
                run.tick()

    Entering resumes SAVEDIR/XPID if there is a checkpoint; leaving, for whatever reason, writes the
    last row and checkpoint. SIGINT, SIGTERM and SIGHUP end the run at the next `finished`. Before
    and after it there is nothing to save: they end the process at once, and what it started.

    Raises:
        UserError: the checkpoint there is of another environment or network.
        CheckpointError: no checkpoint there can be read, or the last one could not be saved.
        RunInUse: the run is already running.
        UpdateHung: the last update did not end; nothing was saved then.
    """

    def __init__(
        self,
        flags: Any,
        spec: Spec,
        net: nn.Module,
        device: torch.device,
        advise: bottleneck.Advise = lambda row: "",
    ):
        self.flags, self.spec, self._advise = flags, spec, advise
        self.path = run_path(flags)
        self.learner = Learner(net, flags, device, dump_dir=self.path)
        self.stats = Stats()
        self.wakeup = workers.Wakeup()
        self.failure: BaseException | None = None
        # False between two barriers of a run in order, where no resume could be exact: then the
        # checkpoint at the barrier before it has to serve.
        self.may_checkpoint = True
        # Each returns columns for the next row of the log; workers' owners append theirs.
        self.sources: list[Callable[[], dict[str, float]]] = [self.stats.take, CpuCores().take]
        self._means = Means()  # of the rows after the one with the first update: of the steady run
        self.last_row: dict[str, float] = {}
        self.sps = 0.0
        self._checkpoint_errors = 0
        self._hours_before = 0.0
        self._saved_updates = 0

    def __enter__(self) -> "Run":
        with contextlib.ExitStack() as stack:  # undoes what was entered, should a later line raise
            stack.enter_context(hold(self.path))
            self._open()
            self._held = stack.pop_all()
        return self

    def _open(self) -> None:
        state = checkpoint.load_newest(self.checkpoint_path)
        if state is not None:
            self._check_same(state)
        self._writer = FileWriter(
            os.path.expanduser(self.flags.savedir),
            self.flags.xpid,
            vars(self.flags),
            FIELDS,
            resume_step=None if state is None else state["step"],
        )
        if state is not None:
            self._resume(state)
        self._handlers = {s: signal.signal(s, self._stop) for s in workers.stop_signals()}
        self._start = self._last_row_time = self._last_checkpoint = time.monotonic()
        self._last_row_step = self.learner.step
        self._idle = self.complete()  # nothing will be done, and nothing written
        self._display = display.Display(self.spec.name, self.path, self.view)
        self._display.start()

    def __exit__(self, kind, error, traceback) -> None:
        self.wakeup.set()
        try:
            self.learner.close()
            if self._unsaved():
                self.checkpoint()
            if not self._idle:
                self.log()
                where = "; ".join(self.where_time_went())
                logger.info("Where the time went: %s", where)
        finally:
            self._display.stop(self.where_time_went(), self.summary())
            if error is not None:
                # Python prints the traceback on the terminal; out.log needs its own.
                logger.error("The run failed.", exc_info=error, extra={"file_only": True})
            self._writer.close()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self.wakeup.close()
            self._held.close()
        if error is None and self._unsaved():
            raise checkpoint.CheckpointError(
                f"the last checkpoint could not be saved; the one before it, at update "
                f"{self._saved_updates}, stays: {self.checkpoint_path}"
            )

    @property
    def checkpoint_path(self) -> str:
        return os.path.join(self.path, "model.tar")

    @property
    def hours(self) -> float:
        """Hours of training, without the pauses between a stop and a resume."""
        return self._hours_before + (time.monotonic() - self._start) / 3600

    def finished(self) -> bool:
        """Whether training is over, has failed or was asked to stop."""
        return self.wakeup.is_set() or self.complete()

    def complete(self) -> bool:
        return self.learner.step >= self.flags.total_steps

    def was_complete(self) -> bool:
        """Whether there is nothing left to do for this resume, which it then says."""
        if self._idle:
            logger.warning(
                "Nothing to do: %s has its %d steps. For more raise --total_steps, for a new run "
                "choose another --xpid.",
                self.path,
                self.learner.step,
            )
        return self._idle

    def evaluate_with(self, player: Player) -> None:
        """Evaluates every --eval_every steps from now on, until the run ends."""
        if self.flags.eval_every:
            evaluator = Evaluator(self.learner, self.spec, self.flags, player)
            self._held.callback(evaluator.close)
            self.sources.append(lambda: evaluator.take(may_start=not self.finished()))

    def start_learners(
        self, batches: Callable[[], Iterator[Rollout]], publish: Publish
    ) -> list[threading.Thread]:
        """Starts --num_learner_threads threads, each of which learns from `batches()`."""
        clocks = ThreadClocks(LEARNER_ACTIVITIES, self.flags.num_learner_threads)
        self.sources.append(clocks.take)
        return [
            self.start_thread(self._learn, (batches(), publish, clocks[i]), f"learner-{i}")
            for i in range(self.flags.num_learner_threads)
        ]

    def _learn(self, batches: Iterator[Rollout], publish: Publish, clock: Clock) -> None:
        with own_stream(self.learner.device):
            for batch in batches:
                clock.lap("learner_waiting")
                if self.finished():
                    return
                self.stats.add_games(batch)
                numbers = self.learner.update(batch, publish)
                if numbers is not None:
                    self.stats.add_update(numbers)
                clock.lap("learning")

    def start_thread(self, target: Callable, args: tuple, name: str) -> threading.Thread:
        """Starts a thread whose first failure ends the run."""
        thread = workers.Thread(target, args, name, on_end=self._thread_ended)
        thread.start()
        return thread

    def seconds_to_tick(self) -> float:
        now = time.monotonic()
        return max(0.0, min(self._log_due(), self._checkpoint_due(), now + 1.0) - now)

    def tick(self) -> None:
        """Writes the log and the checkpoint when they are due."""
        now = time.monotonic()
        if now >= self._log_due():
            self.log()
        if now >= self._checkpoint_due():
            self.checkpoint()

    def log(self) -> None:
        now, step = time.monotonic(), self.learner.step
        seconds = max(1e-9, now - self._last_row_time)
        self.sps = (step - self._last_row_step) / seconds
        self._last_row_time, self._last_row_step = now, step
        row: dict[str, float] = {
            "step": step,
            "frame": step * self.spec.frames_per_step,
            "updates": self.learner.updates,
            "hours": self.hours,
            "sps": self.sps,
            "fps": self.sps * self.spec.frames_per_step,
            "skipped_updates": self.learner.skipped,
            "checkpoint_errors": self._checkpoint_errors,
        }
        for source in self.sources:
            row |= source()
        if self.last_row.get("updates"):
            self._means.add(row, seconds)
        self.last_row = row
        self._writer.log(row, self.stats.histograms())
        logger.info("%s", display.one_line(row))

    def checkpoint(self) -> None:
        """Saves, or logs and counts why it could not: a full disk is no reason to stop."""
        self._last_checkpoint = time.monotonic()
        if self.flags.disable_checkpoint:
            return
        state = self.learner.state_dict() | {
            "stats": self.stats.state_dict(),
            "hours": self.hours,
            "random_states": checkpoint.random_states(),
            "flags": as_plain(vars(self.flags)),
            **self._identity(),
        }
        try:
            checkpoint.save(self.checkpoint_path, state)
        except OSError as error:
            self._checkpoint_errors += 1
            logger.error("Checkpoint not saved, the one before it stays: %s", error)
        else:
            self._saved_updates = state["updates"]
            logger.info("Checkpoint saved at step %d: %s", state["step"], self.checkpoint_path)

    def summary(self) -> str:
        """How the run ended, in one sentence."""
        step = f"Step {self.learner.step:,}: "
        if self._unsaved() or self.flags.disable_checkpoint:
            return step + f"ended, not saved. {self.path}"
        if self.complete():
            return step + f"complete. {self.path}"
        return step + f"stopped; --xpid {self.flags.xpid} goes on from here. {self.path}"

    def where_time_went(self) -> list[str]:
        """In the whole run, and what to change."""
        return bottleneck.report(self._means.row() or self.last_row, self._advise)

    def view(self) -> display.View:
        """What the display shows of this moment."""
        return display.View(
            step=self.learner.step,
            total_steps=self.flags.total_steps,
            hours=self.hours,
            sps=self.sps,
            games=self.stats.games,
            is_stopping=self.wakeup.is_set(),
            row=self.last_row,
            where_time_goes=bottleneck.report(self.last_row, self._advise),
        )

    def _unsaved(self) -> bool:
        if self.flags.disable_checkpoint or not self.may_checkpoint:
            return False
        return self.learner.updates > self._saved_updates

    def raise_failure(self) -> None:
        """Raises the first failure of a thread, if there was one, with its traceback."""
        if self.failure is not None:
            raise self.failure

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must share with the run that goes on from it."""
        net = self.learner.net
        return {
            "env": self.spec.name,
            "net": models.name_of(net),
            "use_lstm": self.flags.use_lstm,
            "spec": self.spec.signature(),
            "shapes": {k: list(v.shape) for k, v in net.state_dict().items()},
        }

    def _check_same(self, state: dict[str, Any]) -> None:
        for name, now in self._identity().items():
            seen = state[name]
            if seen == now:
                continue
            if isinstance(now, dict):  # name only the entries that differ
                differing = {k for k in now.keys() | seen.keys() if now.get(k) != seen.get(k)}
                now = {k: now.get(k) for k in sorted(differing)}
                seen = {k: seen.get(k) for k in sorted(differing)}
            raise UserError(
                f"{self.checkpoint_path} is of another {name}: it has {seen}, the flags now give "
                f"{now}. Choose another --xpid, or the flags of that run."
            )

    def _resume(self, state: dict[str, Any]) -> None:
        flags = as_plain(vars(self.flags))
        for name, before in state["flags"].items():
            now = flags.get(name)
            if now != before:
                logger.warning("--%s changes from %r to %r", name, before, now)
        self.learner.load_state_dict(state)
        self.stats.load_state_dict(state["stats"])
        self._hours_before = state["hours"]
        self._saved_updates = state["updates"]
        checkpoint.set_random_states(state["random_states"])
        logger.info("Going on from step %d: %s", self.learner.step, self.checkpoint_path)

    def _stop(self, number: int, frame: Any) -> None:
        if self.wakeup.is_set():
            return
        self.wakeup.set()
        # The signal may have come in the middle of a print: nothing but the flag is touched here.

    def _thread_ended(self, thread: workers.Thread) -> None:
        if thread.exception is not None and self.failure is None:
            self.failure = thread.exception
        self.wakeup.set()

    def _log_due(self) -> float:
        return self._last_row_time + self.flags.log_every

    def _checkpoint_due(self) -> float:
        return self._last_checkpoint + self.flags.checkpoint_every
