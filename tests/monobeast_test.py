# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MonoBeast learns, stops, resumes and fails as promised: real processes, real signals."""

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
import torch

import monobeast
from libtorchbeast import evaluate, models
from libtorchbeast.checkpoint import save
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.learner import MAX_SKIPPED_IN_A_ROW, Learner
from libtorchbeast.loggers import video
from libtorchbeast.rollouts import batches
from libtorchbeast.rpcenv.mock import make_mock
from tests.support.compare import assert_same
from tests.support.envs import Catch
from tests.support.processes import ROOT, Program, load, rows, wait_for

CATCH = ("--env", "tests.support.envs:Catch-v0")
PARALLEL = (*CATCH, *"--num_actors 2 --envs_per_actor 4 --batch_size 4 --log_every 0.5".split())
FOREVER = (*PARALLEL, "--total_steps", 1_000_000_000)
IN_ORDER = (*CATCH, *"--num_actors 0 --envs_per_actor 4 --batch_size 4 --precision fp32".split())


class OtherNet(monobeast.Net):
    pass


@pytest.fixture(autouse=True)
def _logging_as_before():
    """`main` sets up logging to the stderr of the test that called it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A folder with a run that was resumed once: it has a checkpoint and the one before it."""
    savedir = tmp_path_factory.mktemp("finished")
    beast(savedir, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 500)
    beast(savedir, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 1000)
    return savedir


@pytest.fixture
def savedir(finished_run, tmp_path):
    """A copy of `finished_run`."""
    return shutil.copytree(finished_run, tmp_path / "copy", symlinks=True)


def beast(savedir, *flags):
    """MonoBeast in this process."""
    words = ["--savedir", savedir, "--xpid", "run", *flags]
    monobeast.main([str(word) for word in words])


def refusal(savedir, *flags):
    """The one line with which MonoBeast refuses to start."""
    with pytest.raises(SystemExit) as refused:
        beast(savedir, *flags)
    message = refused.value.code
    assert isinstance(message, str) and "\n" not in message  # printed as it is, exit code 1
    return message


def parse(*flags):
    flags = monobeast.make_parser().parse_args([str(word) for word in flags])
    monobeast.check_flags(flags)
    return flags


def shared_memory():
    return set(os.listdir("/dev/shm"))


# ===================================================================================== learning
LSTM_SETTINGS = "--learning_rate 2e-3 --entropy_cost 0.05 --num_buffers 16"


@pytest.mark.parametrize(
    "flags, solved",
    [
        pytest.param(["--learning_rate", 5e-3, "--total_steps", 50_000], True, id="feed-forward"),
        pytest.param(
            ["--use_lstm", *LSTM_SETTINGS.split(), "--total_steps", 60_000], True, id="lstm"
        ),
        pytest.param(
            ["--learning_rate", 1e-12, "--total_steps", 50_000],
            False,
            id="control-that-cannot-learn",
        ),
    ],
)
def test_catch_is_solved_and_the_solution_can_be_played(tmp_path, capsys, flags, solved):
    settings = "--num_actors 2 --envs_per_actor 8 --batch_size 8 --unroll_length 10"
    with Program(tmp_path, *CATCH, *settings.split(), *flags) as program:
        assert program.wait_for_end() == 0, program.printed()
    last = program.rows()[-1]
    assert last["step"] >= 50_000
    assert (last["mean_game_return"] >= 0.9) == solved
    assert last["actor_restarts"] == last["skipped_updates"] == 0
    beast(tmp_path, "--mode", "test", "--greedy", "--num_episodes", 20)
    mean = float(re.search(r"Mean return (-?[\d.]+)", capsys.readouterr().out)[1])
    assert (mean >= 0.9) == solved


def test_two_learner_threads_count_every_step_once(tmp_path):
    """In an endless episode every transition is real, so each update is worth exactly T x B."""
    flags = ["--env", "tests.support.envs:EndlessCatch-v0", "--num_learner_threads", 2]
    with Program(tmp_path, *PARALLEL, *flags, "--total_steps", 20_000) as program:
        assert program.wait_for_end() == 0, program.printed()
    state = load(program.path)
    assert state["step"] == state["updates"] * 20 * 4
    assert 20_000 <= state["step"] < 20_000 + 2 * 20 * 4
    last = program.rows()[-1]
    assert (last["step"], last["updates"]) == (state["step"], state["updates"])


