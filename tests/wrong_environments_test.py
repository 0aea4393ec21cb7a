# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A wrong environment ends a run in one line, before anything is trained or written."""

import re

import pytest

import monobeast
import polybeast_env
from libtorchbeast.errors import cause, errors_of, report
from libtorchbeast.flags import UserError
from tests.support import monobeast as mono
from tests.support import polybeast as poly
from tests.support.envs import BreakingCatch, Catch
from tests.support.wrong_envs import WRONG

pytestmark = pytest.mark.usefixtures("as_before")


def name_of(wrong):
    return f"tests.support.wrong_envs:{wrong}-v0"


STILLBORN = name_of("Stillborn")


@pytest.mark.parametrize(
    ("flag", "others"), [("env", ""), ("eval_env", "tests.support.envs:OneStepCatch-v0,")]
)
def test_monobeast_says_it_in_one_line_before_the_training(tmp_path, flag, others):
    message = mono.refusal(tmp_path, *mono.CATCH, f"--{flag}", others + STILLBORN)
    assert message.startswith(f"monobeast: error: --{flag} {STILLBORN}: RuntimeError"), message
    assert re.search(WRONG["Stillborn"], message), message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", WRONG)
def test_the_first_server_says_it_in_one_line(wrong):
    """Its process sends a report, of which `cause` takes the line for the terminal."""
    flags = polybeast_env.parse(["--env", name_of(wrong), "--num_servers", "1"])
    with pytest.raises(UserError) as refused, errors_of(flags.env):
        polybeast_env.try_environment(flags)
    line = cause(report(refused.value))
    assert re.search(WRONG[wrong], line), line


def test_polybeast_ends_with_what_its_server_said(tmp_path):
    flags = ["--env", STILLBORN, "--num_servers", 2, "--net", "monobeast.Net"]
    message = poly.refusal(tmp_path, *flags)
    assert message.startswith("the local environment servers ended: --env tests.support.wrong_envs")
    assert re.search(WRONG["Stillborn"], message), message


@pytest.mark.parametrize("returned", [None, Catch])
def test_create_env_without_a_return_or_with_a_class_is_named(returned, tmp_path, monkeypatch):
    monkeypatch.setattr(monobeast, "create_env", lambda flags: returned)
    message = mono.refusal(tmp_path, *mono.IN_ORDER)
    expected = "has no reset; expected an environment (does create_env lack a return?)"
    assert f"create_env returned {returned}, which {expected}" in message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mine/Mine-v0", "name the module too: MODULE:mine/Mine-v0"),
        ("tests.support.envs:Mine-v0", "Environment `Mine` doesn't exist."),
        (":Foo-v0", "--env :Foo-v0: expected ID or MODULE:ID, seen no module before the colon"),
        ("ALE/Pong", "expected one like 'PongNoFrameskip-v4' or 'ALE/Pong-v5'"),
    ],
)
def test_an_id_that_is_almost_right_gets_one_sentence(name, expected, tmp_path):
    assert mono.refusal(tmp_path, *mono.IN_ORDER, "--env", name).endswith(expected)


def test_an_environment_that_raises_later_is_one_line_too(savedir, tmp_path, monkeypatch):
    """In turns with the learner, and in a test mode. A generator, as that of the rollouts, turns a
    StopIteration into a RuntimeError."""
    name = "tests.support.envs:BreakingCatch-v0"
    one_by_one = ["--mode", "test", "--envs_per_actor", 1]
    for flags in ([tmp_path, *mono.IN_ORDER], [savedir, *one_by_one]):
        message = mono.refusal(*flags, "--env", name)
        said = "RuntimeError: the ball has rolled under the sofa"
        assert re.search(rf"--env {name}: {said} \(.*:\d+, in lose_the_ball\)$", message), message
    monkeypatch.setattr(BreakingCatch, "lose_the_ball", lambda self: next(iter([])))  # no levels
    message = mono.refusal(tmp_path, *mono.IN_ORDER, "--env", name)
    assert re.search(rf"--env {name}: StopIteration.* \(.*:\d+, in ", message), message


def test_a_networks_own_error_keeps_its_traceback():
    """It is no environment's fault, though the environment is open."""
    with pytest.raises(ZeroDivisionError), errors_of("Some-v0"):
        1 / 0  # noqa: B018
