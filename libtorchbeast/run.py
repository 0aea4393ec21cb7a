# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A training run, from its start or resume to its last checkpoint."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from libtorchbeast import checkpoint, models, workers
from libtorchbeast.distributed import ranks
from libtorchbeast.distributed.gradients import from_rank_0
from libtorchbeast.distributed.pulse import RankLost
from libtorchbeast.evaluate import Evaluator, Player, columns_of_others
from libtorchbeast.flags import Flags, UserError, as_plain, run_path
from libtorchbeast.learner import Between, Learner
from libtorchbeast.loggers.columns import FIELDS
from libtorchbeast.loggers.csv_table import last_row
from libtorchbeast.loggers.display import Display, log_end, number
from libtorchbeast.loggers.file_writer import FileWriter
from libtorchbeast.loggers.files import hold, watched_disk
from libtorchbeast.loggers.health import Health
from libtorchbeast.loggers.run_log import RunLog
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.loggers.timing import cpu_cores
from libtorchbeast.loggers.trackers import check_wandb
from libtorchbeast.loss_check import check_loss
from libtorchbeast.seeds import derive_seed, seed_everything
from libtorchbeast.spec import Spec
from libtorchbeast.transitions import Loss, Targets
from libtorchbeast.update import Updater

logger = logging.getLogger(__name__)