def test_any_number_of_buffers_serves(tmp_path):
    """Also more than 33: slot 33 is b"!", and so is the first byte of a failure."""
    flags = ["--num_actors", 1, "--envs_per_actor", 1, "--num_buffers", 40, "--batch_size", 4]
    with Program(
        tmp_path, "--env", "tests.support.envs:Catch-v0", *flags, "--total_steps", 4000
    ) as program:
        assert program.wait_for_end() == 0, program.printed()
    last = program.rows()[-1]
    assert last["step"] >= 4000 and last["actor_restarts"] == 0


def test_a_last_checkpoint_that_fails_is_not_a_success(tmp_path, capsys):
    (tmp_path / "run" / "model.tar.tmp").mkdir(parents=True)  # no file can be written there
    with pytest.raises(SystemExit, match="the last checkpoint could not be saved"):
        beast(tmp_path, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 200)
    assert "not saved" in capsys.readouterr().err
    assert rows(tmp_path / "run")[-1]["checkpoint_errors"] == 1


def test_memory_descriptors_and_threads_stay_flat(tmp_path):
    """Over a million steps, from a tenth on: at most 32 MiB more in all processes together:
    what malloc does by itself. A batch lost at each update would be 390."""
    steps = 1_000_000
    flags = "--env MinAtar/Breakout-v1 --num_actors 1 --envs_per_actor 64 --batch_size 32".split()
    before = shared_memory()
    with Program(tmp_path, *flags, "--log_every", 0.5, "--total_steps", 10 * steps) as program:
        program.wait_for_step(steps / 10)
        first = usage(program)
        program.wait_for_step(steps)
        last = usage(program)
        assert shared_memory() == before
        program.process.terminate()
        assert program.wait_for_end() == 0
    assert last["descriptors"] == first["descriptors"]
    assert last["threads"] == first["threads"]
    assert last["memory"] < first["memory"] + 32 * 2**20, (first, last)


def usage(program):
    """What the processes of a session hold together."""
    total = dict(descriptors=0, threads=0, memory=0)
    for pid in program.session():
        # The least of many looks: a file that is just being written is no leak.
        looks = [len(os.listdir(f"/proc/{pid}/fd")) for _ in range(100)]
        total["descriptors"] += min(looks)
        total["threads"] += len(os.listdir(f"/proc/{pid}/task"))
        with open(f"/proc/{pid}/smaps_rollup") as file:
            pss = next(line for line in file if line.startswith("Pss:"))
        total["memory"] += int(pss.split()[1]) * 1024
    return total


# =========================================================================== stopping, resuming
def test_the_same_seed_gives_the_same_run_in_order(tmp_path):
    for name in ("a", "b"):
        beast(tmp_path / name, *IN_ORDER, "--barrier_updates", 3, "--total_steps", 1500)
    a, b = (load(tmp_path / name / "run") for name in ("a", "b"))
    assert_same((a["model"], a["optimizer"], a["stats"]), (b["model"], b["optimizer"], b["stats"]))


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_serves(savedir, capsys):
    before = torch.load(savedir / "run/model.tar.previous", weights_only=True)["step"]
    flip_a_byte(savedir / "run/model.tar")
    beast(savedir, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 1500)
    told = capsys.readouterr().err
    assert "Checkpoint not usable" in told and "damaged" in told and "model.tar.previous" in told
    assert f"Going on from step {before}" in told
    assert load(savedir / "run")["step"] >= 1500
    table = rows(savedir / "run")
    assert [row["_tick"] for row in table] == list(range(len(table)))


def test_two_damaged_checkpoints_are_never_a_start_from_scratch(savedir):
    for name in ("model.tar", "model.tar.previous"):
        flip_a_byte(savedir / "run" / name)
    content = lambda: {p.name: p.read_bytes() for p in (savedir / "run").iterdir()}
    before = content()
    message = refusal(savedir, *IN_ORDER, "--total_steps", 1500)
    assert "model.tar" in message and "model.tar.previous" in message and "damaged" in message
    assert content() == before


