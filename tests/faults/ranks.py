# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about learners of one run that die or hang."""

import contextlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from tests.faults._breaking import ServerFleet
from tests.faults.harness import Figure, median_and_p99, promise
from tests.support.ranks import Torchrun, on_two_machines

CATCH = "--env tests.support.envs:Catch-v0".split()
FLAGS = "--batch_size 4 --log_every 0.5 --checkpoint_every 1 --total_steps 1_000_000_000".split()
BEASTS = {
    "monobeast": "--num_actors 1 --envs_per_actor 4".split(),
    "polybeast": "--net monobeast.Net --server_addresses".split(),
}
TIMEOUT_S = 5.0
FAULTS = (signal.SIGKILL, signal.SIGSTOP)


@contextlib.contextmanager
def environments(folder, beast):
    """Yields a beast's flags. PolyBeast's servers stay up while its learners are lost."""
    if beast == "monobeast":
        yield BEASTS[beast]
        return
    (own := Path(folder) / "servers").mkdir()
    with ServerFleet(own, *CATCH, "--envs_per_server", 4, count=2) as servers:
        yield [*BEASTS[beast], ",".join(servers.addresses)]
        assert servers.process.poll() is None, servers.printed()


def lose(program, number, victim):
    """Sends the signal to a rank. Returns the seconds until all have resumed, and the steps that
    they have to learn again."""
    starts = len(program.resumed())
    step = program.wait_for_step(program.resumed()[-1] if starts else 0)["step"]
    os.kill(program.rank(victim), number)
    began = time.monotonic()
    program.wait_for(lambda: len(program.resumed()) > starts)
    return time.monotonic() - began, step - program.resumed()[-1]


@promise("training goes on after a rank dies or hangs", "SIGKILL and SIGSTOP under torchrun")
def lost(times: int = 20) -> list[Figure]:
    """A rank that hangs is killed by torchrun, which waits 30 s for it."""
    figures = []
    for beast in BEASTS:
        rng, seen = random.Random(0), []
        with tempfile.TemporaryDirectory() as folder, environments(folder, beast) as own:
            restarts = ["--max_restarts", str(times)]
            flags = [*CATCH, *FLAGS, "--rank_timeout", TIMEOUT_S, *own]
            with Torchrun(folder, *flags, options=restarts, module=beast) as program:
                for i in range(times):
                    seen.append(lose(program, FAULTS[i % len(FAULTS)], rng.randrange(2)))
                program.wait_for_step(program.resumed()[-1])
                os.kill(program.rank(0), signal.SIGTERM)
                assert program.wait_for_end() == 0, program.printed()
                assert program.step() == program.rows()[-1]["step"]
                printed = program.printed()
        seconds, steps = zip(*seen, strict=True)
        named = printed.count("has ended or cannot") + printed.count("no sign of life")
        figures += [
            *median_and_p99(f"{beast}: from the fault to the restart", seconds, TIMEOUT_S + 45),
            Figure(f"{beast}: losses that a rank has named", named, at_least=times),
            Figure(f"{beast}: steps lost", max(steps), "steps", at_most=20_000),
        ]
    return figures


@promise("learners survive a broken cable", "link down for 20 s between two, under torchrun")
def cut(seconds: float = 20.0) -> list[Figure]:
    """A break that is shorter than the time-out is waited for. After a longer one all end, and
    torchrun starts them until they meet again."""
    return [_until_it_learns(seconds, timeout) for timeout in (3 * seconds, seconds / 4)]


def _until_it_learns(seconds: float, timeout: float) -> Figure:
    flags = [*CATCH, *FLAGS, "--rank_timeout", timeout, *BEASTS["monobeast"]]
    with tempfile.TemporaryDirectory() as folder:
        cable = on_two_machines(folder, *flags, options=["--max_restarts", "20"])
        with cable as (first, _second, set_cable):
            first.wait_for_step(1000)
            set_cable("down")
            time.sleep(seconds)
            set_cable("up")
            began, step = time.monotonic(), first.rows()[-1]["step"]
            first.wait_for_step(step)
            took, restarts = time.monotonic() - began, len(first.resumed())
            named = "has given no sign of life" in first.printed()
    assert bool(restarts) == named == (timeout < seconds), first.printed()
    what = f"--rank_timeout {timeout:g}: learns again after the link is back"
    return Figure(what, took, "s", at_most=30 if timeout > seconds else TIMEOUT_S + 45)
