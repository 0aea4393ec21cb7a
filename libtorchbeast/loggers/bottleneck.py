# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What limits a run, and which flag to change: from the log's columns, in words."""

from typing import Any

import torch

from libtorchbeast.workers import available_cores

WAITS = 0.2  # who waits for a larger share of the time is held up by another
IDLE = 0.6  # cores

# What is named in the report, by whose time it is.
WHERE = {
    "actors": "environment transport batching inference actor_waiting",
    "inference threads": "answering answer_waiting",
    "learner": "learning learner_waiting",
}


def lines(row: dict[str, float], flags: Any) -> list[str]:
    """Where the time went, a line for each kind of worker, and `advice`.

    Args:
        row: columns of the log, of one row or means of many.
        flags: the beast's, checked.
    """
    found = []
    for whose, names in WHERE.items():
        shares = [(name.split("_")[-1], row.get(f"share_{name}")) for name in names.split()]
        shown = [f"{name} {share:.0%}" for name, share in shares if share is not None]
        if shown:
            found.append(f"{whose}: {', '.join(shown)}")
    if "cpu_cores" in row:
        used, idle = row["cpu_cores"], row["idle_cores"]
        found.append(f"of {available_cores()} cores: {used:.1f} busy with this, {idle:.1f} idle")
    if said := advice(row, flags):
        found.append(said)
    return found


def advice(row: dict[str, float], flags: Any, cores: int | None = None) -> str:
    """What limits the run, and the flag to change and to what, in one sentence; empty while there
    are no shares yet."""
    if "share_learning" not in row or "share_environment" not in row:
        return ""
    idle = row.get("idle_cores", 0.0) > IDLE
    learner_waits = row["share_learner_waiting"] > WAITS
    actors_wait = row["share_actor_waiting"] > WAITS
    is_mono = hasattr(flags, "envs_per_actor")
    if learner_waits and actors_wait:
        name = "num_buffers" if is_mono else "max_learner_queue_size"
        return (
            f"Actors and learner wait for each other: try {_twice(flags, name)}, so that more "
            f"rollouts lie between them."
        )
    if actors_wait:
        return f"The learner limits this run: {_for_the_learner(row, flags, is_mono, cores)}"
    if learner_waits:
        limits = _mono_actors(row, flags, idle) if is_mono else _poly_actors(row, flags, idle)
        return f"The actors limit this run: {limits}"
    if idle:
        return f"Nobody waits for long, but cores are idle: try {_more(flags, is_mono)}."
    return "Nobody waits for long and all cores are busy: only a faster machine would help."


def _for_the_learner(row: dict[str, float], flags: Any, is_mono: bool, cores: int | None) -> str:
    if is_mono and flags.num_actors > 1:
        return f"try --num_actors {flags.num_actors - 1}, which leaves it another core."
    on_cpu = flags.disable_cuda or not torch.cuda.is_available()
    if not is_mono:
        on_cpu = flags.learner_device == "cpu"
    if on_cpu and flags.torch_threads < (cores or available_cores()):
        return f"try --torch_threads {flags.torch_threads + 1}."
    return f"try {_twice(flags, 'batch_size')}: larger batches cost less per step."


def _mono_actors(row: dict[str, float], flags: Any, idle: bool) -> str:
    if idle:
        return f"cores are idle, try {_more(flags, True)}."
    if row["share_inference"] > row["share_environment"]:
        return (
            f"inference takes {row['share_inference']:.0%} of their time, try "
            f"{_twice(flags, 'envs_per_actor')}: larger batches cost less per step."
        )
    return (
        f"environments take {row['share_environment']:.0%} of their time and all cores are busy; "
        f"PolyBeast can run environments on other machines (--server_addresses)."
    )


def _poly_actors(row: dict[str, float], flags: Any, idle: bool) -> str:
    names = ("environment", "transport", "batching", "inference")
    shares = {name: row.get(f"share_{name}", 0.0) for name in names}
    most = max(shares, key=shares.get)
    what = f"{most} takes {shares[most]:.0%} of the streams' time, "
    if most == "batching" and flags.min_inference_batch_size != 1:
        return what + f"try --inference_timeout_ms {flags.inference_timeout_ms / 2:g}."
    if most in ("batching", "inference"):
        if row.get("share_answer_waiting", 0.0) < WAITS and flags.inference_device != "cpu":
            return what + f"try --num_inference_threads {flags.num_inference_threads + 1}."
        return what + f"{_larger_streams(flags)}: larger batches cost less per step."
    if most == "transport":
        return what + f"{_larger_streams(flags)}: fewer, larger messages."
    if flags.server_addresses is not None:
        return what + "start more servers."
    if idle:
        return what + f"cores are idle, try {_more(flags, False)}."
    return what + "all cores are busy: servers on other machines would help (--server_addresses)."


def _larger_streams(flags: Any) -> str:
    if flags.server_addresses is not None:  # this flag is theirs, and its value not known here
        return "start the servers with more --envs_per_server"
    return f"try {_twice(flags, 'envs_per_server')}"


def _more(flags: Any, is_mono: bool) -> str:
    if is_mono:
        return f"--num_actors {flags.num_actors + 1}"
    return f"--num_servers {flags.num_servers + 1}"


def _twice(flags: Any, name: str) -> str:
    return f"--{name} {2 * getattr(flags, name)}"