@pytest.mark.parametrize(
    "flags, what",
    [
        (["--env", "tests.support.envs:EndlessCatch-v0"], "env"),
        (["--env", "CartPole-v1"], "env"),
        (["--net", f"{__name__}.OtherNet"], "net"),
        (["--use_lstm"], ""),
    ],
)
def test_another_environment_or_network_is_refused_on_resume(savedir, flags, what):
    before = (savedir / "run/model.tar").read_bytes()
    message = refusal(savedir, *IN_ORDER, *flags, "--total_steps", 1500)
    assert f"is of another {what}" in message and "--xpid" in message
    assert (savedir / "run/model.tar").read_bytes() == before


def test_other_changed_flags_are_taken_and_logged(savedir):
    changes = ["--entropy_cost", 0.02, "--learning_rate", 0.002, "--total_steps", 1500]
    beast(savedir, *IN_ORDER, "--barrier_updates", 1, "--no_learning_rate_decay", *changes)
    meta = json.loads((savedir / "run/meta.json").read_text())
    assert meta["resumed"][-1]["changed_flags"]["entropy_cost"] == {"old": 0.01, "new": 0.02}
    assert "--entropy_cost changes from 0.01 to 0.02" in (savedir / "run/out.log").read_text()
    assert rows(savedir / "run")[-1]["learning_rate"] == pytest.approx(0.002)
    assert load(savedir / "run")["flags"]["entropy_cost"] == 0.02


def test_a_complete_run_started_again_says_so_and_stays(savedir, capsys):
    before = load(savedir / "run")["step"]
    beast(savedir, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 1000)
    assert "Nothing to do" in capsys.readouterr().err
    assert load(savedir / "run")["step"] == before


def test_a_flag_of_a_forks_own_may_be_anything(tmp_path, monkeypatch):
    """A Path, say: it is saved as a string, and a resume knows it."""
    make_parser = monobeast.make_parser

    def with_maps():
        parser = make_parser()
        parser.add_argument("--maps", type=Path)
        return parser

    monkeypatch.setattr(monobeast, "make_parser", with_maps)
    for total_steps in (500, 1000):
        beast(tmp_path, *IN_ORDER, "--maps", tmp_path / "maps", "--total_steps", total_steps)
    assert load(tmp_path / "run")["flags"]["maps"] == str(tmp_path / "maps")
    assert "--maps changes" not in (tmp_path / "run/out.log").read_text()


