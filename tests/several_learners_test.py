# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Two learners that torchrun has started: they learn, resume, and survive what happens to one of
them or to their network. The processes are real. pulse_test.py has who may stop all of them."""

import os
import re
import shutil
import signal
import time

import pytest

from tests.faults.ranks import lose
from tests.support.network import NoNamespaces
from tests.support.polybeast import beast
from tests.support.processes import Program, load
from tests.support.ranks import Torchrun, on_two_machines

pytestmark = pytest.mark.timeout(900)  # each starts four processes or more
CATCH = "--env tests.support.envs:Catch-v0 --log_every 0.5 --batch_size 8".split()
LEARNING = (*CATCH, *"--unroll_length 10 --learning_rate 5e-3 --total_steps".split())
MONO = "--num_actors 1 --envs_per_actor 8".split()
POLY = "--num_servers 1 --envs_per_server 8 --net monobeast.Net".split()


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run of two ranks of PolyBeast. Any rank may stop all."""
    folder = tmp_path_factory.mktemp("learned")
    with Torchrun(folder, *LEARNING, 60_000, *POLY, module="polybeast") as program:
        program.wait_for_step(30_000)
        os.kill(program.rank(1), signal.SIGTERM)
        assert program.wait_for_end() == 0, program.printed()
        assert not program.session()
    return program


def test_two_ranks_learn_catch(learned):
    last, state = learned.rows()[-1], load(learned.path)
    assert last["step"] == state["step"] >= 30_000 and last["mean_game_return"] >= 0.9
    # The games of both ranks are counted: a game has 9 steps, and a step that is not learned from.
    assert last["games"] * 9 >= 0.9 * last["step"]
    assert last["skipped_updates"] == 0
    # A row that follows another at once has no speeds: an update has lasted longer than the row.
    slowest = [row["slowest_rank"] for row in learned.rows() if "slowest_rank" in row]
    assert slowest and set(slowest) <= {0, 1}
    assert "8 columns = 2 ranks x 4; 16 environments" in learned.printed()
    assert {path.name for path in learned.path.parent.iterdir()} == {"run", "latest", "printed"}
    assert not any("rank" in name for name in state)


def test_a_run_resumes_with_another_number_of_ranks_and_after_one_was_killed(
    learned, tmp_path, as_before
):
    """One rank without torchrun, then two again, one of which is killed. At last one hangs. A stop
    is saved all the same: torchrun kills all before rank 0 gives up to wait for a goodbye."""
    shutil.copytree(learned.path, tmp_path / "run")
    two = learned.step()
    beast(tmp_path, "--total_steps", two + 1000, *POLY)
    one = load(tmp_path / "run")["step"]
    assert one >= two + 1000
    # Torchrun would wait for 30 s.
    options = ["--max_restarts", 1, "--shutdown_timeout", 15]
    with Torchrun(tmp_path, "--total_steps", 1_000_000_000, *MONO, options=options) as program:
        program.wait_for(program.resumed)
        lose(program, signal.SIGKILL, victim=1)
        assert re.search("rank 1 on .* has ended or cannot be reached", program.printed())
        again = program.resumed()
        assert again[0] == one < again[1]
        seen = program.wait_for_step(again[1])["step"]
        os.kill(program.rank(1), signal.SIGSTOP)
        program.process.terminate()
        program.wait_for_end()
    assert program.step() >= seen > again[1]
    assert "rank 1 on " in program.printed() and "has not stopped within" in program.printed()


def test_two_machines_whose_cable_breaks(tmp_path):
    """A break that is shorter than the time-out is waited for. After a longer one each end names
    the other one, with its machine, and the one with the run saves it."""
    timeout = 8
    forever = [*LEARNING, 1_000_000_000, *MONO, "--rank_timeout", timeout]
    try:
        with on_two_machines(tmp_path, *forever) as (first, second, set_cable):
            first.wait_for_step(1000)
            set_cable("down")
            time.sleep(1.0)  # the break, not a wait for something
            set_cable("up")
            first.wait_for_step(first.rows()[-1]["step"] + 1000)
            set_cable("down")
            assert first.wait_for_end() == 1, first.printed()
            assert second.wait_for_end() == 1, second.printed()
    except NoNamespaces as error:
        pytest.skip(str(error))
    assert f"has given no sign of life for {timeout} s" in first.printed()
    assert "rank 1 on " in first.printed() and "rank 0 on " in second.printed()
    assert load(first.path)["step"] == first.rows()[-1]["step"] >= 2000
    assert not second.path.exists()


def test_a_rank_that_does_not_come_is_named(tmp_path):
    """Two machines are announced, with one rank each, but one comes."""
    command = [*LEARNING, 1000, *MONO, "--rank_timeout", 2]
    alone = dict(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, MASTER_ADDR="127.0.0.1", MASTER_PORT=29_517)
    with Program(tmp_path, *command, **alone) as program:
        assert program.wait_for_end() == 1
    last = program.printed().strip().splitlines()[-1]
    assert "rank 1 of 2 has not come within 2 s (--rank_timeout); these have: rank 0 on" in last
