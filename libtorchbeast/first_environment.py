# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What MonoBeast learns from a first environment, before there is a run or an actor: the flags that
depend on it, its spec, and the shapes of a rollout."""

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

import torch

from libtorchbeast import workers
from libtorchbeast.actors import start_pulse, why_hung
from libtorchbeast.agents import make_net
from libtorchbeast.environment import Environment
from libtorchbeast.flags import Flags, UserError, replace
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, ActorTimes, Clock
from libtorchbeast.opening import Opened, OpeningWatch
from libtorchbeast.origin import cause, errors_of
from libtorchbeast.rollouts import rollout_shapes
from libtorchbeast.seeds import seed_everything, seeded
from libtorchbeast.shared_memory import Shapes, shapes_from_json, shapes_to_json
from libtorchbeast.spec import Spec
from libtorchbeast.workers import HEARTBEAT_S, Process, Reminder, SilenceTimer

logger = logging.getLogger(__name__)

Described = tuple[Flags, Spec, Shapes]
Settle = Callable[[Spec], Flags]


def describe(flags: Flags, settle: Settle, *own: Callable) -> Described:
    """Opens one environment and plays one step: with --num_actors 0 in this process, else in one of
    its own, so that the environment cannot change the learner's.

    Args:
        settle: returns the completed flags.
        own: `create_env` and the classes `Net` and `Actor` of monobeast.py.

    Returns:
        The completed flags, the environments' spec, and the shapes of an actor's rollout.

    Raises:
        UserError: the environment is not accepted, takes too long, or ends its process.
    """
    if flags.num_actors:
        return _describe_elsewhere(flags, settle, *own)
    clock = Clock(ACTOR_ACTIVITIES)
    watched = OpeningWatch(flags.open_timeout, clock=clock, step_timeout=flags.step_timeout)
    with watched as opened:
        return _describe(flags, settle, clock, opened, *own)


def _describe(
    flags: Flags, settle: Settle, clock: Clock, opened: Opened, *own: Callable
) -> Described:
    (create_env, Net, Actor), N = cast(Any, own), flags.envs_per_actor
    with errors_of(flags.env), contextlib.ExitStack() as stack:
        env = Environment.of_first(seeded(create_env, flags, N), N, flags.env)
        stack.callback(env.close)
        stack.callback(clock.begin_call)  # before it, so that one that hangs is noticed
        flags = settle(env.spec)
        N = flags.envs_per_actor
        net = make_net(Net, env.spec, flags).to(flags.inference_device)  # as actors have it
        actor = Actor(env, net, flags.seed, flags, clock, opened=opened)
        row = {name: torch.from_numpy(value) for name, value in actor.row.items()}
        clock.begin_call()
        env.step(actor.row["action"])  # shows a faulty environment before any actor starts
        shapes = rollout_shapes(row, actor.core_state, flags.unroll_length, N)
        return flags, dataclasses.replace(env.spec, num_envs=N), shapes


def _tell(
    inbox: Iterator[bytes], outbox: Connection, flags: Flags, times: ActorTimes, *own: Callable
) -> None:
    """Runs in a process of its own. It sends the spec, takes the flags that have changed, and sends
    the shapes of a rollout."""
    torch.set_num_threads(1)
    seed_everything(flags.seed)
    opened, count = times.begin_opening(0), flags.envs_per_actor
    start_pulse(times["sign_of_life"][0].numpy(), flags.step_timeout)

    def settle(spec: Spec) -> Flags:
        outbox.send_bytes(spec.to_json())
        return replace(flags, **json.loads(next(inbox)))

    _, _, shapes = _describe(flags, settle, times.clock(0), lambda _: opened(count), *own)
    outbox.send_bytes(shapes_to_json(shapes))


def _describe_elsewhere(flags: Flags, settle: Settle, *own: Callable) -> Described:
    times = ActorTimes(1)
    process = Process(_tell, (flags, times, *own), name="first environment")
    try:
        spec = Spec.from_json(_told(process, times, flags))
        settled = settle(spec)
        changed = {k: v for k, v in vars(settled).items() if v != vars(flags).get(k)}
        process.send(json.dumps(changed).encode())
        shapes = shapes_from_json(_told(process, times, flags))
    finally:
        process.end(deadline=3.0)
        times.close()
    return settled, dataclasses.replace(spec, num_envs=settled.envs_per_actor), shapes


def _told(process: Process, times: ActorTimes, flags: Flags) -> bytes:
    """The next message of the process that opens the first environment."""
    timer, reminder, started, why = SilenceTimer(), Reminder(), time.monotonic(), ""
    while not (why or process.from_child.poll(HEARTBEAT_S / 5) or process.has_message()):
        timer.tick()
        began, sign = (float(times[name][0, 0]) for name in ("call_began", "sign_of_life"))
        why = why_hung(flags, timer.silence, int(times["opened"][0, 0]), started, began, sign)
        if seconds := reminder.due(began > 0):
            logger.warning(f"The first environment is being waited for, {seconds:.0f} s so far.")
    message = b"" if why else process.receive()
    if message and not message.startswith(Process.FAILURE):
        return message
    if message:
        failure = message[1:].decode(errors="replace").strip()
        if not failure.splitlines()[-1].startswith("UserError"):
            logger.error("The first environment's process failed. %s", failure)
        raise UserError(cause(failure))
    ended = workers.in_words(process.end(deadline=1.0))
    why = why or f"the process that opened it ended without a traceback ({ended})"
    raise UserError(f"--env {flags.env}: {why}")
