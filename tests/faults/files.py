# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about checkpoints, full disks and small machines."""

import contextlib
import multiprocessing
import os
import random
import re
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from libtorchbeast import checkpoint
from tests.faults.harness import Figure, promise
from tests.support.compare import assert_same
from tests.support.processes import Program, load

CATCH = "--env tests.support.envs:Catch-v0 --batch_size 4 --log_every 0.2 --precision fp32".split()
IN_ORDER = [*CATCH, *"--num_actors 0 --envs_per_actor 4 --barrier_updates".split()]
FLAGS = {
    "monobeast": "--num_actors 1 --envs_per_actor 4".split(),
    "polybeast": "--net monobeast.Net --num_servers 1 --envs_per_server 4".split(),
    "r2d2": "--num_servers 1 --envs_per_server 4 --save_replay --replay_capacity 2000".split(),
}
FLAGS["r2d2"] += "--replay_start 200 --unroll_length 10 --burn_in 5 --train_length 15".split()
FLAGS["r2d2"] += "--env tests.support.envs:Lives-v0".split()
FOREVER = "--total_steps 1_000_000_000".split()


def finish(savedir: Path, *flags: str, **options) -> Program:
    """Runs the program to its end and checks that it ended without an error."""
    with Program(savedir, *flags, **options) as program:
        assert program.wait_for_end() == 0, program.printed()
    return program