class Run:
    """The context in which a beast trains:

        with Run(flags, spec, net, device, player, targets, loss) as run:
            ... start workers ...
            while not run.finished():
                ... wait for workers or run.wakeup, at most run.seconds_to_tick() ...
                run.tick()

    Entering it resumes the run in SAVEDIR/XPID if that has a checkpoint. Leaving it, also by an
    exception, writes the last row and the last checkpoint. Inside it SIGINT, SIGTERM and SIGHUP
    make `finished` return True. Outside it there is nothing to save, and these signals end the
    process and its children at once.

    Attributes:
        wakeup: is set when the run must end, because of a signal or the failure of a thread.
        threads: the program's threads. The first failure of one ends the run.
        state: what checkpoints have. A program may add a part to it.
        log: the rows of the log. Owners of workers append to `log.sources`.
        vectors: the names of the vectors that the loss returns, for `between`.
        between: stands between the rollouts and the learner. A program may put a replay there.

    Raises:
        UserError, RunInUse: see `RunState.load`; or --wandb is given without its package.
        CheckpointError: see `RunState.load`; or the last checkpoint cannot be saved.
        UpdateHung: the last update did not end. In that case nothing was saved.
    """

    def __init__(
        self,
        flags: Flags,
        spec: Spec,
        net: nn.Module,
        device: torch.device,
        player: Player,
        targets: Targets,
        loss: Loss,
        batch_columns: dict[str, torch.dtype] | None = None,  # see loss_check
    ):
        self.flags, self.spec, self._player = flags, spec, player
        self.path, self.ranks, self._writes = run_path(flags), ranks.joined(), ranks.rank() == 0
        models.add_for_loss(net, spec, flags)
        like, self._loss_columns = check_loss(net, spec, flags, targets, loss, batch_columns or {})
        self.vectors = like["vectors"].keys()
        dump_dir = self.path if self._writes else None
        update = Updater(net, flags, device, dump_dir, targets, loss, self.ranks, like)
        self.wakeup = workers.PipeEvent()
        self.threads = workers.Threads(self.wakeup)
        self.learner, self.between = Learner(update, self.wakeup.is_set), Between()
        self.stats = Stats(max(1, flags.num_actors) * spec.num_envs)
        self.state = RunState(flags, spec, self.learner, self.stats)

    def __enter__(self) -> "Run":
        check_wandb(vars(self.flags))
        with contextlib.ExitStack() as stack:  # if a line below raises, this undoes those before it
            stack.callback(self.wakeup.close)
            self._open(stack)
            self._opened = stack.pop_all()
        return self

    def _open(self, stack: contextlib.ExitStack) -> None:
        writer, flags, learner = None, self.flags, self.learner
        self._disk = stack.enter_context(watched_disk(self.path, self.wakeup.is_set))
        evaluator = Evaluator(learner, self.spec, flags, self._player, self.state.save_if_best)
        stack.callback(evaluator.close)
        evaluator.try_others()
        if self._writes:
            step = self.state.load(stack)  # before a file is written, because it may refuse
            columns = [*FIELDS, *self._loss_columns, *columns_of_others(flags).values()]
            writer = stack.enter_context(FileWriter(Path(self.path), vars(flags), columns, step))
            self.state.resume()
        evaluator.resume()
        self.signals = stack.enter_context(workers.stop_signals_set(self.wakeup))
        if writer is not None:  # closes it, before signals can end the process
            stack.callback(writer.close)
        if self.ranks is not None:
            self.state.share(self.ranks, self.wakeup)
        self.log = RunLog(writer, self.stats, learner.step, self.spec.frames_per_step)
        self.log.sources = [self.state.columns, *self.log.sources, cpu_cores()]
        self.log.check = Health(flags, self.spec).check
        if self.ranks is not None:
            self.ranks.share_log(self.log, self.stats)
        self._row_due = time.monotonic() + flags.log_every
        self.state.begin()
        if self._writes:
            stack.enter_context(Display(self))
        self.log.sources.append(lambda: evaluator.take(may_start=not self.finished()))

    def __exit__(self, kind, error, traceback) -> None:
        self.wakeup.set()
        try:
            self.learner.close()
            with self._disk():  # before `Ranks.close`, which waits long for one that hangs
                if self.state.is_unsaved():
                    self.state.save()
                self.state.kept.keep(is_last=True)
            if self.ranks is not None:
                if not self._writes:
                    self.log.write(self.learner.step)
                self.ranks.close(error)
            with self._disk():
                self._log_end(error is not None and not isinstance(error, RankLost))
        finally:
            if error is not None:  # Python itself prints its traceback, but only on the terminal
                logger.error("The run failed.", exc_info=error, extra={"file_only": True})
            self._opened.__exit__(kind, error, traceback)
        if error is None and self.ranks is not None and self.ranks.pulse.failure is not None:
            raise self.ranks.pulse.failure
        if error is None:
            self.state.require_saved()

    def _log_end(self, has_failed: bool) -> None:
        is_logged = last_row(self.path).get("step", 0) >= self.learner.step
        if not (self.complete() and is_logged) or self.log.last_row:  # else nothing was to do
            if not (self.complete() and self.state.is_unsaved()):  # tools take it for complete
                self.log.write(self.learner.step)
            log_end(self, has_failed)

    def complete(self) -> bool:
        """Whether the run has learned from --total_steps."""
        return self.learner.step >= self.flags.total_steps

    def finished(self) -> bool:
        """Whether training must end: it is complete, it failed, or a signal asked it to stop."""
        return self.wakeup.is_set() or self.complete()

    def seconds_to_tick(self) -> float:
        """How many seconds the main loop may wait before its next `tick`."""
        return min(1.0, max(0.0, min(self._row_due, self.state.due) - time.monotonic()))

    def tick(self, late: bool = False) -> None:
        """Writes a row and a checkpoint if they are due. Between two barriers a checkpoint waits,
        unless the next one is `late`. Of a complete run `__exit__` writes both."""
        step = self.learner.step  # once, because the learner may complete the run meanwhile
        if step >= self.flags.total_steps:
            return
        self.state.require_folder()
        self.state.kept.keep()
        with self._disk():
            if time.monotonic() >= self._row_due:
                self._row_due = time.monotonic() + self.flags.log_every
                self.log.write(step)
            if time.monotonic() >= self.state.due and (late or not self.state.between_barriers):
                self.state.save()


