# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about signals to a beast and its children, at any moment."""

import contextlib
import functools
import itertools
import logging
import os
import random
import re
import shutil
import signal
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

import r2d2
from libtorchbeast import checkpoint, models
from libtorchbeast.q_learning.replay import Replay
from tests.faults._nets import are_of_one_life
from tests.faults.files import CATCH, FLAGS, FOREVER
from tests.faults.harness import Figure, median_and_p99, promise
from tests.support.processes import Program, wait_for

logger = logging.getLogger(__name__)


class Stopped(Program):
    """A program that will be stopped. Its temporary files are in savedir/t."""

    def __init__(self, savedir, beast):
        self.temporary = Path(savedir) / "t"
        self.temporary.mkdir(exist_ok=True)
        self._shared_memory = set(os.listdir("/dev/shm"))
        flags = [*CATCH, *FLAGS[beast], *FOREVER, "--checkpoint_every", "1"]
        super().__init__(savedir, *flags, module=beast, TMPDIR=self.temporary)
        self.before = self.step()

    def wait_for_training(self):
        """Waits until this process has logged a step beyond those that it resumed from."""
        steps = lambda: re.findall(r"\] step ([\d,]+) ", self.printed())
        self.wait_for(lambda: any(int(s.replace(",", "")) > self.before for s in steps()))

    def left(self):
        """The processes, sockets, folders and shared memory that it has left."""
        names = self.temporary.glob("torchbeast*/**")
        return [*self.session(), *names, *(set(os.listdir("/dev/shm")) - self._shared_memory)]


# ======================================================================================== stopping
def in_start(program: Stopped, rng: random.Random) -> None:
    """Once its first lines have run. Before that, Python itself answers Ctrl-C."""
    program.wait_for(lambda: "numpy" in Path(f"/proc/{program.pid}/maps").read_text())
    time.sleep(rng.uniform(0, 5.0))  # a start takes about as long


def in_training(program: Stopped, rng: random.Random) -> None:
    program.wait_for_training()
    time.sleep(rng.uniform(0, 1))


def while_saving(program: Stopped, rng: random.Random) -> None:
    program.wait_for_training()
    while not os.path.exists(program.path / "model.tar.tmp"):
        assert program.process.poll() is None, program.printed()


def in_shutdown(program: Stopped, rng: random.Random) -> None:
    in_training(program, rng)
    program.process.terminate()
    time.sleep(rng.uniform(0, 1))


MOMENTS = [in_start, in_training, while_saving, in_shutdown]
SIGNALS = {
    "SIGTERM": lambda pid: os.kill(pid, signal.SIGTERM),
    "Ctrl-C": lambda pid: os.killpg(pid, signal.SIGINT),  # as a terminal does
    "SIGTERM to all": lambda pid: os.killpg(pid, signal.SIGTERM),
    "closed terminal": lambda pid: os.killpg(pid, signal.SIGHUP),
}


@promise(
    "a stop at any moment saves, ends and leaves nothing", "SIGTERM, SIGINT, at random moments"
)
def stopped(times: int = 100, beasts: tuple[str, ...] = tuple(FLAGS), first=0) -> list[Figure]:
    """Goes through the pairs of a signal and a moment, from number `first` on. The first pairs
    differ in both. Each run resumes from the checkpoint of the one before."""
    figures, names, moments = [], list(SIGNALS), list(enumerate(MOMENTS))
    ways = [(names[(i + j) % len(names)], m) for j in range(len(names)) for i, m in moments]
    for beast in beasts:
        rng, seconds, unclean = random.Random(0), [], 0
        with tempfile.TemporaryDirectory() as folder:
            for name, moment in itertools.islice(itertools.cycle(ways), first, first + times):
                with Stopped(folder, beast) as program:
                    moment(program, rng)
                    asked = time.monotonic()
                    with contextlib.suppress(ProcessLookupError):  # it has ended already
                        SIGNALS[name](program.pid)
                    code = program.wait_for_end()
                    wait_for(lambda: not program.session())  # noqa: B023
                    seconds.append(time.monotonic() - asked)
                    said = name, moment.__name__, seconds[-1], code
                    logger.info("%s %s: %.1f s, exit code %d", *said)
                    if problem := _problem(program, code, moment):
                        unclean += 1
                        logger.error("%s: %s\n%s", beast, problem, program.printed())
        figures += median_and_p99(f"{beast}: from the signal to the end", seconds, at_most=10.0)
        figures += [Figure(f"{beast}: of {times} stops, not clean", unclean, at_most=0)]
    return figures


def _problem(program: Stopped, code: int, moment) -> str:
    """What is wrong with the end of the program, or "". The signal itself may end it only when
    there is nothing to save: before it trains, and when everything is done."""
    table, step = program.rows(), program.step()
    if left := program.left():
        return f"left {left}"
    if "Traceback" in program.printed() or "Exception" in program.printed():
        return "printed a traceback"
    ends = (0, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)
    if code not in ends or (code and moment in MOMENTS[1:3]):
        return f"exit code {code}"
    if [row["_tick"] for row in table] != list(range(len(table))):
        return "a torn logs.csv"
    if table and step != table[-1]["step"]:
        return f"trained to step {table[-1]['step']}, saved {step}"
    if step < program.before or (step == program.before and moment is not in_start):
        return f"saved nothing new at step {step}"
    return ""


