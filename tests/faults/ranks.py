# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about learners of one run that die or hang."""

import os
import random
import signal
import tempfile
import time

from tests.faults.harness import Figure, median_and_p99, promise
from tests.support.ranks import Torchrun

FLAGS = (
    "--env tests.support.envs:Catch-v0 --num_actors 1 --envs_per_actor 4 --batch_size 4 "
    "--log_every 0.5 --checkpoint_every 1 --total_steps 1_000_000_000 --rank_timeout"
).split()
TIMEOUT_S = 5.0
FAULTS = {signal.SIGKILL: "dies", signal.SIGSTOP: "hangs"}


@promise("training goes on after a rank dies or hangs", "SIGKILL and SIGSTOP under torchrun")
def lost(times: int = 20) -> list[Figure]:
    """The last fault, which torchrun does not restart after, ends the run."""
    rng, seconds, most_lost = random.Random(0), [], 0
    with tempfile.TemporaryDirectory() as folder:
        restarts = ["--max_restarts", str(times)]
        with Torchrun(folder, *FLAGS, TIMEOUT_S, options=restarts) as program:
            for i in range(times):
                step = program.wait_for_step(program.rows()[-1]["step"] if i else 0)["step"]
                time.sleep(rng.uniform(0, 1))
                number = [*FAULTS][i % len(FAULTS)]
                os.kill(program.rank(rng.randrange(2)), number)
                began = time.monotonic()
                program.wait_for(lambda: len(program.resumed()) == i + 1)  # noqa: B023
                seconds.append(time.monotonic() - began)
                most_lost = max(most_lost, step - program.resumed()[-1])
            program.wait_for_step(program.resumed()[-1])
            program.process.terminate()
            program.wait_for_end()
            assert program.step() >= program.rows()[-1]["step"]
            printed = program.printed()
    named = printed.count("has ended or cannot") + printed.count("no sign of life")
    return [
        *median_and_p99("from the fault to the restart", seconds, at_most=TIMEOUT_S + 45),
        Figure("losses that a rank has named", named, at_least=times),
        Figure("steps lost beyond the log's last row", most_lost, "steps", at_most=20_000),
    ]
