# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Says in words what limits a run and which flag to change, from the log's columns."""

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


def advice_for(row: Row, flags: Flags) -> str:
    """Says in one sentence what limits the run, and names a flag and its new value. Returns an
    empty string if the row has no shares yet, and for WarpBeast, which has no workers."""
    if "num_buffers" not in flags and "num_servers" not in flags:
        return ""
    if "share_learning" not in row or "share_environment" not in row:
        return ""
    others = _others(row)
    if others and row["cpu_cores"] + row["idle_cores"] < available_cores() / 2:
        return f"{others[0].upper()}{others[1:]}: without them this run would be faster."
    learner_waits = row["share_learner_waiting"] > WAITS
    actors_wait = row["share_actor_waiting"] > WAITS
    if learner_waits and actors_wait:
        room = "num_buffers" if _is_mono(flags) else "max_learner_queue_size"
        return (
            f"Actors and learner wait for each other: try {_twice(flags, room)}, so that more "
            f"rollouts can wait between them."
        )
    if actors_wait:
        return f"The learner limits this run: {_for_learner(flags)}"
    if learner_waits:
        for_actors = _for_actors if _is_mono(flags) else _for_streams
        return f"The actors limit this run: {for_actors(row, flags)}"
    if _has_idle_cores(row):
        return f"Nobody waits for long, but cores are idle: try {_more_workers(flags)}."
    if others:
        return f"Nobody waits for long, but {others}: without them this run would be faster."
    return "Nobody waits for long and all cores are busy: only a faster machine would help."


def _for_learner(flags: Flags) -> str:
    if "replay_ratio" in flags:
        ratio = flags.replay_ratio
        return f"with --replay_ratio {ratio:g} the actors wait for it; a lower ratio is faster."
    if _is_mono(flags) and flags.num_actors > 1:
        return f"try --num_actors {flags.num_actors - 1}, which leaves it another core."
    if flags.learner_device == "cpu" and flags.torch_threads < available_cores():
        return f"try --torch_threads {flags.torch_threads + 1}."
    return f"try {_twice(flags, 'batch_size')}: larger batches cost less per step."


def _for_actors(row: Row, flags: Flags) -> str:
    """Advice for MonoBeast's actors."""
    share, inference = row["share_environment"], row["share_inference"]
    if not _has_idle_cores(row) and inference > share:
        larger = f"try {_twice(flags, 'envs_per_actor')}: larger batches cost less per step."
        return f"inference takes {inference:.0%} of their time, {larger}"
    return f"environments take {share:.0%} of their time; {_for_environments(row, flags)}"


def _for_streams(row: Row, flags: Flags) -> str:
    """Advice for PolyBeast's streams. Of servers that others have started no flag is known."""
    names = ("environment", "transport", "batching", "inference")
    most = max(names, key=lambda name: row.get(f"share_{name}", 0.0))
    are_ours = flags.server_addresses is None
    larger = "start the servers with more --envs_per_server"
    larger = f"try {_twice(flags, 'envs_per_server')}" if are_ours else larger
    threads_are_busy = row.get("share_answer_waiting", 0.0) < WAITS
    if most == "environment":
        advice = _for_environments(row, flags) if are_ours else "start more servers."
    elif most == "transport":
        advice = f"{larger}: fewer, larger messages."
    elif threads_are_busy and flags.inference_device != "cpu":
        advice = f"try --num_inference_threads {flags.num_inference_threads + 1}."
    else:
        advice = f"{larger}: larger batches cost less per step."
    share = row.get(f"share_{most}", 0.0)
    return f"{most} takes {share:.0%} of the streams' time, {advice}"


def _for_environments(row: Row, flags: Flags) -> str:
    if _has_idle_cores(row):
        return f"cores are idle, try {_more_workers(flags)}."
    busy = _others(row) or "all cores are busy"
    return f"{busy}: PolyBeast's servers on other machines would help (--server_addresses)."


def _more_workers(flags: Flags) -> str:
    if _is_mono(flags):
        return f"--num_actors {flags.num_actors + 1}"
    are_ours = flags.server_addresses is None
    return f"--num_servers {flags.num_servers + 1}" if are_ours else "more servers"


def _others(row: Row) -> str:
    """Says how many cores other programs use; empty if these are few."""
    cores = available_cores()
    others = cores - row.get("cpu_cores", cores) - row.get("idle_cores", 0.0)
    is_many = others > OTHERS * cores
    return f"other programs use {others:.1f} of {cores} cores" if is_many else ""


def _is_mono(flags: Flags) -> bool:
    return "num_buffers" in flags


def _twice(flags: Flags, name: str) -> str:
    return f"--{name} {2 * getattr(flags, name)}"


def _has_idle_cores(row: Row) -> bool:
    return row.get("idle_cores", 0.0) > IDLE_CORES
