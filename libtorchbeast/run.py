# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A training run, from its start or resume to its last checkpoint."""

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from libtorchbeast import checkpoint, models, workers
from libtorchbeast.distributed import ranks
from libtorchbeast.distributed.pulse import RankLost
from libtorchbeast.evaluate import Evaluator, Player, columns_of_others, try_others
from libtorchbeast.flags import Flags, as_plain, run_path
from libtorchbeast.learner import Direct, Learner
from libtorchbeast.loggers import bottleneck
from libtorchbeast.loggers.columns import FIELDS
from libtorchbeast.loggers.csv_table import last_row
from libtorchbeast.loggers.display import Display, summary
from libtorchbeast.loggers.file_writer import FileWriter
from libtorchbeast.loggers.files import hold
from libtorchbeast.loggers.health import Health
from libtorchbeast.loggers.run_log import RunLog
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.loggers.timing import cpu_cores
from libtorchbeast.loggers.trackers import check_wandb
from libtorchbeast.loss_check import check_loss
from libtorchbeast.losses import Loss, Targets
from libtorchbeast.rollouts import Rollout
from libtorchbeast.seeds import derive_seed, seed_everything
from libtorchbeast.spec import Spec
from libtorchbeast.update import Update

logger = logging.getLogger(__name__)


class Run:
    """The context in which a beast trains:

        with Run(flags, spec, net, device, player, targets, loss, advise) as run:
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
        log: the rows of the log. Owners of workers append to `log.sources`.
        vectors: the names of the vectors that the loss returns, for `between`.
        between: stands between the rollouts and the learner. A program may put a replay there.
        between_barriers: True between two barriers of a deterministic run (--num_actors 0), which
            could not resume exactly from there. A checkpoint that is saved there says so.

    Raises:
        UserError: the checkpoint belongs to another environment or network, or the one that
            --init_from names does not fit, or --wandb is given without its package.
        CheckpointError: the folder's checkpoints cannot be read, or the last one cannot be saved.
        RunInUse: another process runs this run.
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
        advise: bottleneck.Advise = lambda row: "",
        own_columns: dict[str, torch.dtype] | None = None,  # see loss_check
    ):
        try_others(flags, spec, player)
        self.flags, self.spec, self._player, self.advise = flags, spec, player, advise
        self.path = run_path(flags)
        self.ranks = ranks.joined()
        self._writes, self._is_taken = ranks.rank() == 0, lambda: False
        dump_dir = self.path if self._writes else None
        models.add_for_loss(net, spec, flags)
        like, self._own_columns = check_loss(net, spec, flags, targets, loss, own_columns or {})
        self.vectors = like["vectors"].keys()
        update = Update(net, flags, device, dump_dir, targets, loss, self.ranks, like)
        self.learner = Learner(update)
        self.between = Direct()
        self._num_envs = max(1, flags.num_actors) * spec.num_envs
        self.stats = Stats(self._num_envs)
        self.wakeup = workers.PipeEvent()
        self.learner.must_end = self.wakeup.is_set
        self.threads = workers.Threads(self.wakeup)
        self.between_barriers = False
        self._hours_before = 0.0
        self._parts: dict[str, Any] = {}

    def __enter__(self) -> "Run":
        check_wandb(vars(self.flags))
        with contextlib.ExitStack() as stack:  # if a line below raises, this undoes those before it
            stack.callback(self.wakeup.close)
            if self._writes:
                self._is_taken = stack.enter_context(hold(self.path))
            self._open(stack)
            self._opened = stack.pop_all()
        return self

    def _open(self, stack: contextlib.ExitStack) -> None:
        self.checkpoints = checkpoint.RunCheckpoints(
            os.path.join(self.path, "model.tar"),
            identity=_identity(self.spec, self.learner.net, self.flags),
            enabled=self._writes and not self.flags.disable_checkpoint,
        )
        state = self.checkpoints.load() if self._writes else None
        if state is None and self.flags.init_from is not None and self._writes:
            net = self.learner.net
            net.load_state_dict(checkpoint.initial_weights(self.flags, net.state_dict()))
        if state is None and self._writes:  # other ranks take the state of rank 0
            self.learner.one.after_step(0)
        if state is not None:
            self.learner.load_state_dict(state)  # before a file is written, because it may refuse
        writer = stack.enter_context(self._writer(state)) if self._writes else None
        self._resumed = state or {}  # for `also_save`
        said = models.said_of(self.learner.net)
        logger.info("Network: %s", said, extra={"on_terminal": True})
        if state is not None:
            self._resume(state)
        elif self._writes:
            logger.info("A new run: %s", self.path)
        if self.learner.graphs:
            logger.info("graphs: update %s", self.learner.graphs)
        self.signals = stack.enter_context(workers.stop_signals_set(self.wakeup))
        if writer is not None:  # closes it, before signals can end the process
            stack.callback(writer.close)
        if self.ranks is not None:
            self._join(self.ranks)
        self._start = time.monotonic()
        self._row_due = self._start + self.flags.log_every
        self._checkpoint_due = self._start + self.flags.checkpoint_every
        self.log = RunLog(writer, self.stats, self.learner.step, self.spec.frames_per_step)
        first = [self.learner.columns, self._columns]
        self.log.sources = [*first, *self.log.sources, cpu_cores()]
        self.log.check = Health(self.flags, self.spec).check
        if self.ranks is not None:
            self.ranks.share_log(self.log, self.stats)
        self._updates_before = self.learner.updates
        self._kept = checkpoint.KeptWeights(self.checkpoints, self.flags, self.learner)
        if self.complete():
            logger.warning(
                f"Nothing to do: {self.path} already has its {self.learner.step} steps. Raise "
                f"--total_steps to train on, or choose another --xpid to start a new run."
            )
        stack.push(_log_failure)
        if self._writes:
            stack.enter_context(Display(self))
        if self.flags.eval_every and self._writes:
            keep = self._keep_best
            evaluator = Evaluator(self.learner, self.spec, self.flags, self._player, keep)
            stack.callback(evaluator.close)
            self.log.sources.append(lambda: evaluator.take(may_start=not self.finished()))

    def _writer(self, state: dict[str, Any] | None) -> FileWriter:
        columns = [*FIELDS, *self._own_columns, *columns_of_others(self.flags).values()]
        step = None if state is None else state["step"]
        return FileWriter(Path(self.path), vars(self.flags), columns, resume_step=step)

    def _join(self, others: ranks.Ranks) -> None:
        """Gives all ranks the state of rank 0. From here on, the loss of a rank ends this run, and
        the run is saved."""
        others.pulse.wakeup = self.wakeup
        self.learner.take_from_rank_0(others)
        if others.rank > 0:  # other random numbers than those of rank 0
            number = derive_seed(self.flags.seed, self.learner.updates, ranks.own_number())
            seed_everything(number)
        envs = others.gathered(torch.tensor([float(self._num_envs)]))
        total, count = self.flags.batch_size, others.count
        columns = f"{total} columns = {count} ranks x {ranks.share(total)}"
        logger.info("%s; %d environments", columns, int(envs.sum()))

    def __exit__(self, kind, error, traceback) -> None:
        self.wakeup.set()
        try:
            self.learner.close()
            if self.is_unsaved():  # before `Ranks.close`, which waits long for a rank that hangs
                self.checkpoint()
            if self.ranks is not None:
                if not self._writes:
                    self.write_row()
                self.ranks.close(error)
            learned = self.learner.updates > self._updates_before
            is_logged = last_row(self.path).get("step", 0) >= self.learner.step
            if not self.complete() or learned or not is_logged:
                if not (self.complete() and self.is_unsaved()):  # it would say it is whole
                    self.write_row()
                where = "; ".join(bottleneck.report(self.log.means(), self.advise))
                logger.info("Where the time went: %s", where)
                if error is None or isinstance(error, RankLost):
                    logger.info("%s", summary(self))
        finally:
            self._opened.__exit__(kind, error, traceback)
        if error is None and self.ranks is not None and self.ranks.pulse.failure is not None:
            raise self.ranks.pulse.failure
        if error is None and self.is_unsaved():
            kept = f"the one of update {self.checkpoints.saved_updates} is kept"
            said = f"the last checkpoint could not be saved; {kept}: {self.checkpoints.path}"
            raise checkpoint.CheckpointError(said)

    @property
    def hours(self) -> float:
        """Hours of training, not counting the time between a stop and a resume."""
        return self._hours_before + (time.monotonic() - self._start) / 3600

    def complete(self) -> bool:
        """Whether the run has learned from --total_steps."""
        return self.learner.step >= self.flags.total_steps

    def finished(self) -> bool:
        """Whether training must end: it is complete, it failed, or a signal asked it to stop."""
        return self.wakeup.is_set() or self.complete()

    def also_save(self, name: str, part: Any) -> None:
        """Makes `part.state_dict()` a part of the checkpoints. If the run resumes from one that has
        it, `part` takes it over now."""
        if name in self._resumed:
            part.load_state_dict(self._resumed.pop(name))
        self._parts[name] = part

    def learned(self, batch: Rollout, numbers: dict[str, Any] | None) -> None:
        """Takes note of what `Learner.update` has returned."""
        if numbers is not None:
            self.stats.add_update(numbers)
        self.between.learned(batch, numbers)

    def seconds_to_tick(self) -> float:
        """How many seconds the main loop may wait before its next `tick`."""
        left = min(self._row_due, self._checkpoint_due) - time.monotonic()
        return min(max(0.0, left), 1.0)

    def tick(self, late: bool = False) -> None:
        """Writes a row of the log if one is due, and a checkpoint if one is due, but between two
        barriers only if the next is `late`. When the run is complete, its last row follows its last
        checkpoint (`__exit__`)."""
        if self.complete():
            return
        self._kept.keep()
        if time.monotonic() >= self._row_due:
            self.write_row()
        if time.monotonic() >= self._checkpoint_due and (late or not self.between_barriers):
            self.checkpoint()

    def write_row(self) -> None:
        """Writes a row of the log now."""
        self._row_due = time.monotonic() + self.flags.log_every
        self.log.write(self.learner.step)

    def _columns(self) -> dict[str, float]:
        return {"hours": self.hours, "checkpoint_errors": self.checkpoints.errors}

    def checkpoint(self) -> None:
        """Saves a checkpoint now, unless --disable_checkpoint is given. Raises CheckpointError if
        the run's folder was renamed or deleted, and another run has its name."""
        if self._is_taken():
            said = "was renamed or deleted, and is another run's now: nothing more is saved"
            raise checkpoint.CheckpointError(f"the folder {self.path} {said}")
        self._checkpoint_due = time.monotonic() + self.flags.checkpoint_every
        state = self.learner.state_dict() | {
            "stats": self.stats.state_dict(),
            "hours": self.hours,
            "between_barriers": self.between_barriers,
            "random_states": checkpoint.random_states(),
            "flags": as_plain(vars(self.flags)),
            **{name: part.state_dict() for name, part in self._parts.items()},
        }
        self.checkpoints.save(state)

    def _keep_best(self, score: float, played: dict[str, Any]) -> None:
        """Saves weights if they are the best so far: by their score, or by the rating if they have
        only played against themselves."""
        is_rated = self.stats.standings.results and self.flags.eval_env is None
        self.checkpoints.save_if_best(self.stats.standings.rating if is_rated else score, played)

    def is_unsaved(self) -> bool:
        """Whether a checkpoint should be saved, because the newest has fewer updates."""
        return self.checkpoints.is_behind(self.learner.updates)

    def _resume(self, state: dict[str, Any]) -> None:
        flags = as_plain(vars(self.flags))
        for name, before in state["flags"].items():
            now = flags.get(name, before)  # a flag that this program lacks has not changed
            if now != before:
                logger.warning("--%s changes from %r to %r", name, before, now)
        self.stats.load_state_dict(state["stats"])
        self._hours_before = state["hours"]
        checkpoint.set_random_states(state["random_states"])
        logger.info("Resuming from step %d: %s", self.learner.step, self.checkpoints.path)
        if state.get("between_barriers"):  # not in files of version 0.6, which saved at barriers
            logger.warning(
                "This checkpoint was saved between two barriers: the resumed run is not, bit for "
                "bit, the run that would have followed without the stop."
            )


def _identity(spec: Spec, net: nn.Module, flags: Flags) -> dict[str, Any]:
    """The properties that a checkpoint and the run that resumes from it must share."""
    return {
        "env": spec.name,
        "net": models.name_of(net),
        "use_lstm": flags.use_lstm,
        "spec": spec.signature(),
        "shapes": {k: list(v.shape) for k, v in net.state_dict().items()},
    }


def _log_failure(kind, error, traceback) -> None:
    """Writes an exception's traceback to out.log. Python itself prints it on the terminal."""
    if error is not None:
        logger.error("The run failed.", exc_info=error, extra={"file_only": True})