# ====================================================================================== checkpoints
@promise("a kill while a checkpoint is written loses nothing", "SIGKILL of a process that saves")
def killed_while_saving(kills: int = 500, runs: int = 10) -> list[Figure]:
    """The state is that of a real run. Each process resumes from the file that the one before left,
    and saves without a pause, so that each kill hits some moment of a save. Now and then, `runs`
    times in all, the real program resumes from the file."""
    rng = random.Random(0)
    context = multiprocessing.get_context("forkserver")  # imports only once, which is faster
    context.set_forkserver_preload(["tests.faults.files"])
    lost = in_the_middle = resumes = steps = 0
    with tempfile.TemporaryDirectory() as folder:
        flags = [*IN_ORDER, "1", "--total_steps"]
        path = str(finish(Path(folder), *flags, "200").path / "model.tar")
        for kill in range(kills):
            finished = _kill_a_saver(context, path, rng)
            in_the_middle += os.path.exists(path + ".tmp") or not os.path.exists(path)
            state = checkpoint.load_newest(path)
            resumes += state is not None and bool((state["mark"] == state["step"]).all())
            lost += finished - state["step"] if state["step"] < finished else 0
            if runs and (kill + 1) % (kills // runs) == 0:
                steps = state["step"]
                program = finish(Path(folder), *flags, str(steps + 1))
                assert f"Resuming from step {steps}" in program.printed()
                assert program.step() > steps
    return [
        Figure(f"of {kills} kills, hit a half-done save", in_the_middle, at_least=1),
        Figure("not resumed, or not with a whole state", kills - resumes, at_most=0),
        Figure("finished saves lost", lost, at_most=0),
    ]


def _kill_a_saver(context, path: str, rng: random.Random) -> int:
    """Starts a process that saves, and kills it. Returns the step of its last finished save."""
    finished, progress = context.Pipe(duplex=False)
    saver = context.Process(target=_save_for_ever, args=(path, progress))
    saver.start()
    progress.close()
    with finished:
        step = finished.recv_bytes()
        time.sleep(rng.uniform(0, 0.03))
        saver.kill()
        saver.join()
        with contextlib.suppress(EOFError):
            while True:
                step = finished.recv_bytes()
    return int(step)


def _save_for_ever(path: str, progress: Connection) -> None:
    torch.set_num_threads(1)
    state = checkpoint.load_newest(path)
    while True:
        state["step"] += 1
        state["mark"] = torch.full((50_000,), state["step"])
        checkpoint.save(path, state)
        progress.send_bytes(str(state["step"]).encode())


@promise("a run killed and resumed in order ends like an unbroken one", "SIGKILL; --num_actors 0")
def resumed_in_order(kills: int = 20, steps: int = 20_000) -> list[Figure]:
    """The checkpoints must be equal bit for bit. A kill leaves a barrier's checkpoint."""
    rng = random.Random(0)
    different = 0
    learned = "model optimizer optimizer_name step updates skipped stats env spec".split()
    with tempfile.TemporaryDirectory() as folder:
        flags = *IN_ORDER, "5", "--checkpoint_every", "1", "--total_steps", kills * steps
        unbroken = Path(folder) / "unbroken"
        unbroken.mkdir()
        expected = load(finish(unbroken, *flags).path)
        saved, newest = 0, lambda: checkpoint.load_newest(f"{folder}/run/model.tar") or {"step": 0}
        for _ in range(kills):
            with Program(folder, *flags) as program:
                program.wait_for(lambda: newest()["step"] > saved)  # noqa: B023
                time.sleep(rng.uniform(0, 0.2))
                program.process.kill()
                program.wait_for_end()
            assert saved < newest()["step"] < expected["step"], "killed too late"
            saved = newest()["step"]
        state = load(finish(Path(folder), *flags).path)
        for name in learned:
            try:
                assert_same(state[name], expected[name])
            except AssertionError:
                different += 1
    what = f"after {kills} kills, different of {len(learned)} parts of the checkpoint"
    return [Figure(what, different, at_most=0)]


# ============================================================================================ disks
def with_tmpfs(folder: Path, size: str) -> list[str]:
    """Returns words to put before a command. The command then runs in its own mount namespace, in
    which `folder` is a new disk of that size. Needs root."""
    mount = 'mount -t tmpfs -o size=$0 tmpfs "$1" && shift && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, size, str(folder)]


@promise("a full disk does not stop training", "a tmpfs that is filled up")
def full_disk(beasts: tuple[str, ...] = tuple(FLAGS)) -> list[Figure]:
    return [figure for beast in beasts for figure in _full_disk(beast)]


def _full_disk(beast: str) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        disk = Path(folder) / "disk"
        disk.mkdir()
        flags = [*CATCH, *FLAGS[beast], *FOREVER, "--checkpoint_every", "1"]
        program = stack.enter_context(
            Program(disk, *flags, module=beast, before=with_tmpfs(disk, "32m"), TMPDIR=folder)
        )
        program.wait_for(lambda: re.search("Checkpoint saved at step [1-9]", program.printed()))
        # Through this descriptor the test sees the disk, even after the program has ended.
        descriptor = os.open(f"/proc/{program.pid}/root{disk}", os.O_DIRECTORY)
        stack.callback(os.close, descriptor)
        seen = Path(f"/proc/self/fd/{descriptor}")
        program.path = seen / "run"
        with contextlib.suppress(OSError), open(seen / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        program.wait_for(lambda: program.printed().count("Checkpoint not saved") >= 2)
        before = program.printed().count("] step ")
        program.wait_for(lambda: program.printed().count("] step ") >= before + 5)
        old = checkpoint.load_newest(str(program.path / "model.tar"))
        os.remove(seen / "filler")
        step = program.rows()[-1]["step"]
        row = program.wait_for_step(step)
        program.wait_for(lambda: program.step() > old["step"])
        program.process.terminate()
        code = program.wait_for_end()
        assert code == 0, program.printed()
        table = program.rows()
        lines = (program.path / "logs.csv").read_text().splitlines()
        assert len({line.count(",") for line in lines}) == 1, "half a line in logs.csv"
        assert [r["step"] for r in table] == sorted(r["step"] for r in table)
        learned, errors = row["step"] - old["step"], table[-1]["checkpoint_errors"]
        unsaved = table[-1]["step"] - program.step()
        return [
            Figure(f"{beast}: steps of the old checkpoint, which loads", old["step"], at_least=1),
            Figure(f"{beast}: steps learned on a full disk", learned, at_least=1),
            Figure(f"{beast}: checkpoint_errors in logs.csv", errors, at_least=2),
            Figure(f"{beast}: steps not saved in the end", unsaved, at_most=0),
        ]


@promise("a small machine: a run that fits, or one line", "64 MB of /dev/shm; ulimit -n 256")
def small_machine(beasts: tuple[str, ...] = ("monobeast", "polybeast")) -> list[Figure]:
    """MonoBeast's rollouts need more than 64 MB of shared memory with these flags."""
    figures = []
    flags_of = {  # beast: those of a run that fits, and those of one that does not
        "monobeast": ("--num_buffers 16384 --unroll_length 40", "--num_actors 60"),
        "polybeast": ("", "--num_actors 60 --max_streams 60"),
    }
    for beast in beasts:
        large, too_large = flags_of[beast]
        with tempfile.TemporaryDirectory() as folder:
            options = dict(module=beast, files=256, TMPDIR=folder)
            options |= dict(before=with_tmpfs(Path("/dev/shm"), "64m"))
            flags = [*CATCH, *FLAGS[beast]]
            finish(Path(folder), *flags, *large.split(), "--total_steps", "1000", **options)
            start = time.monotonic()
            with Program(folder, *flags, *too_large.split(), **options) as program:
                code = program.wait_for_end()
                seconds = time.monotonic() - start
            *_, last = program.printed().strip().splitlines()
            refused = last.startswith(f"{beast}: error: --num_actors 60: expected a smaller")
            clear = code == 1 and refused and "Traceback" not in program.printed()
        figures += [
            Figure(f"{beast}: refused in", seconds, "s", at_most=10.0),
            Figure(f"{beast}: ... but not in one clear line", int(not clear), at_most=0),
        ]
    return figures
