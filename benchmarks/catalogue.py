# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The rows of the tables: the parts, the whole runs, and what each of them is compared with."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.tasks import GAMES, TASKS, Task, arguments, flags_of

TITLES = {"monobeast": "MonoBeast", "polybeast": "PolyBeast"}
MEMCPY = "memcpy of the same bytes"
PLAIN = "plain learner, deep, fp32, two threads, 80x8"


@dataclass(frozen=True)
class Part:
    """Something that is measured alone, in its own process.

    Attributes:
        function: the name of the function in benchmarks/parts.py that measures it.
        arguments: the function's arguments.
        ceiling: the name of the part that it is compared with. If `function` measures both in
            turns, the other one is no part, and this is only a name for it.
        crowded: whether it is also measured in as many processes at once as there are cores.
    """

    name: str
    function: str
    arguments: tuple = ()
    ceiling: str = ""
    crowded: bool = False


@dataclass(frozen=True)
class Run:
    """A training run of a program.

    Attributes:
        ceiling: the name of the part that it is compared with.
        monobeast: for PolyBeast, the name of MonoBeast's run of the same task, else empty.
        parts: the names of environment, inference and learner with this run's shapes, for its
            roofline.
    """

    name: str
    beast: str
    arguments: tuple[str, ...]
    ceiling: str = ""
    monobeast: str = ""
    parts: tuple[str, ...] = ()

    def compared_with(self) -> set[str]:
        return {self.ceiling, self.monobeast, *self.parts} - {""}


class Catalogue(NamedTuple):
    """Rows by name, in the order of measurement."""

    parts: dict[str, Part]
    runs: dict[str, Run]


def everything() -> Catalogue:
    parts, runs = [*ceilings(), *transports()], []
    for task in TASKS:
        for beast in TITLES:
            own = parts_of(task, beast)
            parts += own
            runs.append(run_of(task, beast, own))
    own, run = r2d2()
    parts += own + replays() + shares()
    runs.append(run)
    # Two runs with the same shapes share their parts. The dicts hold each of them once.
    return Catalogue({p.name: p for p in parts}, {r.name: r for r in runs})


def selected(catalogue: Catalogue, pattern: str) -> Catalogue:
    """Returns the rows whose names match `pattern`, and the rows that these are compared with."""
    rows = {**catalogue.parts, **catalogue.runs}
    names = {name for name in rows if re.search(pattern, name)}
    for name in tuple(names):
        row = rows[name]
        names |= row.compared_with() if isinstance(row, Run) else {row.ceiling}
    return Catalogue(*({k: v for k, v in kind.items() if k in names} for kind in catalogue))


def matching(catalogue: Catalogue, pattern: str) -> Catalogue:
    """Returns the rows whose names match `pattern`, and no others."""
    return Catalogue(
        *({k: v for k, v in kind.items() if re.search(pattern, k)} for kind in catalogue)
    )


def ceilings() -> list[Part]:
    return [
        Part("raw Pong", "raw_pong"),
        Part("raw MinAtar", "raw_minatar"),
        Part(PLAIN, "plain_learner"),
    ]


def transports() -> list[Part]:
    """Bare gRPC streams, each directly before the parts that are compared with it."""
    large, small = "bare stream, 28,224 bytes x 32", "bare stream, 400 bytes x 64"
    tcp = "transport over TCP"
    # The arguments are the observation, the environments per message and the streams per server. A
    # part and its ceiling have the same.
    return [
        Part(large, "bare_stream", (28_224, 32, 1)),
        Part("transport", "transport", ("Mock/4x84x84", 32, 1), large),
        Part("transport_stacked", "transport", ("Mock", 32, 1), large),
        Part(small, "bare_stream", (400, 64, 2)),
        Part("transport_small", "transport", ("Mock/4x10x10", 64, 2), small),
        Part(tcp, "transport", ("Mock/4x84x84", 32, 1, "tcp")),
        Part("transport over mTLS", "transport", ("Mock/4x84x84", 32, 1, "tls"), tcp),
    ]


def parts_of(task: Task, beast: str) -> list[Part]:
    """Environment, inference and learner with the shapes that `beast` uses for this task."""
    flags = flags_of(beast, arguments(task, beast))
    if beast == "monobeast":
        N = columns = flags.envs_per_actor
    else:
        N = flags.envs_per_server
        columns = flags.num_actors * N  # the environments of all streams in one batch
    T, B = flags.unroll_length, flags.batch_size
    env = (f"environment, {task.game}, {TITLES[beast]}, {N} a batch", "environment")
    return [
        Part(*env, (beast, task.game), crowded=True),
        Part(f"inference, {task}, {columns} a batch", "inference", (task, columns), crowded=True),
        Part(f"learner, {task}, {T}x{B}", "learner", (task, T, B), crowded=True),
    ]


def run_of(task: Task, beast: str, parts: list[Part]) -> Run:
    return Run(
        f"{TITLES[beast]}, {task}",
        beast,
        tuple(arguments(task, beast)),
        ceiling=PLAIN if task.net == "deep" else f"raw {task.game}",
        monobeast=f"{TITLES['monobeast']}, {task}" if beast == "polybeast" else "",
        parts=tuple(part.name for part in parts),
    )


def r2d2() -> tuple[list[Part], Run]:
    """R2D2 on MinAtar, and its three parts. Its environments are those of PolyBeast's servers."""
    task = Task("MinAtar", "R2D2")
    words = arguments(task, "r2d2")
    flags = flags_of("r2d2", words)
    columns, S, B = flags.num_actors * flags.envs_per_server, flags.train_length, flags.batch_size
    own = [
        parts_of(Task(task.game, "shallow"), "polybeast")[0],
        Part(f"inference, {task}, {columns} a batch", "inference", (task, columns), crowded=True),
        Part(f"learner, {task}, {S}x{B}", "r2d2_learner", (task.game,), crowded=True),
    ]
    names = tuple(part.name for part in own)
    return own, Run("R2D2, MinAtar", "r2d2", tuple(words), f"raw {task.game}", parts=names)


def replays() -> list[Part]:
    works = ("insertion", "sampling", "priorities")
    return [
        Part(f"replay, {game}, {work}", "replay", (game, work), MEMCPY)
        for game in GAMES
        for work in works
    ]


def shares() -> list[Part]:
    """Parts that measure how much recurrence, V-trace and all else but the network's convolutions
    and matrix products add to a learner's step."""
    shapes = [("Pong", 80, 8)]
    for game in GAMES:
        flags = flags_of("monobeast", arguments(Task(game, "shallow"), "monobeast"))
        shapes.append((game, flags.unroll_length, flags.batch_size))
    return [
        Part("learner step, shallow, 80x8", "lstm_factor", (80, 8), "the same with LSTM"),
        *(
            Part(f"learner step, {game}, {T}x{B}", "vtrace_share", (game, T, B), "V-trace alone")
            for game, T, B in shapes
        ),
        Part("learner step, Pong, 20x4, fp32", "layers_share", (20, 4), "its layers alone"),
    ]
