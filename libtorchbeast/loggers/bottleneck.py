# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Says in words what limits a run and which flag to change, from the log's columns."""

from collections.abc import Callable

from libtorchbeast.flags import Flags
from libtorchbeast.loggers.timing import INFERENCE_ACTIVITIES, LEARNER_ACTIVITIES
from libtorchbeast.workers import available_cores

Row = dict[str, float]  # columns of the log: of one row, or the means of many rows

# Workers that wait for more than this share of their time are held up by others.
WAITS = 0.2
# If more cores than this are idle, another worker would find one.
IDLE_CORES = 0.6
# If other programs use more than this share of the cores, they slow the run down.
OTHERS = 0.1

# The shares of each kind of worker's time, as the report shows them.
SHARES = {
    "actors": ("environment", "transport", "batching", "inference", "actor_waiting"),
    "inference threads": INFERENCE_ACTIVITIES,
    "learner": LEARNER_ACTIVITIES,
}


def report(row: Row, flags: Flags) -> list[str]:
    """Returns a line for each kind of worker, which says where its time went, a line about the
    cores, and the advice. What the row does not have is left out."""
    lines = []
    for workers, activities in SHARES.items():
        shares = [(name.split("_")[-1], row.get(f"share_{name}")) for name in activities]
        shown = [f"{name} {share:.0%}" for name, share in shares if share is not None]
        if shown:
            lines.append(f"{workers}: {', '.join(shown)}")
    if "cpu_cores" in row:
        busy, idle = row["cpu_cores"], row["idle_cores"]
        lines.append(f"of {available_cores()} cores: {busy:.1f} busy with this, {idle:.1f} idle")
    if advice := advice_for(row, flags):
        lines.append(advice)
    return lines


class Advisor:
    """Gives advice about a run. Each program that has workers has a subclass (`advice_for`)."""

    room: str  # the flag that lets more rollouts wait for the learner
    _more_workers: Callable[[], str]
    _for_actors: Callable[[Row], str]

    def __init__(self, flags: Flags):
        self._flags, self._cores = flags, available_cores()

    def advise(self, row: Row) -> str:
        """Says in one sentence what limits the run, and names a flag and its new value. Returns an
        empty string if the row has no shares yet."""
        if "share_learning" not in row or "share_environment" not in row:
            return ""
        others = self._others(row)
        if others and row["cpu_cores"] + row["idle_cores"] < self._cores / 2:
            return f"{others[0].upper()}{others[1:]}: without them this run would be faster."
        learner_waits = row["share_learner_waiting"] > WAITS
        actors_wait = row["share_actor_waiting"] > WAITS
        if learner_waits and actors_wait:
            return (
                f"Actors and learner wait for each other: try {self._twice(self.room)}, so that "
                f"more rollouts can wait between them."
            )
        if actors_wait:
            return f"The learner limits this run: {self._for_learner()}"
        if learner_waits:
            return f"The actors limit this run: {self._for_actors(row)}"
        if _has_idle_cores(row):
            return f"Nobody waits for long, but cores are idle: try {self._more_workers()}."
        if others:
            return f"Nobody waits for long, but {others}: without them this run would be faster."
        return "Nobody waits for long and all cores are busy: only a faster machine would help."

    def _others(self, row: Row) -> str:
        """Says how many cores other programs use; empty if these are few."""
        own, idle = row.get("cpu_cores", self._cores), row.get("idle_cores", 0.0)
        others = self._cores - own - idle
        many = others > OTHERS * self._cores
        return f"other programs use {others:.1f} of {self._cores} cores" if many else ""

    def _for_learner(self) -> str:
        if self._flags.learner_device == "cpu" and self._flags.torch_threads < self._cores:
            return f"try --torch_threads {self._flags.torch_threads + 1}."
        return f"try {self._twice('batch_size')}: larger batches cost less per step."

    def _for_environments(self, row: Row) -> str:
        if _has_idle_cores(row):
            return f"cores are idle, try {self._more_workers()}."
        busy = self._others(row) or "all cores are busy"
        return f"{busy}: PolyBeast's servers on other machines would help (--server_addresses)."

    def _twice(self, name: str) -> str:
        return f"--{name} {2 * getattr(self._flags, name)}"


class MonoBeastAdvisor(Advisor):
    room = "num_buffers"

    def _more_workers(self) -> str:
        return f"--num_actors {self._flags.num_actors + 1}"

    def _for_learner(self) -> str:
        if self._flags.num_actors > 1:
            return f"try --num_actors {self._flags.num_actors - 1}, which leaves it another core."
        return super()._for_learner()

    def _for_actors(self, row: Row) -> str:
        if not _has_idle_cores(row) and row["share_inference"] > row["share_environment"]:
            return (
                f"inference takes {row['share_inference']:.0%} of their time, try "
                f"{self._twice('envs_per_actor')}: larger batches cost less per step."
            )
        share = row["share_environment"]
        return f"environments take {share:.0%} of their time; {self._for_environments(row)}"


class PolyBeastAdvisor(Advisor):
    room = "max_learner_queue_size"

    def __init__(self, flags: Flags):
        super().__init__(flags)
        self._are_ours = flags.server_addresses is None  # of other servers no flag is known

    def _more_workers(self) -> str:
        return f"--num_servers {self._flags.num_servers + 1}" if self._are_ours else "more servers"

    def _for_actors(self, row: Row) -> str:
        names = ("environment", "transport", "batching", "inference")
        most = max(names, key=lambda name: row.get(f"share_{name}", 0.0))
        larger = "start the servers with more --envs_per_server"
        larger = f"try {self._twice('envs_per_server')}" if self._are_ours else larger
        threads_are_busy = row.get("share_answer_waiting", 0.0) < WAITS
        if most == "environment":
            advice = self._for_environments(row) if self._are_ours else "start more servers."
        elif most == "transport":
            advice = f"{larger}: fewer, larger messages."
        elif threads_are_busy and self._flags.inference_device != "cpu":
            advice = f"try --num_inference_threads {self._flags.num_inference_threads + 1}."
        else:
            advice = f"{larger}: larger batches cost less per step."
        share = row.get(f"share_{most}", 0.0)
        return f"{most} takes {share:.0%} of the streams' time, {advice}"


class R2D2Advisor(PolyBeastAdvisor):
    def _for_learner(self) -> str:
        ratio = self._flags.replay_ratio
        return f"with --replay_ratio {ratio:g} the actors wait for it; a lower ratio is faster."


def advice_for(row: Row, flags: Flags) -> str:
    """The advice for the program that has these flags. WarpBeast has no workers, and gets none."""
    if "num_buffers" in flags:
        return MonoBeastAdvisor(flags).advise(row)
    if "num_servers" in flags:
        return (R2D2Advisor if "replay_ratio" in flags else PolyBeastAdvisor)(flags).advise(row)
    return ""


def _has_idle_cores(row: Row) -> bool:
    return row.get("idle_cores", 0.0) > IDLE_CORES
