# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MonoBeast's learner opens no environment: the first actor tells what one is like, and goes on."""

import re

import pytest

import monobeast
from libtorchbeast import opening
from libtorchbeast.flags import UserError, replace
from tests.support.monobeast import beast, parse, refusal

pytestmark = pytest.mark.usefixtures("as_before")
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
def unruly(tmp_path, monkeypatch):
    """A folder with the module of the environments, which is the working directory."""
    (tmp_path / "unruly.py").write_text(UNRULY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flags_of(name):
    words = "--num_actors 1 --envs_per_actor 4 --batch_size 4 --total_steps 100 --eval_every 0"
    return [*words.split(), "--env", f"unruly:{name}-v0"]


def test_what_an_environment_does_to_its_process_is_not_done_to_the_learners(unruly, capfd):
    beast("runs", *flags_of("Unruly"))
    assert "complete. " in (unruly / "runs/run/out.log").read_text()
    printed = capfd.readouterr()
    processes = re.findall(r"actor-0: the ball is round in (\d+)", printed.err)
    assert processes == processes[:1] * (1 + 4)  # that of the first environment is the actor's
    assert not printed.out


def test_an_environment_that_cannot_be_opened_again_fails_once(unruly):
    beast("runs", *flags_of("Once"))
    log = (unruly / "runs/run/out.log").read_text()
    assert log.count("Actor 0 failed; ") == 1 and "it has been shut down for ever" in log


def test_a_crash_of_the_first_environment_is_told(unruly, capfd):
    told = refusal("runs", *flags_of("Crashing"))
    assert "in step" in capfd.readouterr().err  # faulthandler's line
    assert told.startswith("monobeast: error: --env unruly:Crashing-v0: the process that opened")
    assert told.endswith("ended without a traceback (exit code -11: Segmentation fault)")


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
