# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MonoBeast's actor processes, and the slots in shared memory that they fill with rollouts.

A slot holds one rollout of `envs_per_actor` columns. Each slot belongs to one actor as long as the
run lasts. At any time it is in one of three places: with the actor, which fills it or will; ready,
which means filled and waiting for a learner; or with a learner. Only the main process knows where
each slot is. The pipes between it and the actors carry slot numbers, as digits, and the last
message of an actor that raised. Before that the first one tells of its environment (opening.py).

When an actor dies, a new process takes its place. The slots that were with the dead actor may be
half-written, so the new process fills them again. Slots that are ready or with a learner are
complete and stay valid.
"""

import argparse
import functools
import logging
import multiprocessing.connection
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from libtorchbeast import shared_memory, workers
from libtorchbeast.accelerator import devices
from libtorchbeast.distributed import ranks
from libtorchbeast.errors import cause
from libtorchbeast.flags import Flags, UserError, require
from libtorchbeast.loggers.timing import ActorTimes, Source
from libtorchbeast.rollouts import Rollout
from libtorchbeast.shared_memory import Shapes, SharedTensors
from libtorchbeast.weights import SharedWeights, shapes_of_versions
from libtorchbeast.workers import HEARTBEAT_S, PipeEvent, Process, Reminder, SilenceTimer

logger = logging.getLogger(__name__)

RESTART_WINDOW_S = 600.0
IMPORTS_S = 30.0  # the imports of a process may take this long, or --open_timeout if it is longer
MAX_SLOTS_PER_ACTOR = 4096  # all their numbers must fit into a pipe, or the sender would block


class ActorMemory:
    """The memory that actors share with the learner's process. The first actor starts before the
    shapes are known; it calls `map` when the learner's process has called `reserve`.

    Attributes:
        shapes: of an actor's rollout. `opening.describe` sets them.
        slots: tensors [num_slots, T+1, N, ...] and, for core_state/i, [num_slots, layers, N, H].
        weights: the newest ones.
        times: what the actors report of their activities.
    """

    def __init__(self, num_actors: int):
        self.shapes: Shapes = {}
        self.slots, self.weights = SharedTensors(), SharedWeights()
        self.times = ActorTimes(num_actors)

    def reserve(self, flags: Flags, weights: dict[str, Any], version: int) -> None:
        """Reserves the memory. No actor has begun a rollout yet. Raises what `SharedWeights.begin`
        raises."""
        self.slots.reserve(slot_shapes(flags, self.shapes))
        self.weights.begin(weights, version)
        for tensor in self.times.tensors.values():
            tensor.zero_()  # the first actor has written those of the first environment

    def map(self, flags: Flags, weights: dict[str, Any]) -> None:
        self.slots.map(slot_shapes(flags, self.shapes))
        self.weights.map(shapes_of_versions(weights))

    def close(self) -> None:
        for memory in (self.slots, self.weights, self.times):
            memory.close()


class Actors:
    """Starts `num_actors` processes and hands their rollouts to learner threads.

    Only the main thread calls `wait` and `close`. Any learner thread may call `rollouts`.

    Args:
        start: `start(actor, life)` starts the process of an actor, where `life` counts from 0 how
            often this actor was replaced.

    Attributes:
        restarts: how many actors were replaced.
        sources: functions that return the log's columns about the actors.
    """

    def __init__(self, start: Callable[[int, int], Process], flags: Flags, memory: ActorMemory):
        self.restarts = 0
        self._start, self._flags = start, flags
        slots, times = memory.slots, memory.times
        self.sources: list[Source] = [*times.sources(), lambda: {"actor_restarts": self.restarts}]
        self._calls_began, self._signs_of_life = times["call_began"], times["sign_of_life"]
        self._opened = times["opened"]
        self._silence_timer, self._reminder = SilenceTimer(), Reminder()
        self._why_killed: dict[int, str] = {}  # actor -> why `_watch` has killed it
        self._has_delivered = False  # whether any actor has ever completed a rollout
        self._failed: set[int] = set()  # the actors that have failed
        self._causes: set[str] = set()  # of their failures, each in one line
        self._failures: list[float] = []  # the times of recent ones
        self._lives, self._started = [0] * flags.num_actors, [time.monotonic()] * flags.num_actors
        num_slots = flags.num_buffers // flags.envs_per_actor
        self._rollouts = [{k: t[i] for k, t in slots.tensors.items()} for i in range(num_slots)]
        self._ready: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # None: it is closed
        self._handing_out = threading.RLock()  # slots, to actors; protects the three below
        self._with_actor = [
            set(range(actor, num_slots, flags.num_actors)) for actor in range(flags.num_actors)
        ]
        self._closed = False
        self._processes: list[Process] = []
        try:
            for actor in range(flags.num_actors):
                self._processes.append(start(actor, 0))
                self._send_all(actor)
        except BaseException:
            self.close()
            raise

    def wait(self, wakeup: PipeEvent, timeout: float) -> None:
        """Waits for messages from the actors or for `wakeup`, at most `timeout` seconds. Then it
        handles the messages, replaces actors that failed and kills those that hang. Raises
        UserError if more than --max_actor_restarts actors have failed within ten minutes; it says
        why the last one did, and their tracebacks are in the log. So it does as soon as every actor
        has told the same error, and none has completed a rollout."""
        handles = [h for process in self._processes for h in (process.from_child, process.sentinel)]
        timeout = min(timeout, HEARTBEAT_S)
        fired = multiprocessing.connection.wait([*handles, wakeup.fileno()], timeout)
        for actor, process in enumerate(self._processes):
            if process.from_child in fired or process.exitcode is not None:
                self._handle(actor)
        self._watch()

    def rollouts(self) -> Iterator[tuple[Rollout, Callable[[], None]]]:
        """Yields filled rollouts ([T+1, N, ...] rows), oldest first, until the actors are closed.
        Each comes with a function that the caller calls after its last read of the rollout. Several
        threads may iterate; each rollout goes to one of them."""
        while (slot := self._ready.get()) is not None and not self._closed:
            yield self._rollouts[slot], functools.partial(self._release, slot)
        self._ready.put(None)  # for the other threads

    def close(self, deadline: float = 3.0) -> None:
        """Ends all iterators and processes. Kills processes that still run after `deadline` s."""
        with self._handing_out:
            self._closed = True
        self._ready.put(None)
        for process in self._processes:
            process.ask_to_end()
        end = time.monotonic() + deadline
        for process in self._processes:
            process.end(max(0.0, end - time.monotonic()))
        self._processes = []

    def _release(self, slot: int) -> None:
        with self._handing_out:
            if self._closed:
                return
            actor = slot % len(self._processes)
            self._with_actor[actor].add(slot)
            self._processes[actor].send(b"%d" % slot)

    def _send_all(self, actor: int) -> None:
        with self._handing_out:
            for slot in sorted(self._with_actor[actor]):
                self._processes[actor].send(b"%d" % slot)

    def _handle(self, actor: int) -> None:
        process = self._processes[actor]
        while process.has_message():
            message = process.receive()
            if message is None or message.startswith(Process.FAILURE):
                self._replace(actor, (message or b"")[1:].decode(errors="replace").strip())
                return
            slot = int(message)
            with self._handing_out:
                self._with_actor[actor].remove(slot)
            self._ready.put(slot)
            self._has_delivered = True

    def _replace(self, actor: int, failure: str) -> None:
        with self._handing_out:  # so that no learner writes to the pipe while it is closed
            self._processes[actor].ask_to_end()
        why_killed = self._why_killed.pop(actor, "")
        failure = failure or why_killed
        is_told = bool(failure)
        if not is_told:
            ended = workers.in_words(self._processes[actor].end(deadline=1.0))
            failure = f"Its process ended without a traceback ({ended})"
        why = cause(failure)
        self.restarts += 1
        now = time.monotonic()
        self._failures = [t for t in self._failures if now - t <= RESTART_WINDOW_S] + [now]
        told = why if why in self._causes else failure
        logger.error("Actor %d failed; its unfinished rollout is dropped. %s", actor, told)
        if is_told:
            self._failed.add(actor)
            self._causes.add(why)
        self._processes[actor].end(deadline=0.2)  # short, because other actors may fail meanwhile
        self._end_if_hopeless(actor, why)
        self._lives[actor] += 1
        self._calls_began[actor] = self._signs_of_life[actor] = self._opened[actor] = 0
        process, self._started[actor] = self._start(actor, self._lives[actor]), time.monotonic()
        with self._handing_out:
            self._processes[actor] = process
            self._send_all(actor)

    def _end_if_hopeless(self, actor: int, why: str) -> None:
        """Raises the errors that `wait` documents, if it is useless to replace the actor."""
        most = self._flags.max_actor_restarts
        are_too_many = len(self._failures) > most
        have_all_failed = len(self._failed) == len(self._lives) and self.restarts > 1
        are_alike = not self._has_delivered and self._causes == {why}
        if are_alike and (have_all_failed or are_too_many):
            said = "no actor has completed a rollout, and all failures are alike"
            raise UserError(f"{said}: {''.join(self._causes)}")
        if are_too_many:
            many = f"{len(self._failures)} actors failed within {RESTART_WINDOW_S / 60:g} minutes"
            raise UserError(f"{many} (--max_actor_restarts {most}); the last, actor {actor}: {why}")

    def _watch(self) -> None:
        """Kills actors that hang, and says now and then what the run waits for."""
        self._silence_timer.tick()
        began, signs = self._calls_began[:, 0].tolist(), self._signs_of_life[:, 0].tolist()
        opened, N = self._opened[:, 0].tolist(), self._flags.envs_per_actor
        silence = self._silence_timer.silence
        for actor, process in enumerate(self._processes):
            times = (self._started[actor], began[actor], signs[actor])
            if why := why_hung(self._flags, silence, opened[actor], *times):
                self._why_killed[actor] = f"It was killed, because {why}"
                process.kill()  # again, if it still hangs at the next call; `_replace` follows
        opening = {count: actor for actor, count in enumerate(opened) if began[actor] and count < N}
        is_starting = bool(opening) or (any(opened) and not self._has_delivered)
        if seconds := self._reminder.due(is_starting):
            steps = self._flags.unroll_length
            what = f"no rollout, {steps} steps of {N} environments, is complete"
            if opening:
                least = min(opening)
                what = f"actor {opening[least]} waits for its environment {least + 1} of {N}"
            logger.warning(
                f"After {seconds:.0f} s {what}. If the simulator is slow, fewer environments start "
                f"sooner (--envs_per_actor)."
            )


def why_hung(
    flags: Flags,
    silence: Callable[[float], float],
    opened: int,
    started: float,
    call_began: float,
    sign_of_life: float,
) -> str:
    """Why an actor counts as hung, or "" for one that does not. `silence(time)` says how long ago
    that was, `opened` how many environments it has opened."""
    if opened < flags.envs_per_actor:
        if call_began and silence(call_began) > flags.open_timeout:
            which = f"environment {opened + 1} of {flags.envs_per_actor}"
            return f"{which} took longer than --open_timeout {flags.open_timeout:g} to open"
        limit = max(IMPORTS_S, flags.open_timeout)
        if not call_began and silence(started) > limit:
            return f"it has opened no environment {limit:g} s after its start (--open_timeout)"
    elif call_began and silence(call_began) > flags.step_timeout:
        limit = f"--step_timeout {flags.step_timeout:g}"
        return f"its environments took longer than {limit} for one step"
    elif sign_of_life and silence(sign_of_life) > workers.longest_silence(flags.step_timeout):
        return f"it gave no sign of life for {flags.step_timeout:g} s (--step_timeout)"
    return ""


def choose_numbers(draft: argparse.Namespace, may_change: bool) -> None:
    """Chooses --num_actors, --torch_threads and --num_buffers if they were not given. Raises
    UserError if --num_buffers is out of range, unless --envs_per_actor `may_change`."""
    cores, learns_on_cpu = workers.share_of_cores(), devices.is_cpu(draft.learner_device)
    if draft.num_actors is None:
        draft.num_actors = max(1, cores // 2 if learns_on_cpu else cores - 1)
    if draft.torch_threads is None:  # with --num_actors 0 one: equal numbers on every machine
        is_shared = learns_on_cpu and draft.num_actors > 0
        draft.torch_threads = max(1, cores - draft.num_actors) if is_shared else 1
    columns = max(1, draft.num_actors) * draft.envs_per_actor
    if draft.num_buffers is None:
        draft.num_buffers = 2 * columns
    most = MAX_SLOTS_PER_ACTOR * columns
    in_range = columns <= draft.num_buffers <= most
    expected = f"at least {columns} columns, one for each environment, and at most {most}"
    require(draft, "num_buffers", in_range or may_change, expected)


def slot_shapes(flags: Flags, shapes: Shapes) -> Shapes:
    """The shapes of all slots: those of one actor's rollout, with the number of slots in front."""
    num_slots = flags.num_buffers // flags.envs_per_actor
    return {name: ((num_slots, *shape), dtype) for name, (shape, dtype) in shapes.items()}


def check_limits(flags: Flags, shapes: Shapes) -> None:
    """Checks that memory suffices, before the run writes anything. Raises UserError, which says how
    much is needed and how much there is, if it does not."""
    in_order = flags.num_actors == 0
    slots = shared_memory.required_bytes(shapes if in_order else slot_shapes(flags, shapes))
    columns = flags.num_learner_threads * ranks.share(flags.batch_size)
    batches = columns * shared_memory.required_bytes(shapes) // flags.envs_per_actor
    name = "unroll_length" if in_order else "num_buffers"
    shared_memory.require_memory(flags, {name: slots, "batch_size": batches})
