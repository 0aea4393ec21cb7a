# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MonoBeast's learner opens no environment: the first actor tells what one is like, and goes on."""

import os
import re
import subprocess
import sys

import pytest

import monobeast
from libtorchbeast import opening
from libtorchbeast.flags import UserError, replace
from tests.support.monobeast import parse
from tests.support.processes import ROOT

OWN = (
    lambda spec: None, monobeast.act, monobeast.create_env, monobeast.Net, monobeast.Actor
)  # fmt: skip
UNRULY = """
import ctypes, os, signal
import gymnasium, numpy as np, torch
from tests.support.envs import Catch

class Unruly(Catch):
    def __init__(self):
        super().__init__()
        os.makedirs("elsewhere", exist_ok=True)
        os.chdir("elsewhere")
        np.seterr(all="raise")
        torch.set_default_dtype(torch.float64)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("the ball is round in", os.getpid())
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 1e-50, *rest

class Crashing(Catch):
    def step(self, action):
        ctypes.string_at(0)

class Once(Catch):
    is_open = None
    def __init__(self):
        super().__init__()
        assert Once.is_open is not False, "it has been shut down for ever"
        Once.is_open = True
    def close(self):
        Once.is_open = False

for env in (Unruly, Crashing, Once):
    gymnasium.register(f"{env.__name__}-v0", env)
"""


@pytest.fixture
def train(tmp_path):
    (tmp_path / "unruly.py").write_text(UNRULY)

    def run(*flags):
        words = "--savedir runs --xpid run --num_actors 1 --envs_per_actor 4 --batch_size 4".split()
        words += ["--total_steps", "500", "--eval_every", "0", *flags]
        path = os.pathsep.join([str(tmp_path), str(ROOT)])
        return subprocess.run(
            [sys.executable, "-m", "monobeast", *words], cwd=tmp_path, text=True,
            capture_output=True, env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip

    return run


def test_what_an_environment_does_to_its_process_is_not_done_to_the_learners(train, tmp_path):
    done = train("--env", "unruly:Unruly-v0")
    assert done.returncode == 0, done.stderr
    assert "complete. " in (tmp_path / "runs/run/out.log").read_text()
    processes = re.findall(r"actor-0: the ball is round in (\d+)", done.stderr)
    assert processes == processes[:1] * (1 + 4)  # that of the first environment is the actor's
    assert not done.stdout


def test_an_environment_that_cannot_be_opened_again_fails_once(train, tmp_path):
    done = train("--env", "unruly:Once-v0")
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "runs/run/out.log").read_text()
    assert log.count("Actor 0 failed; ") == 1 and "it has been shut down for ever" in log


def test_a_crash_of_the_first_environment_is_told(train):
    done = train("--env", "unruly:Crashing-v0")
    assert done.returncode == 1
    assert "in step" in done.stderr  # faulthandler's line
    *_, last = done.stderr.splitlines()
    assert last.startswith("monobeast: error: --env unruly:Crashing-v0: the process that opened")
    assert last.endswith("ended without a traceback (exit code -11: Segmentation fault)")


def test_too_many_actors_are_refused_before_their_memory_is_reserved(monkeypatch):
    monkeypatch.setattr(opening, "ActorMemory", None)
    flags = parse("--num_actors", 10**6, "--num_buffers", 10**6, "--envs_per_actor", 1)
    with (
        pytest.raises(UserError, match="open files would be needed"),
        opening.describe(flags, *OWN),
    ):
        pass


def test_the_number_of_actors_cannot_depend_on_the_environment():
    """A fork's recipe might have one. The first actor starts before the environment is known."""
    for before, after in ((1, 2), (0, 2)):
        flags = parse("--env", "tests.support.envs:Catch-v0", "--num_actors", before)
        complete = lambda spec, flags=flags, after=after: replace(flags, num_actors=after)
        said = f"^--num_actors 2: expected {before}, whatever the environment is"
        with pytest.raises(UserError, match=said), opening.describe(flags, complete, *OWN[1:]):
            pass
