# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast counts, stops and fails as promised: real processes, servers and signals. It learns in
spaces_test.py and several_learners_test.py."""

import contextlib
import os
import re
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest
import torch

import monobeast
import polybeast
from libtorchbeast import learner
from libtorchbeast.flags import UserError
from libtorchbeast.spec import Actions, Spec
from tests.support.client import free_port
from tests.support.envs import Catch
from tests.support.polybeast import CATCH, FOREVER, SMALL, Poly, beast, parse, refusal
from tests.support.pools import serving
from tests.support.processes import GUARD_S, load, rows, wait_for

pytestmark = pytest.mark.usefixtures("as_before")


def beast_beside(function, savedir, *flags):
    """Runs PolyBeast in this process, and the function in a thread beside it."""
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(function)
        try:
            beast(savedir, *flags)
        finally:
            beside.result()


# ===================================================================================== counting
def test_threads_of_either_kind_count_every_step_once(tmp_path, monkeypatch):
    """In an endless episode every transition is real, so each update is worth exactly T x B. With
    an LSTM, and streams whose environments fill no batch exactly."""
    flags = "--num_servers 2 --num_actors 3 --envs_per_server 3 --num_inference_threads 2"
    flags += " --num_learner_threads 2 --use_lstm --total_steps 800 --torch_threads 1"
    flags += " --env tests.support.envs:EndlessCatch-v0"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    beast(tmp_path, *SMALL, *flags.split())
    assert not list(tmp_path.glob("torchbeast*"))  # the folder of the sockets is gone
    state = load(tmp_path / "run")
    assert state["flags"]["core"] == "lstm" and state["step"] == state["updates"] * 20 * 4
    assert 800 <= state["step"] < 800 + 2 * 20 * 4
    last = rows(tmp_path / "run")[-1]
    assert (last["step"], last["updates"]) == (state["step"], state["updates"])
    assert last["streams"] == 3


# ============================================================================ starting, stopping
class Hanging(monobeast.Net):
    """A network whose second update does not end until `go_on` is set."""

    learned, go_on = 0, threading.Event()

    def forward(self, inputs, core_state=()):
        if torch.is_grad_enabled():
            Hanging.learned += 1
            assert self.learned < 2 or self.go_on.wait(GUARD_S)
        return super().forward(inputs, core_state)


def test_an_update_that_hangs_does_not_keep_a_run_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(learner, "CLOSE_S", 1.0)
    Hanging.learned = 0
    stop = lambda: (wait_for(lambda: Hanging.learned == 2), signal.raise_signal(signal.SIGTERM))
    flags = [*FOREVER, "--net", f"{__name__}.Hanging", "--checkpoint_every", 1]
    try:
        with pytest.raises(learner.UpdateHung, match="an update has not ended within 1 s"):
            beast_beside(stop, tmp_path, *flags)
    finally:
        Hanging.go_on.set()
    assert "UpdateHung" in (tmp_path / "run/out.log").read_text()


# ==================================================================================== failing well
def test_a_killed_learner_leaves_nothing_though_the_parent_of_its_servers_is_stopped(tmp_path):
    with Poly(tmp_path, *FOREVER) as program:
        program.wait_for_step(0)
        os.kill(psutil.Process(min(program.servers())).ppid(), signal.SIGSTOP)
        os.kill(program.pid, signal.SIGKILL)
        program.wait_until_nothing_is_left()


def test_servers_that_come_late_go_come_back_and_go_for_good(tmp_path, monkeypatch, capsys):
    """The learner asks no proxy. The servers have more environments than --envs_per_server, which
    is for local ones."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    addresses = sorted([f"unix:{tmp_path}/s", f"127.0.0.1:{free_port()}"])
    flags = [*CATCH, *"--envs_per_server 1 --batch_size 4 --log_every 0.5".split()]
    flags += ["--total_steps", 1_000_000_000, "--server_addresses", ",".join(addresses)]
    path, said = tmp_path / "run", []

    def servers():
        stack = contextlib.ExitStack()
        for address in addresses:
            stack.enter_context(serving(Catch, address, 4, name=CATCH[1]))
        return stack

    def is_waiting():
        said.append(capsys.readouterr().err)
        return "Waiting for a server" in "".join(said)

    def wait_for_streams(number):
        wait_for(lambda: rows(path) and rows(path)[-1]["streams"] == number)

    def learn_from_both():
        wait_for_streams(2)
        step = rows(path)[-1]["step"]
        wait_for(lambda: rows(path)[-1]["step"] > step)

    def come_late_go_and_come_back():
        wait_for(is_waiting)
        with servers():
            learn_from_both()
        wait_for_streams(0)
        with servers():
            learn_from_both()
            signal.raise_signal(signal.SIGTERM)

    beast_beside(come_late_go_and_come_back, tmp_path, *flags)
    log, before = (path / "out.log").read_text(), load(path)["step"]
    assert rows(path)[-1]["stream_failures"] >= 2
    for address in addresses:
        why = "there is no such socket" if address.startswith("unix:") else r"[A-Z_]+: \w+"
        assert re.search(f"Waiting .*{address}: {why}", log)
        assert re.search(rf"Stream failed: .*{address}: (UNAVAILABLE|CANCELLED): \w+", log)

    with servers() as serving_still, pytest.raises(SystemExit) as ended:
        go_for_good = lambda: (learn_from_both(), serving_still.close())
        beast_beside(go_for_good, tmp_path, *flags, "--server_timeout", 2)
    first, *errors = ended.value.code.splitlines()
    lost = "no environment server for 2 s (--server_timeout); the last errors:"
    assert first == f"polybeast: error: {lost}"
    for address, line in zip(addresses, errors, strict=True):
        assert re.match(rf"  {address}: [A-Z_]+: \w+", line)
    assert "Traceback" not in capsys.readouterr().err
    assert "ServersLost" in (path / "out.log").read_text()
    assert load(path)["step"] == rows(path)[-1]["step"] > before