# ========================================================================================= killing
def after_an_actor(program: Stopped, rng: random.Random) -> None:
    """Kills an actor (or server), and waits until it has been replaced, and then for a save."""
    program.wait_for_training()
    failures = lambda: sum(
        program.rows()[-1].get(name, 0) for name in ("actor_restarts", "stream_failures")
    )
    assert failures() == 0
    victim = min(program.actors())
    os.kill(victim, signal.SIGKILL)
    program.wait_for(failures)
    step = program.wait_for_step(program.rows()[-1]["step"])["step"]
    assert not os.path.exists(f"/proc/{victim}"), "a zombie"
    program.wait_for(lambda: program.step() > step)
    time.sleep(rng.uniform(0, 1))


KILLS = (after_an_actor, in_start, while_saving)


@promise("a kill leaves nothing, and the next start is clean", "SIGKILL of parent, learner, actors")
def killed(times=51, beasts: tuple[str, ...] = tuple(FLAGS), moments=KILLS) -> list[Figure]:
    """Kills the main process, which is the learner, at these moments in turns. R2D2 keeps its
    replay, in which no sequence may join what does not belong together."""
    figures = []
    for beast in beasts:
        rng, seconds, lost, sequences = random.Random(0), [], 0, []
        with tempfile.TemporaryDirectory() as folder:
            for moment in itertools.islice(itertools.cycle(moments), times):
                with Stopped(folder, beast) as program:
                    moment(program, rng)
                    program.process.kill()
                    at = time.monotonic()
                    wait_for(lambda: not program.left())  # noqa: B023
                    seconds.append(time.monotonic() - at)
                    program.wait_for_end()
                    lost += program.step() < program.before
                    assert "Traceback" not in program.printed(), program.printed()
                if beast == "r2d2":
                    sequences.append(_replayed(folder))
            with Stopped(folder, beast) as program:
                program.wait_for_training()
                assert f"Resuming from step {program.before}" in program.printed()
                assert ("The replay buffer starts with" in program.printed()) == bool(sequences)
                assert [r["_tick"] for r in program.rows()] == list(range(len(program.rows())))
        figures += median_and_p99(f"{beast}: until nothing is left", seconds, at_most=2.0)
        figures += [Figure(f"{beast}: of {times} next starts, behind", lost, at_most=0)]
        if sequences:
            held, mixed = zip(*sequences, strict=True)
            what = f"{beast}: sequences in the replay, median"
            figures += [Figure(what, statistics.median(held), at_least=20)]
            figures += [Figure(f"{beast}: of {sum(held)}, not of one life", sum(mixed), at_most=0)]
    return figures


def _replayed(folder: str) -> tuple[int, int]:
    """Opens R2D2's replay as the next start will. Returns how many sequences can be drawn from it,
    and how many of them are not of one life of an environment."""
    draft = checkpoint.parse_for_run(r2d2.make_parser, ["--savedir", folder, "--xpid", "run"])
    flags = r2d2.check_flags(draft)
    net, env = r2d2.player(flags)
    with contextlib.closing(env):
        path = shutil.copy(r2d2.replay_path(flags), folder)
        state = models.initial_state(net, 1)
        priorities = functools.partial(r2d2.first_priorities, flags)
        replay = Replay(flags, env.spec, state, r2d2.OWN_OUTPUTS, priorities, path)
    replay.load_state_dict(checkpoint.load_newest(checkpoint.path_of(flags))["replay"])
    slots = np.flatnonzero(replay._priorities)
    good = are_of_one_life(replay._rows(slots, replay._arrays.keys()))
    return len(good), int((~good).sum())


# ============================================================================== the servers' parent
@promise("a run whose local servers' parent dies saves and says so", "SIGKILL of it, in PolyBeast")
def servers_parent_killed(times: int = 20) -> list[Figure]:
    """This parent restarts servers that fail. Without it the servers would disappear unnoticed."""
    rng, seconds, unsaid, lost, left = random.Random(0), [], 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(times):
            with Stopped(folder, "polybeast") as program:
                program.wait_for_training()
                time.sleep(rng.uniform(0, 1))
                os.kill(psutil.Process(min(program.actors())).ppid(), signal.SIGKILL)
                at = time.monotonic()
                code = program.wait_for_end()
                wait_for(lambda: not program.session())  # noqa: B023
                seconds.append(time.monotonic() - at)
                said = "the local environment servers ended: exit code -9" in program.printed()
                unsaid += code != 1 or not said or "Traceback" in program.printed()
                lost += program.rows()[-1]["step"] != program.step()
                left += len(program.left())
    return [
        *median_and_p99("from its death to the end", seconds, at_most=10.0),
        Figure(f"of {times} ends, not told, or with another exit code than 1", unsaid, at_most=0),
        Figure("checkpoints that lack steps", lost, at_most=0),
        Figure("processes, sockets, folders and shared memory left", left, at_most=0),
    ]