def test_the_program_may_be_run_as_a_script(tmp_path):
    """Also to go on with a run that `python -m` began."""
    for total_steps, program in ((500, ["-m", "monobeast"]), (1000, ["monobeast.py"])):
        words = ["--savedir", tmp_path, "--xpid", "run", *IN_ORDER, "--total_steps", total_steps]
        command = [sys.executable, *program, *map(str, words)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert load(tmp_path / "run")["net"] == "monobeast.Net"


# ==================================================================================== failing well
def restarts(program):
    table = program.rows()
    return table[-1]["actor_restarts"] if table else 0


def test_actors_that_raise_hang_or_die_are_replaced_and_counted(tmp_path):
    """And a stopped one hinders nobody; a second run in the same folder is refused meanwhile."""
    flags = [*FOREVER, "--env", "tests.support.envs:TroubledCatch-v0", "--step_timeout", 1]
    (tmp_path / "first").mkdir()
    with Program(tmp_path, *flags, TROUBLE=tmp_path / "first") as program:
        program.wait_for(lambda: restarts(program) == 3)
        os.kill(min(program.actors()), signal.SIGKILL)
        program.wait_for(lambda: restarts(program) == 4)
        with pytest.raises((RuntimeError, SystemExit), match=f"in use by process {program.pid}"):
            beast(tmp_path, *flags)
        os.kill(min(program.actors()), signal.SIGSTOP)
        program.wait_for_step(program.rows()[-1]["step"])
        program.process.terminate()
        assert program.wait_for_end() == 0, program.printed()
        wait_for(lambda: not program.session())
    told = (program.path / "out.log").read_text()
    assert "the ball has rolled under the sofa" in told and "in lose_the_ball" in told
    assert "took longer than --step_timeout 1 for one step" in told
    assert "Reward: expected finite numbers, seen [nan" in told
    assert told.count("it was ended from outside (exit code -9)") >= 2

    # With trouble again, but none that hangs, the run reaches its end.
    (tmp_path / "second").mkdir()
    (tmp_path / "second/hang").touch()
    flags += ["--total_steps", program.step() + 10_000]
    with Program(tmp_path, *flags, TROUBLE=tmp_path / "second") as program:
        assert program.wait_for_end() == 0, program.printed()
    assert program.step() >= flags[-1]
    assert restarts(program) == 2


def test_a_dead_actor_is_noticed_while_a_program_of_its_own_lives(tmp_path):
    flags = [*FOREVER, "--env", "tests.support.envs:ParentCatch-v0", "--num_actors", 1]
    with Program(tmp_path, *flags) as program:
        program.wait_for_step(0)
        os.kill(min(program.actors()), signal.SIGKILL)
        program.wait_for(lambda: restarts(program) == 1)


def test_too_many_failures_end_the_run_with_a_checkpoint_and_the_first_cause(tmp_path):
    flags = ["--env", "tests.support.envs:BreakingCatch-v0", "--max_actor_restarts", 2]
    with Program(tmp_path, *FOREVER, *flags) as program:
        assert program.wait_for_end() == 1
        wait_for(lambda: not program.session())
    printed, log = program.printed(), (program.path / "out.log").read_text()
    for told in (printed, log):
        assert "in lose_the_ball" in told and "(--max_actor_restarts 2)" in told
        assert told.strip().endswith("RuntimeError: the ball has rolled under the sofa")
        assert "process object is closed" not in told  # the clean-up must not fail as well
    assert program.step() > 0
    assert program.rows()[-1]["actor_restarts"] == 3


@pytest.mark.parametrize(
    "flags, named",
    [
        (["--unroll_length", 10**9], "num_buffers 16"),
        (["--unroll_length", 2 * 10**9, "--num_actors", 0], f"unroll_length {2 * 10**9}"),
    ],
)
def test_too_little_memory_is_one_line_before_anything_starts(tmp_path, flags, named):
    with Program(tmp_path, *PARALLEL, *flags) as program:
        assert program.wait_for_end() == 1, program.printed()
        wait_for(lambda: not program.session())
    assert "Traceback" not in program.printed()
    last = program.printed().strip().splitlines()[-1]
    assert last.startswith(f"monobeast: error: --{named}: expected ") and "needed" in last


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--batch_size 0", r"--batch_size 0: expected at least 1"),
        (f"--unroll_length {10**18}", r"--unroll_length 10*: expected .* at most 2,147,483,647"),
        ("--unroll_length 0", r"--unroll_length 0: expected at least 1"),
        ("--total_steps 0", r"--total_steps 0: expected at least 1"),
        ("--envs_per_actor 0", r"--envs_per_actor 0: expected at least 1"),
        ("--num_actors -1", r"--num_actors -1: expected at least 0"),
        ("--num_learner_threads 0", r"--num_learner_threads 0: expected at least 1"),
        ("--num_threads 0", r"--num_learner_threads 0: expected at least 1"),
        (
            "--num_learner_threads 2 --num_actors 0",
            r"--num_learner_threads 2: expected 1 if",
        ),
        ("--num_actors 3 --envs_per_actor 4 --num_buffers 11", r"--num_buffers 11: .* 12 columns"),
        ("--num_buffers 0", r"--num_buffers 0: expected at least"),
        ("--discounting 1.5", r"--discounting 1.5: expected at least 0 and at most 1"),
        ("--discounting -0.1", r"--discounting -0.1: expected at least 0 and at most 1"),
        ("--vtrace_lambda 2", r"--vtrace_lambda 2.0: expected at least 0 and at most 1"),
        ("--learning_rate 0", r"--learning_rate 0.0: expected more than 0"),
        ("--learning_rate nan", r"--learning_rate nan: expected a finite number, more than 0"),
        ("--learning_rate inf", r"--learning_rate inf: expected a finite number, more than 0"),
        ("--entropy_cost -1", r"--entropy_cost -1.0: expected at least 0"),
        ("--baseline_cost nan", r"--baseline_cost nan: expected a finite number, at least 0"),
        ("--alpha 1.1", r"--alpha 1.1: expected at least 0 and at most 1"),
        ("--momentum -1", r"--momentum -1.0: expected at least 0"),
        ("--momentum 1.1", r"--momentum 1.1: expected at least 0 and at most 1"),
        ("--epsilon 0", r"--epsilon 0.0: expected at least 1e-12"),
        ("--grad_norm_clipping 0", r"--grad_norm_clipping 0.0: expected more than 0"),
        ("--grad_norm_clipping 1e13", r"--grad_norm_clipping .*: expected more than 0 and at most"),
        ("--learning_rate 1001", r"--learning_rate 1001.0: expected more than 0 and at most 1000"),
        ("--clip_rho_threshold 0", r"--clip_rho_threshold 0.0: expected more than 0"),
        ("--clip_pg_rho_threshold -1", r"--clip_pg_rho_threshold -1.0: expected more than 0"),
        ("--log_every 0", r"--log_every 0.0: expected at least 0.1"),
        ("--checkpoint_every 0", r"--checkpoint_every 0.0: expected at least 1"),
        ("--barrier_updates 0", r"--barrier_updates 0: expected at least 1"),
        ("--step_timeout 0", r"--step_timeout 0.0: expected at least 0.1"),
        ("--max_actor_restarts -1", r"--max_actor_restarts -1: expected at least 0"),
        ("--num_episodes 0", r"--num_episodes 0: expected at least 1"),
        ("--max_episode_steps 0", r"--max_episode_steps 0: expected at least 1"),
        ("--seed -1", r"--seed -1: expected at least 0"),
    ],
)
def test_a_flag_that_cannot_work_is_refused_with_its_value_and_range(flags, message):
    with pytest.raises(UserError, match=message):
        parse(*flags.split())


