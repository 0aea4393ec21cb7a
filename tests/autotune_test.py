# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""--autotune keeps what is faster, drops its trials, and goes on with the winner."""

import shlex

import pytest

import monobeast
import polybeast
from libtorchbeast.flags import UserError, from_settings, given
from libtorchbeast.tools import autotune
from tests.support.processes import rows

SPEEDS = {}


@pytest.fixture
def measured(monkeypatch):
    """Replaces trials. The speed of one is the product of `speeds[flag, value]` over its flags."""
    trials = []

    def measure(beast, settings, seconds, folder):
        trials.append(autotune.as_words(settings))
        flags = make_flags({"monobeast": monobeast, "polybeast": polybeast}[beast], settings)
        if 32 in (getattr(flags, "envs_per_actor", 0), getattr(flags, "envs_per_server", 0)):
            raise RuntimeError("Traceback\nMemoryError: too many environments")
        return speed_of(flags)

    def speed_of(flags):
        speed = 100.0
        for (name, value), factor in SPEEDS.items():
            speed *= factor if getattr(flags, name, None) == value else 1.0
        return speed

    monkeypatch.setattr(autotune, "measure", measure)
    yield trials
    SPEEDS.clear()


def make_flags(beast, settings):
    return beast.check_flags(from_settings(beast.make_parser(), settings))


def tune(beast, line):
    """The flags that were found to be better than those given."""
    given_flags = given(beast.make_parser(), shlex.split(line))
    make = lambda settings: make_flags(beast, settings)
    before = make(given_flags)
    after = autotune.tune(beast.__name__, given_flags, make, beast.KNOBS)
    return {k: v for k, v in vars(after).items() if k in beast.KNOBS and v != getattr(before, k)}


def test_the_fastest_wins_knob_after_knob(measured, capsys, monkeypatch):
    monkeypatch.setattr(autotune.workers, "available_cores", lambda: 4)
    SPEEDS.update({("num_actors", 3): 1.5, ("num_actors", 4): 1.4, ("envs_per_actor", 64): 2.0})
    best = tune(monobeast, "--env CartPole-v1 --envs_per_actor=16 --autotune 5 --seed 3")
    assert best == {"num_actors": 3, "torch_threads": 1}  # one core is left for the learner
    SPEEDS[("envs_per_actor", 128)] = 1.2
    best = tune(monobeast, "--env CartPole-v1 --autotune")
    assert best == {"num_actors": 3, "torch_threads": 1}  # 64 is the default, better than 128
    printed = capsys.readouterr().err
    assert "autotune: --num_actors 3: 150 steps/s" in printed
    assert "fails: MemoryError: too many environments" in printed
    assert "fastest: --num_actors 3 (1.50 x the speed of the given flags)\n" in printed


def test_less_than_noise_is_no_gain(measured):
    SPEEDS.update({("num_actors", n): 1.02 for n in (2, 3)})
    assert tune(monobeast, "--env CartPole-v1 --autotune=1 --num_buffers 9999") == {}


def test_servers_elsewhere_are_as_they_are(measured):
    SPEEDS[("num_actors", 4)] = 1.1
    given = "--env CartPole-v1 --server_addresses unix:/a,unix:/b --autotune"
    assert tune(polybeast, given + " --num_actors 2") == {}
    assert not any("--num_servers" in t or "--envs_per_server" in t for t in measured)
    assert tune(polybeast, given) == {"num_actors": 4}


def test_the_timeout_is_tried_only_with_a_batch_to_wait_for(measured):
    flags = "--env CartPole-v1 --num_servers 2 --num_actors 2 --envs_per_server 8 --autotune"
    tune(polybeast, flags + " --min_inference_batch_size 1")
    assert not any("--inference_timeout_ms" in trial for trial in measured)
    SPEEDS.update({("min_inference_batch_size", 16): 1.2, ("inference_timeout_ms", 3.0): 1.2})
    found = tune(polybeast, flags)
    assert found == {"min_inference_batch_size": 16, "inference_timeout_ms": 3}


def test_what_does_not_run_as_given_is_refused(measured):
    with pytest.raises(UserError, match="a run with these flags fails"):
        tune(monobeast, "--env CartPole-v1 --envs_per_actor 32 --autotune")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("beast", [monobeast, polybeast])
def test_real_trials_and_then_the_run(beast, tmp_path, capfd):
    """Only one knob is left to tune. The run that follows trains to its end."""
    given = {
        monobeast: "--envs_per_actor 8",
        polybeast: "--net monobeast.Net --num_servers 1 --envs_per_server 8 "
        "--min_inference_batch_size 1",
    }[beast]
    line = f"--env tests.support.envs:Catch-v0 --batch_size 8 {given} "
    line += "--total_steps 500 --autotune 0.5"
    beast.main([*line.split(), "--savedir", str(tmp_path), "--xpid", "run"])
    printed = capfd.readouterr().err
    assert printed.count("autotune: --num_actors 2: ") == 1
    assert "autotune: fastest: " in printed
    assert rows(tmp_path / "run")[-1]["step"] >= 500
    assert {path.name for path in tmp_path.iterdir()} == {"run", "latest"}


def test_a_run_that_fails_is_told_with_its_last_line(tmp_path):
    with pytest.raises(RuntimeError, match="doesn't exist"):
        autotune.measure("monobeast", {"env": "NoSuchThing-v0"}, 1.0, tmp_path)