class RunState:
    """A run as its checkpoints have it: the learner, the statistics of games, the hours of
    training, the random generators, the flags, and what a program adds. Of several ranks only the
    first one loads and saves it.

    Attributes:
        checkpoints, kept: the files, and those of --keep_checkpoints_every.
        due: when the next checkpoint is to be saved, by time.monotonic().
        between_barriers: True between two barriers of a deterministic run (--num_actors 0), which
            could not resume exactly from there. A checkpoint that is saved there says so.
    """

    def __init__(self, flags: Flags, spec: Spec, learner: Learner, stats: Stats):
        self.flags, self.learner, self.stats = flags, learner, stats
        self.path = run_path(flags)
        self.checkpoints = checkpoint.RunCheckpoints(
            os.path.join(self.path, "model.tar"),
            identity={  # what a checkpoint and the run that resumes from it must share
                "env": spec.name,
                "net": models.name_of(learner.net),
                "spec": spec.signature(),
                "shapes": {k: list(v.shape) for k, v in learner.net.state_dict().items()},
            },
            enabled=ranks.rank() == 0 and not flags.disable_checkpoint,
        )
        self._is_taken: Callable[[], bool] = lambda: False
        self.between_barriers = False
        self._resumed: dict[str, Any] = {}
        self._parts: dict[str, Any] = {}
        self._hours_before, self._saved_changes = 0.0, 0

    def load(self, stack: contextlib.ExitStack) -> int | None:
        """Holds the run's folder until `stack` is closed. Gives the learner the state of the newest
        checkpoint, or if there is none, the weights of --init_from. Returns that checkpoint's step.
        Raises RunInUse if another process runs this run, UserError if one of these is of another
        environment or network, and CheckpointError if the folder's checkpoints cannot be read."""
        self._is_taken = stack.enter_context(hold(self.path))
        state, net = self.checkpoints.load(), self.learner.net
        if state is not None:
            if "between_barriers" not in state:
                raise UserError(f"{self.checkpoints.path}: of a version up to 0.6; use --init_from")
            self.learner.load_state_dict(state)
            self._resumed = {k: x for k, x in state.items() if k not in ("model", "optimizer")}
            return state["step"]
        if self.flags.init_from is not None:
            net.load_state_dict(checkpoint.initial_weights(self.flags, net.state_dict()))
        self.learner.updater.after_step(0)
        return None

    def resume(self) -> None:
        """Takes over what the learner does not have, and logs what has changed."""
        said = models.said_of(self.learner.net)
        logger.info("Network: %s", said, extra={"on_terminal": True})
        if not (state := self._resumed):
            logger.info("A new run: %s", self.path)
            return
        flags = as_plain(vars(self.flags))
        for name, before in state["flags"].items():
            now = flags.get(name, before)  # a flag that this program lacks has not changed
            if now != before:
                logger.warning("--%s changes from %r to %r", name, before, now)
        self.stats.load_state_dict(state["stats"])
        self._hours_before = state["hours"]
        checkpoint.set_random_states(state["random_states"])
        logger.info("Resuming from step %d: %s", self.learner.step, self.checkpoints.path)
        if state["between_barriers"]:
            logger.warning("Saved between barriers: this run is not, bit for bit, an unbroken one.")

    def share(self, others: ranks.Ranks, wakeup: workers.PipeEvent) -> None:
        """Gives all ranks the learner of rank 0. From here on, the loss of a rank sets `wakeup`,
        and the run is saved."""
        others.pulse.wakeup = wakeup
        state = from_rank_0(others, self.learner.state_dict())
        if why := checkpoint.misfit(dict(self.learner.net.state_dict()), state["model"]):
            raise UserError(f"the networks of rank 0 and of {others.name()} differ: {why}")
        self.learner.load_state_dict(state)
        if others.rank > 0:  # other random numbers than those of rank 0
            number = derive_seed(self.flags.seed, self.learner.updates, ranks.own_number(), 0, 2)
            seed_everything(number)
        envs = others.gathered(torch.tensor([float(self.stats.num_envs)]))
        total, count = self.flags.batch_size, others.count
        columns = f"{total} columns = {count} ranks x {ranks.share(total)}"
        logger.info("%s; %d environments", columns, int(envs.sum()))

    def begin(self) -> None:
        """Begins to count the hours and to keep weights."""
        self._start = time.monotonic()
        self.due = self._start + self.flags.checkpoint_every
        self.kept = checkpoint.KeptWeights(self.checkpoints, self.flags, self.learner)
        if self.learner.step >= self.flags.total_steps:
            score = number(last_row(self.path).get("mean_game_return"), ".2f")
            has = f"already has its {self.learner.step:,} steps (last game return {score})"
            hint = "Raise --total_steps to train on, or choose another --xpid to start a new run."
            logger.warning("Nothing to do: %s %s. %s", self.path, has, hint)

    def also_save(self, name: str, part: Any) -> None:
        """Makes `part.state_dict()` a part of the checkpoints. If the run resumes from one that has
        it, `part` takes it over now. `part.changes()`, if it has it, grows with each change."""
        if name in self._resumed:
            part.load_state_dict(self._resumed.pop(name))
        self._parts[name] = part
        self._saved_changes = self._changes()

    def _changes(self) -> int:
        return sum(part.changes() for part in self._parts.values() if hasattr(part, "changes"))

    @property
    def hours(self) -> float:
        """Hours of training, not counting the time between a stop and a resume."""
        return self._hours_before + (time.monotonic() - self._start) / 3600

    def columns(self) -> dict[str, float]:
        """The columns of the log that are about this."""
        counts = dict(updates=self.learner.updates, skipped_updates=self.learner.skips.count)
        return counts | dict(hours=self.hours, checkpoint_errors=self.checkpoints.errors)

    def require_folder(self) -> None:
        """Raises CheckpointError if the run's folder was renamed or deleted, and another run has
        its name."""
        if self._is_taken():
            said = "was renamed or deleted, and is another run's now: nothing more is saved"
            raise checkpoint.CheckpointError(f"the folder {self.path} {said}")

    def save(self) -> None:
        """Saves a checkpoint, unless --disable_checkpoint is given. Raises as `require_folder`."""
        self.require_folder()
        self.due = time.monotonic() + self.flags.checkpoint_every
        if not self.checkpoints.enabled:
            return
        changes = self._changes()
        state = self.learner.state_dict() | {
            "stats": self.stats.state_dict(),
            "hours": self.hours,
            "between_barriers": self.between_barriers,
            "random_states": checkpoint.random_states(),
            "flags": as_plain(vars(self.flags)),
            **{name: part.state_dict() for name, part in self._parts.items()},
        }
        if self.checkpoints.save(state):
            self._saved_changes = changes

    def is_unsaved(self) -> bool:
        """Whether the newest checkpoint lacks updates, or what another part has changed since."""
        is_behind = self.learner.updates > self.checkpoints.saved_updates
        return self.checkpoints.enabled and (is_behind or self._changes() > self._saved_changes)

    def require_saved(self) -> None:
        """Raises CheckpointError if the last checkpoint could not be saved."""
        if self.is_unsaved():
            path = self.checkpoints.path
            kept = f"that of update {self.checkpoints.saved_updates} is kept: {path}"
            kept = kept if os.path.exists(path) else f"there is no other: {path}"
            raise checkpoint.CheckpointError(f"the last checkpoint could not be saved; {kept}")

    def save_if_best(self, score: float, played: dict[str, Any]) -> None:
        """Saves weights if they are the best so far: by their score, or by the rating if they have
        only played against themselves."""
        is_rated = vars(self.flags).get("past_share") and self.flags.eval_env is None
        self.checkpoints.save_if_best(self.stats.standings.rating if is_rated else score, played)