@pytest.mark.parametrize("flag", ["--no_such_flag 1", "--batch 4", "--mode play", "--net 1 2"])
def test_an_unknown_or_shortened_flag_or_choice_is_refused(flag, capsys):
    with pytest.raises(SystemExit):
        parse(*flag.split())
    assert "error:" in capsys.readouterr().err


def test_every_flag_of_torchbeasts_monobeast_is_known():
    flags = parse(
        *"--env PongNoFrameskip-v4 --mode test_render --xpid x --disable_checkpoint --savedir s "
        "--num_actors 4 --total_steps 100000 --batch_size 8 --unroll_length 80 --num_buffers 64 "
        "--num_learner_threads 2 --num_threads 3 --disable_cuda --use_lstm --entropy_cost 0.0006 "
        "--baseline_cost 0.5 --discounting 0.99 --reward_clipping none --learning_rate 0.00048 "
        "--alpha 0.99 --momentum 0 --epsilon 0.01 --grad_norm_clipping 40.0".split()
    )
    assert (flags.num_learner_threads, flags.reward_clipping, flags.alpha) == (3, "none", 0.99)
    assert flags.disable_checkpoint and flags.disable_cuda and flags.use_lstm


# ================================================================================ non-finite losses
class Learning:
    """A learner on CartPole, whose observations are floats, with what it needs for an update."""

    def __init__(self, dump_dir, net=monobeast.Net, *flags):
        flags = parse("--env", "CartPole-v1", *IN_ORDER[2:], *flags)
        spec, shapes = monobeast.describe(flags)
        self.net = models.make_net(net, spec, flags)
        self.learner = Learner(self.net, flags, torch.device("cpu"), str(dump_dir))
        self.published = []
        rollout = {k: torch.zeros(shape, dtype=dtype) for k, (shape, dtype) in shapes.items()}
        env = monobeast.make_environment(flags)
        actor = monobeast.Actor(env, self.net, 0, flags, *monobeast.stopwatches())
        actor.unroll({k: v.numpy() for k, v in rollout.items()}, version=0)
        (self.batch,) = batches([(rollout, lambda: None)], flags.batch_size)

    def update(self, spoilt=None):
        """An update, with a NaN in the batch's key `spoilt`."""
        batch = {k: v.clone() for k, v in self.batch.items()}
        if spoilt:
            batch[spoilt][3, 1] = float("nan")
        return self.learner.update(batch, lambda weights, version: self.published.append(version))

    def weights(self):
        return {k: v.clone() for k, v in self.net.state_dict().items()}


