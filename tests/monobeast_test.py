# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MonoBeast runs, stops, resumes and fails as promised: real processes, real signals. docs_test.py
and control_test.py show that it learns."""

import os
import subprocess
import sys

import pytest
import torch

import monobeast
from libtorchbeast import models
from libtorchbeast.flags import UserError
from libtorchbeast.learner import Between, Learner
from libtorchbeast.rollouts import Barrier
from libtorchbeast.run import RunState
from libtorchbeast.spec import Actions, Spec
from tests.support.actors import A, make_flags
from tests.support.compare import assert_same
from tests.support.monobeast import FOREVER, IN_ORDER, PARALLEL, beast, parse, refusal
from tests.support.processes import ROOT, Program, load, rows

pytestmark = pytest.mark.usefixtures("as_before")


def test_a_long_run_counts_every_step_once_and_its_use_of_resources_stays_flat(tmp_path):
    """In an endless episode every transition is real, so each update is worth exactly T x B, also
    with two learner threads. More than 33 slots work, too, although slot 33 is b"!", the first byte
    of a failure. After the first third all processes together may grow by 32 MiB, which malloc does
    by itself. A batch lost at each update would be 64 MiB."""
    flags = ["--env", "tests.support.envs:HeavyCatch-v0", "--num_learner_threads", 2]
    flags += ["--num_buffers", 4 * 40]
    before = {*os.listdir("/dev/shm")}
    with Program(tmp_path, *FOREVER, *flags) as program:
        program.wait_for_step(1)
        program.wait_for(lambda: all(map(has_begun, program.actors())))
        step = program.rows()[-1]["step"]
        program.wait_for_step(step + 8_000)
        first = usage(program)
        program.wait_for_step(step + 24_000)
        last = usage(program)
        assert {*os.listdir("/dev/shm")} == before
        program.process.terminate()
        assert program.wait_for_end() == 0, program.printed()
    assert last["descriptors"] == first["descriptors"]
    assert last["threads"] == first["threads"]
    assert last["memory"] < first["memory"] + 32 * 2**20, (first, last)
    state, row = load(program.path), program.rows()[-1]
    assert state["step"] == state["updates"] * 20 * 4
    assert (row["step"], row["updates"]) == (state["step"], state["updates"])
    assert row["actor_restarts"] == 0


def has_begun(actor):
    """Whether an actor has the shared memory. The second one starts later than the first."""
    with open(f"/proc/{actor}/maps") as file:
        return "memfd:torchbeast" in file.read()


def usage(program):
    """The resources that the processes of a session hold together."""
    total = dict(descriptors=0, threads=0, memory=0)
    for pid in program.session():
        # The least of many looks: a file that is just being written, and its watch, are no leaks.
        for name, what in (("descriptors", "fd"), ("threads", "task")):
            total[name] += min(len(os.listdir(f"/proc/{pid}/{what}")) for _ in range(100))
        with open(f"/proc/{pid}/smaps_rollup") as file:
            pss = next(line for line in file if line.startswith("Pss:"))
        total["memory"] += int(pss.split()[1]) * 1024
    return total


# =========================================================================== stopping, resuming
def learned(savedir):
    state = load(savedir / "run")
    return {k: state[k] for k in ("model", "optimizer", "stats", "step", "between_barriers")}


# A game of Catch has 9 steps and a reset, so that an update of 4 x 20 rows has 72 steps. A barrier
# is due after each update, and comes after the next, in which the games then running end.
CONSTANT = ["--no_learning_rate_decay", "--entropy_schedule", "constant"]
EACH = [*IN_ORDER, "--barrier_updates", 1, *CONSTANT, "--total_steps"]
INEXACT = "not, bit for bit"


def test_a_stop_at_a_barrier_changes_nothing(tmp_path):
    beast(tmp_path / "unbroken", *EACH, 72 * 20, "--log_every", 0.1)
    assert len(rows(tmp_path / "unbroken/run")) > 1
    for updates in (2, 4, 20):
        beast(tmp_path / "stopped", *EACH, 72 * updates)
        assert learned(tmp_path / "stopped")["step"] == 72 * updates
        assert not learned(tmp_path / "stopped")["between_barriers"]
    assert_same(learned(tmp_path / "stopped"), learned(tmp_path / "unbroken"))
    assert INEXACT not in (tmp_path / "stopped/run/out.log").read_text()


def test_a_stop_between_two_barriers_is_saved_and_the_resume_says_so(tmp_path):
    for updates in (3, 5):
        beast(tmp_path, *EACH, 72 * updates)
        assert learned(tmp_path)["step"] == 72 * updates
        assert learned(tmp_path)["between_barriers"] == (updates == 3)
    assert (tmp_path / "run/out.log").read_text().count(INEXACT) == 1


def test_the_rest_of_the_last_rollout_is_given_back(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(Between, "learned", lambda self, batch, numbers: told.append(numbers))
    beast(tmp_path, *IN_ORDER, "--batch_size", 2, "--total_steps", 1)  # half of a rollout is enough
    assert [numbers is None for numbers in told] == [False, True]


@pytest.mark.parametrize("wait", [1, 1000])
def test_a_run_whose_games_never_end_is_saved_as_soon_as_its_barrier_is_late(
    wait, tmp_path, monkeypatch
):
    monkeypatch.setattr(Barrier, "LONG", wait)
    always_due = property(lambda state: 0.0, lambda state, time: None)
    monkeypatch.setattr(RunState, "due", always_due, raising=False)
    monkeypatch.setattr(Learner, "close", lambda learner: sys.exit("killed"))  # nothing after it
    with pytest.raises(SystemExit, match="killed"):
        beast(tmp_path, *EACH, 80 * 10, "--env", "tests.support.envs:EndlessCatch-v0")
    assert (tmp_path / "run/model.tar").exists() == (wait == 1)


def test_a_run_in_order_plays_long_games_to_their_end_and_counts_them(tmp_path):
    """Games have 5 or 60 steps, and a barrier is due every 4. All have to count alike."""
    flags = "--env tests.support.envs:ShortOrLong-v0 --barrier_updates 1 --unroll_length 4"
    beast(tmp_path, *IN_ORDER[2:], *flags.split(), "--total_steps", 7000)
    assert rows(tmp_path / "run")[-1]["mean_game_length"] == pytest.approx(32.5, rel=0.2)


def test_the_program_may_be_run_as_a_script(tmp_path):
    """The script can also resume a run that the module has started. That one ends when it is
    complete, however far the next barrier is: an update has at most 4 x 20 steps."""
    beast(tmp_path, *IN_ORDER, "--barrier_updates", 10**6, "--total_steps", 500)
    assert 500 <= load(tmp_path / "run")["step"] < 500 + 80
    words = ["--savedir", tmp_path, "--xpid", "run", *IN_ORDER, "--total_steps", 1000]
    command = [sys.executable, "monobeast.py", *map(str, words)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert load(tmp_path / "run")["net"] == "monobeast.Net"


# ==================================================================================== failing well
@pytest.mark.parametrize(
    "flags, named",
    [
        (["--unroll_length", 10**9], "num_buffers 16"),
        (["--unroll_length", 2 * 10**9, "--num_actors", 0], f"unroll_length {2 * 10**9}"),
    ],
)
def test_too_little_memory_is_one_line_before_anything_starts(tmp_path, flags, named):
    message = refusal(tmp_path, *PARALLEL, *flags)
    assert message.startswith(f"monobeast: error: --{named}: expected ") and "needed" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--num_learner_threads 2 --num_actors 0", "--num_learner_threads 2: expected 1 if"),
        ("--num_actors 3 --envs_per_actor 4 --num_buffers 11", "--num_buffers 11: .* 12 columns"),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(flags, message):
    with pytest.raises(UserError, match=message):
        parse(*flags.split())


# ===================================================================================== the network
def test_net_is_torchbeasts_shallow_network_on_atari():
    """conv 32x8x8/4, 64x4x4/2, 64x3x3/1, fc 512; the LSTM: two layers of the whole width."""
    spec = Spec("atari", 1, {"frame": ((4, 84, 84), "uint8")}, Actions("discrete", (6,)))
    net = models.make_net(monobeast.Net, spec, make_flags("--use_lstm"))
    shapes = [tuple(p.shape) for p in net.parameters() if p.ndim > 1]
    convolutions = [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert shapes[:4] == [*convolutions, (512, 64 * 7 * 7)]
    assert (net.core.num_layers, net.core.hidden_size) == (2, 512 + 1 + 6)


@torch.no_grad()
def test_bytes_are_scaled_and_a_reward_is_clipped_and_other_numbers_stay():
    spec_of = lambda dtype: Spec("some", 1, {"frame": ((4,), dtype)}, Actions("discrete", (A,)))
    flags = make_flags("--net", "monobeast.Net")
    of_bytes, of_floats = (
        models.make_net(monobeast.Net, spec_of(dtype), flags) for dtype in ("uint8", "float32")
    )
    of_floats.load_state_dict(of_bytes.state_dict())
    rows = {"done": torch.zeros(1, 1), "last_action": torch.zeros(1, 1, dtype=torch.int64)}
    frame = torch.tensor([[[0, 51, 204, 255]]], dtype=torch.uint8)
    seen, _ = of_bytes({**rows, "frame": frame, "reward": torch.full((1, 1), 1e6)})
    scaled = torch.tensor([[[0, 0.2, 0.8, 1.0]]])
    expected, _ = of_floats({**rows, "frame": scaled, "reward": torch.ones(1, 1)})
    torch.testing.assert_close(seen["baseline"], expected["baseline"])
