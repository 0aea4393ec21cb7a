# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A time limit for environments that a process opens itself: with --num_actors 0, in the test modes
and in evaluations. actors.py watches those of actors, rpcenv/watchdog.py those of servers. It also
reads the spec of a first environment, before there is a run.
"""

import contextlib
import dataclasses
import gc
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from libtorchbeast import checkpoint, workers
from libtorchbeast.actors import ActorMemory, check_limits, why_hung
from libtorchbeast.agents import make_net
from libtorchbeast.environment import Environment
from libtorchbeast.errors import cause, errors_of
from libtorchbeast.flags import Flags, UserError, replace, require
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, ActorTimes, Clock
from libtorchbeast.rollouts import Rollout, rollout_shapes
from libtorchbeast.seeds import seed_everything, seeded
from libtorchbeast.shared_memory import Shapes, require_descriptors
from libtorchbeast.spec import Spec
from libtorchbeast.workers import HEARTBEAT_S, Process, Reminder, SilenceTimer

logger = logging.getLogger(__name__)

OnOpen = Callable[[int], None]  # is called when 1, 2, ... environments are open
Complete = Callable[[Spec], Flags]

STOP_S = 10.0  # a step that is running when this process must end may take this long


class OpeningWatch:
    """The context in which a thread opens environments. It gives `on_open`, an argument of
    Environment.initial.

    A second thread says after a few seconds which environment is being waited for. If one takes
    longer than --open_timeout seconds, it ends this process with exit code 1, because no thread can
    be ended from outside. It cannot do so while the environment holds the GIL.

    Args:
        num_envs: how many are opened. Without a `clock` the watch ends with the last one.
        flag: a smaller value of this flag means fewer environments. The log then says so.
        must_end: returns whether this process must end anyway, for example because of a signal.
        leave: is called before this process ends, because the context is then never left.
        what: is the name of a single environment in the log.
        clock: if it is given, each later step, and closing, may take --step_timeout seconds.
    """

    def __init__(
        self,
        flags: Flags,
        num_envs: int = 1,
        flag: str = "",
        must_end: Callable[[], bool] = lambda: False,
        leave: Callable[[], None] = lambda: None,
        what: str = "The first environment",
        clock: Clock | None = None,
    ):
        self._flags, self._num_envs, self._clock = flags, num_envs, clock
        self._what, self._flag = what, flag
        self._must_end, self._leave = must_end, leave
        self._num_opened, self._call_began = 0, 0.0
        self._waited = 0.0  # seconds for the next one, without those for which the process stopped
        self._is_open = threading.Event()
        self._ending = threading.Lock()  # whoever ends this process holds it for ever

    def __enter__(self) -> OnOpen:
        threading.Thread(target=self._watch, name="opening", daemon=True).start()
        return self._on_open

    def __exit__(self, *exc_info) -> None:
        with self._ending:
            self._is_open.set()

    def _on_open(self, count: int) -> None:
        self._num_opened, self._waited = count, 0.0
        if count >= self._num_envs and self._clock is None:
            self.__exit__()

    def _watch(self) -> None:
        open_timeout, step_timeout = self._flags.open_timeout, self._flags.step_timeout
        reminder, interval = Reminder(), min(HEARTBEAT_S, open_timeout / 4, step_timeout / 4)
        while not self._is_open.wait(interval):
            self._waited += interval
            which = self._what
            if self._num_envs > 1:
                which = f"Environment {self._num_opened + 1} of {self._num_envs}"
            limit, took = open_timeout, f"{which} took longer than --open_timeout"
            what = "to open"
            if stepping := self._clock is not None and self._num_opened >= self._num_envs:
                limit, what = step_timeout, "for one step, or to close"
                took = "An environment took longer than --step_timeout"
                before, self._call_began = self._call_began, self._clock.call_began[0]
                if not before or before != self._call_began:  # another call, or none
                    self._waited = 0.0
            elif seconds := reminder.due(True):
                words = " If the simulator is slow, fewer environments start sooner"
                hint = f"{words} (--{self._flag})." if self._flag else ""
                logger.warning(f"{which} is being waited for, {seconds:.0f} s so far.{hint}")
            with self._ending:
                if self._is_open.is_set():
                    return
                if self._waited > limit:
                    logger.warning(f"{took} {limit:g} {what}.")
                    self._end_process(exit_code=1)
                if self._must_end() and (not stepping or self._waited > STOP_S):
                    self._end_process(exit_code=0)

    def _end_process(self, exit_code: int) -> None:
        try:
            self._leave()
        except Exception as error:
            logger.warning(str(error))
            exit_code = 1
        finally:
            os._exit(exit_code)


@contextlib.contextmanager
def opened_here(
    make: Callable[[], Environment], flags: Flags, must_end: Callable[[], bool], leave: Callable
) -> Iterator[tuple[Environment, Clock, OnOpen]]:
    """The context of the --envs_per_actor environments that `make` returns, watched until they are
    closed. Yields them, the clock that the watch reads, and `on_open`; see OpeningWatch."""
    clock, N = Clock(ACTOR_ACTIVITIES), flags.envs_per_actor
    watched = OpeningWatch(flags, N, "envs_per_actor", must_end, leave, clock=clock)
    with errors_of(flags.env), watched as on_open, contextlib.ExitStack() as stack:
        env = make()
        stack.callback(env.close)
        stack.callback(clock.begin_call)  # before it, so that one that hangs is noticed
        yield env, clock, on_open


# ================================================================= the first environment of a run
@contextlib.contextmanager
def describe(
    flags: Flags, complete: Complete, act: Callable, *own: Callable
) -> Iterator[tuple[Flags, Spec, Rollout, tuple[ActorMemory, Process] | None]]:
    """Opens one environment and plays one step: with --num_actors 0 in this process, else in that
    of the first actor, so that the environment cannot change the learner's.

    Args:
        complete: returns the completed flags.
        act, own: the functions `act` and `create_env` and the classes `Net` and `Actor` of
            monobeast.py.

    Yields:
        The completed flags and the environments' spec. With --num_actors 0 also a rollout of zeros,
        else the actors' memory and the first one's process. When the memory is reserved, and the
        process is sent its seed, it goes on as actor 0.

    Raises:
        UserError: the environment is not accepted, takes too long, or ends its process; or memory
            does not suffice.
    """

    def checked(spec: Spec) -> Flags:
        completed, told = complete(spec), "whatever the environment is: no recipe can change it"
        is_same = completed.num_actors == flags.num_actors
        require(completed, "num_actors", is_same, f"{flags.num_actors}, {told}")
        return completed

    if not flags.num_actors:
        clock = Clock(ACTOR_ACTIVITIES)
        with OpeningWatch(flags, clock=clock) as on_open:
            flags, spec, shapes, _ = _describe(flags, checked, clock, on_open, *own)
        check_limits(flags, shapes)
        zeros = {k: torch.zeros(shape, dtype=dtype) for k, (shape, dtype) in shapes.items()}
        yield flags, spec, zeros, None
        return
    require_descriptors(flags)
    memory = ActorMemory(flags.num_actors)
    process = Process(_first_actor, (flags, memory, act, *own), name="actor-0")
    try:
        spec = Spec.from_json(_told(process, memory.times, flags))
        completed = checked(spec)
        changed = {k: v for k, v in vars(completed).items() if v != vars(flags).get(k)}
        process.send(json.dumps(changed).encode())
        named = json.loads(_told(process, memory.times, flags)).items()
        dtype = lambda name: getattr(torch, name.removeprefix("torch."))
        memory.shapes = {k: (tuple(shape), dtype(name)) for k, (shape, name) in named}
        check_limits(completed, memory.shapes)
        spec = dataclasses.replace(spec, num_envs=completed.envs_per_actor)
        yield completed, spec, {}, (memory, process)
    finally:
        process.end(deadline=3.0)
        memory.close()


def _describe(
    flags: Flags, complete: Complete, clock: Clock, on_open: OnOpen, *own: Callable
) -> tuple[Flags, Spec, Shapes, nn.Module]:  # a network with random weights
    (create_env, Net, Actor), N = cast(Any, own), flags.envs_per_actor
    with errors_of(flags.env), contextlib.ExitStack() as stack:
        env = Environment.of_first(seeded(create_env, flags, N), N, flags.env)
        stack.callback(env.close)
        stack.callback(clock.begin_call)  # before it, so that one that hangs is noticed
        flags = complete(env.spec)
        N = flags.envs_per_actor
        net = make_net(Net, env.spec, flags).to(flags.inference_device)  # as actors have it
        began = time.monotonic()
        actor = Actor(env, net, flags.seed, flags, clock, on_open=on_open)
        is_quick = time.monotonic() - began < 1.0  # a slow environment is not reset twice more
        row = {name: torch.from_numpy(value) for name, value in actor.row.items()}
        clock.begin_call()
        env.step(actor.row["action"])  # shows a faulty environment before any actor starts
        clock.begin_call()
        if not flags.num_actors and is_quick and not _obeys_seed(env):
            said = "gives two first observations for one seed; other runs may not repeat this one"
            logger.warning("%s %s.", flags.env, said)
        shapes = rollout_shapes(row, actor.core_state, flags.unroll_length, N)
        return flags, dataclasses.replace(env.spec, num_envs=N), shapes, net


def _obeys_seed(env: Environment) -> bool:
    """Whether a second reset with the same seed gives the same observation."""
    before, seen = checkpoint.random_states(), []
    for _ in range(2):
        seed_everything(0)  # as at the start of a run, for what draws from these generators
        row = env.initial(0)
        seen.append([row[name].copy() for name in env.spec.observations])
    checkpoint.set_random_states(before)
    return all(map(np.array_equal, *seen))


def _first_actor(
    inbox: Iterator[bytes],
    outbox: Connection,
    flags: Flags,
    memory: ActorMemory,
    act: Callable,
    *own: Callable,
) -> None:
    """Runs in the process of the first actor. It sends the spec, takes the flags that have changed,
    sends the shapes of a rollout, and goes on as actor 0 when it gets its seed."""
    torch.set_num_threads(1)
    seed_everything(flags.seed)
    times = memory.times
    on_open, count = times.begin_opening(0), flags.envs_per_actor
    times.start_pulse(0, flags.step_timeout)

    def complete(spec: Spec) -> Flags:
        outbox.send_bytes(spec.to_json())
        return replace(flags, **json.loads(next(inbox)))

    clock = times.clock(0)
    flags, spec, shapes, net = _describe(flags, complete, clock, lambda _: on_open(count), *own)
    gc.collect()  # frees the first environment before the actor opens its own
    named = {name: (shape, str(dtype)) for name, (shape, dtype) in shapes.items()}
    outbox.send_bytes(json.dumps(named).encode())
    if seed := next(inbox, None):  # None: this process has to end
        memory.shapes = shapes
        memory.map(flags, net.state_dict())
        del net
        act(inbox, outbox, 0, int(seed), flags, spec, memory)


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