@pytest.mark.parametrize("key", ["frame", "policy_logits", "reward"])
def test_a_non_finite_loss_changes_nothing_and_is_counted_and_dumped(tmp_path, key):
    learning = Learning(tmp_path)
    assert learning.update() is not None  # the optimizer has averages
    before, optimizer = learning.weights(), learning.learner.state_dict()["optimizer"]
    step = learning.learner.step
    assert learning.update(spoilt=key) is None
    assert_same(learning.weights(), before)
    assert_same(learning.learner.state_dict()["optimizer"], optimizer)
    assert learning.published == [1]
    assert (learning.learner.skipped, learning.learner.step) == (1, step)
    dump = torch.load(tmp_path / "nonfinite-1.tar", weights_only=True)
    assert dump["batch"][key].isnan().any()
    assert_same(dict(dump["model"]), dict(before))
    assert learning.update() is not None and learning.published == [1, 2]
    assert all(tensor.isfinite().all() for tensor in learning.weights().values())


def test_non_finite_losses_end_the_run_only_when_they_persist(tmp_path):
    learning = Learning(tmp_path)
    for _ in range(2):  # a good batch in between starts the count again
        for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
            assert learning.update(spoilt="frame") is None
        assert learning.update() is not None
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        learning.update(spoilt="frame")
    with pytest.raises(FloatingPointError, match=f"{MAX_SKIPPED_IN_A_ROW} updates in a row"):
        learning.update(spoilt="frame")
    # Enough to debug, not a full disk; and in any case the one that ended the run.
    last = 3 * MAX_SKIPPED_IN_A_ROW - 2
    names = {f"nonfinite-{number}.tar" for number in (1, 2, 3, last)}
    assert {path.name for path in tmp_path.glob("nonfinite-*.tar")} == names