def test_an_environment_that_cannot_begin_ends_the_run_at_once(tmp_path):
    flags = ["--env", "tests.support.envs:StillbornCatch-v0", "--num_servers", 2]
    message = refusal(tmp_path, *FOREVER, *flags)
    assert message.startswith("no stream has completed a rollout, and all failures are alike: ")
    assert "RuntimeError: the sofa does not fit through the door (/" in message


def test_a_stream_may_open_as_long_as_each_of_its_environments_comes_in_time():
    flags = parse(*CATCH, *"--num_servers 2 --num_actors 3 --open_timeout 7".split())
    description = SimpleNamespace(num_envs=64)
    servers = polybeast.Servers(["unix:/a", "unix:/b"], description, check=lambda: None)
    assert polybeast.longest_opening(flags, servers) == 300 + 2 * 64 * 7


SERVED = "--server_addresses {}"  # which serves Catch-v0 under another name


@pytest.mark.parametrize("flags, message", [
    (SERVED, "--env tests.support.envs:Catch-v0: expected Other-v0, as the servers have$"),
    (f"{SERVED} --env Other-v0 --net polybeast.Net --eval_env CartPole-v1",
     r"--eval_env CartPole-v1: polybeast\.Net reads images"),
    ("--env CartPole-v1 --net polybeast.Net", r".*polybeast\.Net reads images"),
    ("--unroll_length 1000000000", "--unroll_length 10{9}: expected a smaller number, or fewer"),
])  # fmt: skip
def test_a_mistake_is_one_line(address, tmp_path, capfd, flags, message):
    with serving(Catch, address, 4, name="Other-v0"):
        assert re.match(message, refusal(tmp_path, *SMALL, *flags.format(address).split()))
    assert "Traceback" not in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flags, threads, of_mono", [
    ("", 8, 5),  # a deep network
    ("--env CartPole-v1", 4, 5),  # leaves half of the cores
    ("--net monobeast.Net", 4, 5),
    ("--torch_threads 3", 3, 3),
    ("--inference_device cuda", 8, 5),
    ("--learner_device cuda --inference_device cuda", 1, 1),  # computes nothing on the CPU
    ("--learner_device cuda --inference_device cpu", 8, 1),
])  # fmt: skip
def test_how_many_threads_torch_gets_on_eight_cores(monkeypatch, flags, threads, of_mono):
    monkeypatch.setattr(polybeast.workers, "available_cores", lambda: 8)
    monkeypatch.setattr(polybeast.devices, "exists", lambda name: True)
    assert polybeast.parse(flags.split()).torch_threads == threads
    assert monobeast.parse([*flags.split(), "--num_actors", "3"]).torch_threads == of_mono


@pytest.mark.parametrize("flags, message", [
    ("--num_actors 7", "expected at most --num_servers x --max_streams = 6"),
    ("--server_timeout 1e12", "expected .* at most"),
    ("--step_timeout 1e12", "expected .* at most"),
    ("--max_learner_queue_size 7", "expected at least --batch_size 8"),
    ("--xpid a/b", "expected a plain folder name"),
])  # fmt: skip
def test_a_flag_that_cannot_work_is_refused_with_its_value_and_range(flags, message):
    """docs/flags.md has all other ranges, and flags_test.py how they are told."""
    words = "--env CartPole-v1 --batch_size 8 --num_servers 2 --max_streams 3".split()
    with pytest.raises(UserError, match=f"^{flags}: {message}"):
        parse(*words, *flags.split())


def test_a_foreign_servers_mask_that_forbids_all_is_refused():
    parts = {"action_mask": ((2,), "int8")}
    spec = Spec("cards", 2, parts, Actions("discrete", (2,)))
    mask, ended = torch.ones(3, 2, 2, dtype=torch.int8), torch.zeros(3, 2, dtype=torch.bool)
    batch = {"action_mask": mask, "terminated": ended, "truncated": ended.clone(), "done": ended}
    assert list(polybeast.checked(spec, iter([batch]))) == [batch]
    mask[1, 1] = 0
    with pytest.raises(UserError, match="'action_mask' of environment 1: expected an allowed"):
        next(polybeast.checked(spec, iter([batch])))
    batch["truncated"][1, 1] = True  # its last row may
    assert next(polybeast.checked(spec, iter([batch]))) is batch


def test_a_foreign_servers_number_beyond_its_set_is_refused():
    spec = Spec("cards", 2, {"suit": ((), "int64")}, Actions("discrete", (2,)), sets={"suit": 4})
    batch = {"suit": torch.tensor([[0, 3]])}
    assert list(polybeast.checked(spec, iter([batch]))) == [batch]
    batch["suit"][0, 0] = 4
    with pytest.raises(UserError, match="'suit': expected 0 to 3, seen 4"):
        next(polybeast.checked(spec, iter([batch])))