class CountingNet(monobeast.Net):
    """Normalises by the mean of what it has seen, as a fork might."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs, core_state=()):
        self.mean.lerp_(inputs["frame"].mean((0, 1)), 0.1)
        return super().forward(inputs, core_state)


def test_a_skipped_batch_leaves_no_trace_in_running_means(tmp_path):
    learning = Learning(tmp_path, CountingNet)
    learning.update()
    before = learning.weights()
    assert before["mean"].abs().sum() > 0
    assert learning.update(spoilt="frame") is None
    assert_same(learning.weights(), before)


HUGE = "--learning_rate 1000 --grad_norm_clipping 1e12 --epsilon 1e-12 --momentum 1".split()


@pytest.mark.parametrize("optimizer", [["adam"], ["rmsprop"], ["rmsprop", "--alpha", 1]])
def test_no_gradient_makes_weights_infinite_within_the_flags_ranges(tmp_path, optimizer):
    """The gradient is huge and finite in the first update, and 0 in the next ones."""
    learning = Learning(tmp_path, monobeast.Net, *HUGE, "--optimizer", *optimizer)
    for number in range(3):
        for weight in learning.net.parameters():
            weight.grad = torch.full_like(weight, 0.0 if number else 1e12)
        learning.learner._optimizer.step()
        for tensor in tensors_of(learning.learner.state_dict()):
            assert tensor.isfinite().all()


def tensors_of(state):
    moments = [x for s in state["optimizer"]["state"].values() for x in s.values()]
    return [*state["model"].values(), *(x for x in moments if torch.is_tensor(x))]


# ======================================================================================= test modes
def test_the_test_mode_prints_mean_spread_and_each_game(savedir, capsys):
    beast(savedir, "--mode", "test", "--num_episodes", 20)
    printed = capsys.readouterr().out
    games = re.findall(r"│ +(\d+) │ +(-?\d+) │ +(\d+) │", printed)
    assert [int(number) for number, _, _ in games] == list(range(1, 21))
    assert {int(steps) for _, _, steps in games} == {9} and "cut" not in printed
    scores = torch.tensor([float(score) for _, score, _ in games])
    assert (
        f"Mean return {scores.mean():.2f}, standard deviation {scores.std(correction=0):.2f}"
        in printed
    )
    assert "tests.support.envs:Catch-v0, sampled actions" in printed  # --env is the run's own


def test_the_test_mode_says_when_a_game_was_cut(savedir, capsys):
    beast(savedir, *"--mode test --num_episodes 2 --greedy --max_episode_steps 4".split())
    assert capsys.readouterr().out.count("4 (cut at --max_episode_steps 4)") == 2


def test_the_test_mode_needs_a_checkpoint(tmp_path):
    message = refusal(tmp_path, "--mode", "test")
    assert "no checkpoint" in message and str(tmp_path / "run/model.tar") in message


def test_the_test_mode_knows_whose_run_it_is(savedir):
    checkpoint = load(savedir / "run")
    save(str(savedir / "run/model.tar"), checkpoint | {"net": "polybeast.Net"})
    message = refusal(savedir, "--mode", "test")
    assert "is of the network polybeast.Net, this program's is monobeast.Net" in message
    save(str(savedir / "run/model.tar"), checkpoint | {"env": "NoSuchGame-v0"})
    message = refusal(savedir, "--mode", "test")
    assert "--env NoSuchGame-v0: Environment `NoSuchGame` doesn't exist" in message


def frames_of(path):
    with imageio.get_reader(path) as video:
        return [frame for frame in video]  # list(video) would ask for its length, which is inf


def test_the_video_shows_every_step(tmp_path, capsys):
    small = "--num_actors 0 --envs_per_actor 2 --batch_size 2 --unroll_length 4 --barrier_updates 1"
    beast(tmp_path, "--env", "PongNoFrameskip-v4", *small.split(), "--total_steps", 10)
    beast(tmp_path, *"--mode test_render --num_episodes 2 --max_episode_steps 6".split())
    path = tmp_path / "run/test.mp4"
    assert f"Video: {path}" in capsys.readouterr().out
    frames = frames_of(path)
    assert len(frames) == 2 * (1 + 6)  # each game's first picture, and one after each step
    assert frames[0].shape == (2 * 210 + video.PANEL, 2 * 160, 3) and frames[0].std() > 0
    panels = [frame[2 * 210 :].astype(int) for frame in frames]
    assert all(abs(after - before).max() > 100 for before, after in pairwise(panels))
    assert [file.name for file in path.parent.glob("*.mp4")] == ["test.mp4"]


def test_the_video_of_a_small_game(savedir):
    beast(savedir, *"--mode test_render --num_episodes 1".split())
    frames = frames_of(savedir / "run/test.mp4")
    assert len(frames) == 1 + 9
    assert frames[0].shape == (480 + video.PANEL, video.MIN_WIDTH, 3)  # 10 x 5, 48 times larger
    board = frames[4][:480]  # centred; videos are not exact
    assert not board[:, :30].any() and (board[:, 40:-40] > 200).any(axis=2).sum() > 40**2


class OldCatch:
    """As in the old Gym: four values from a step, and the mode is given to `render`."""

    observation_space, action_space = Catch.observation_space, Catch.action_space
    metadata = {"render.modes": ["rgb_array"], "video.frames_per_second": 30}

    def __init__(self):
        self._catch = Catch("rgb_array")

    def reset(self):
        return self._catch.reset(seed=0)[0]

    def step(self, action):
        observation, reward, over, _, info = self._catch.step(action)
        return observation, reward, over, info

    def render(self, mode="human"):
        assert mode == "rgb_array", "there is no screen"
        return np.repeat(self._catch.render()[:, :, None], 3, axis=2)

    def close(self):
        pass


def vector_of(make):
    mode = gymnasium.vector.AutoresetMode.NEXT_STEP
    return gymnasium.vector.SyncVectorEnv([make], autoreset_mode=mode)


class FloatCatch(Catch):
    def render(self):
        return [super().render() / 255]  # a history, of colours from 0 to 1


class GreyCatch(Catch):
    def render(self):
        return super().render()[:, :, None]


class UndrawnCatch(Catch):
    def render(self):
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")


class BlindCatch(Catch):
    render = gymnasium.Env.render


VIEWABLE = {
    "old Gym": OldCatch,
    "vector": lambda: vector_of(lambda: Catch("rgb_array")),
    "floats": lambda: FloatCatch("rgb_array"),
}
UNVIEWABLE = {
    "nothing to call": (lambda: make_mock("Mock/4x4", 1), r"has no render\(\) that could draw it"),
    "declared only": (BlindCatch, "is not implemented"),
    "a package lacks": (lambda: UndrawnCatch("rgb_array"), "pygame is not installed"),
    "no mode": (Catch, r"gave NoneType \[\], expected an array .* render_mode='rgb_array'"),
    "no mode in a vector": (lambda: vector_of(Catch), r"gave NoneType \[\], expected"),
    "text": (lambda: gymnasium.make("FrozenLake-v1", render_mode="ansi"), "gave str"),
    "one colour": (lambda: GreyCatch("rgb_array"), r"gave ndarray \[10, 5, 1\], expected"),
}


def show(savedir, make, make_net):
    """Plays a game with an untrained network and makes a video of it."""
    flags = parse(*CATCH, "--mode", "test_render", "--savedir", str(savedir), "--xpid", "run")
    flags.num_episodes = 1
    with contextlib.closing(Environment(make, 1, "TheGame")) as env:
        return evaluate.test(flags, make_net(env.spec, flags), env)


@pytest.mark.parametrize("kind", VIEWABLE)
def test_the_video_of_every_kind_of_environment(kind, tmp_path):
    (tmp_path / "run").mkdir()
    make_net = lambda spec, flags: models.make_net(monobeast.Net, spec, flags)
    (game,) = show(tmp_path, VIEWABLE[kind], make_net)
    frames = frames_of(tmp_path / "run/test.mp4")
    assert len(frames) == 1 + game.steps == 10
    assert all((frame[:480] > 200).any() for frame in frames)


@pytest.mark.parametrize("kind", UNVIEWABLE)
def test_an_environment_without_pictures_is_refused_before_a_game(kind, tmp_path):
    (tmp_path / "run").mkdir()
    make, message = UNVIEWABLE[kind]
    with pytest.raises(UserError, match=f"^--mode test_render: (TheGame.*)?{message}"):
        show(tmp_path, make, lambda spec, flags: None)  # without a network nobody can play
    assert not list((tmp_path / "run").iterdir())


def test_the_panel_shows_the_value_of_this_game_and_where_rewards_came():
    def rows(*values, step=0):
        for i, (value, reward) in enumerate(values):
            numbers = dict(episode_step=step + i, episode_return=0, baseline=value, reward=reward)
            yield {k: np.array([number]) for k, number in numbers.items()}

    def ink(image, color):
        """Columns of the panel in which the curve, without its last point, has this colour."""
        box = image[-video.PANEL + 30 :, 60:-12].astype(int)
        wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
        return (abs(box - wanted).max(axis=2) < 8).any(axis=0)

    panel, picture = video.Panel(), np.zeros((20, 20), np.uint8)
    for row in rows((0.0, 0), (1.0, 1), (0.5, 0), (0.7, -2), *[(0.2, 0)] * 9):
        image = panel.below(picture, row)
    assert image.shape == (480 + video.PANEL, 480, 3)
    assert ink(image, video.VALUE).sum() > 5
    assert ink(image, video.GOOD).any() and ink(image, video.BAD).any()
    for row in rows((3.0, 0)):
        image = panel.below(picture, row)
    assert not any(ink(image, color).any() for color in (video.VALUE, video.GOOD, video.BAD))
    for row in rows(*[(i % 7, 0) for i in range(3 * video.SHOWN)], step=1):
        image = panel.below(picture, row)
    assert ink(image, video.VALUE).all()  # from end to end
