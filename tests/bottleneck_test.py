# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The sentence that says which flag to change: it names what limits, and a flag that exists."""

import re

import pytest

import monobeast
import polybeast
from libtorchbeast.flags import replace
from libtorchbeast.loggers import bottleneck
from libtorchbeast.loggers.bottleneck import advice_for


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(bottleneck, "available_cores", lambda: 2)


def row(actor="environment", waiting=0.0, learner_waiting=0.0, idle=0.0, **more):
    """Columns of a run in which `actor` takes the actors' time, but for their waiting."""
    names = "environment inference transport batching".split()
    shares = {f"share_{n}": (1 - waiting) * (0.7 if n == actor else 0.1) for n in names}
    return shares | {
        "share_actor_waiting": waiting,
        "share_learning": 1 - learner_waiting,
        "share_learner_waiting": learner_waiting,
        "cpu_cores": 2.0 - idle,
        "idle_cores": idle,
        **more,
    }


BEASTS = {"mono": monobeast, "poly": polybeast}
REMOTE = "--server_addresses unix:/a,unix:/b"
LEARNER = dict(waiting=0.5)  # the actors wait for it
ACTORS = dict(learner_waiting=0.5)  # the learner waits for them
BOTH = dict(waiting=0.3, learner_waiting=0.3)
IDLE = dict(idle=1.0)


def of(activity):
    return ACTORS | dict(actor=activity)


CASES = [  # beast, flags, columns, what limits, advice
    ("mono", "--num_actors 2", LEARNER, "The learner", "--num_actors 1"),
    ("mono", "--num_actors 1 --torch_threads 1", LEARNER, "The learner", "--torch_threads 2"),
    ("mono", "--num_actors 1 --torch_threads 2", LEARNER, "The learner", "--batch_size 64"),
    ("mono", "--num_actors 1", ACTORS | IDLE, "The actors", "--num_actors 2"),
    ("mono", "--num_actors 1", ACTORS, "The actors", "PolyBeast"),
    ("mono", "--num_actors 1", of("inference"), "The actors", "--envs_per_actor 128"),
    ("mono", "--num_buffers 128 --num_actors 1", BOTH, "Actors and learner", "--num_buffers 256"),
    ("mono", "--num_actors 1", IDLE, "Nobody", "--num_actors 2"),
    ("mono", "--num_actors 1", {}, "Nobody", "only a faster machine"),
    ("poly", "--torch_threads 2", LEARNER, "The learner", "--batch_size 64"),
    ("poly", "", ACTORS | IDLE, "environment takes 70%", "--num_servers 2"),
    ("poly", "", ACTORS, "environment takes 70%", "--server_addresses"),
    ("poly", REMOTE, ACTORS, "environment takes 70%", "start more servers"),
    ("poly", REMOTE, IDLE, "Nobody", "more servers"),
    ("poly", REMOTE, of("transport"), "transport takes 70%", "servers with more --envs_per_server"),
    ("poly", "", of("transport"), "transport takes 70%", "--envs_per_server 128"),
    ("poly", "", of("batching"), "batching takes 70%", "--envs_per_server 128"),
    ("poly", "", of("inference"), "inference takes 70%", "--envs_per_server 128"),
    ("poly", "--max_learner_queue_size 40", BOTH, "Actors and learner", "_queue_size 80"),
]


def parse(beast, line):
    common = "--env CartPole-v1" + " --num_servers 1" * (beast == "poly" and REMOTE not in line)
    return BEASTS[beast].parse([*common.split(), *line.split()])


def advice(beast, line, columns, **changes):
    return advice_for(columns, replace(parse(beast, line), **changes))


@pytest.mark.parametrize("beast, line, columns, limits, change", CASES)
def test_advice(beast, line, columns, limits, change):
    said = advice(beast, line, row(**columns))
    assert limits in said and change in said
    for flag, value in re.findall(r"--(\w+) (\d+)", said):  # which can be typed as it stands
        assert getattr(parse(beast, f"{line} --{flag} {value}"), flag) == int(value)


@pytest.mark.parametrize(
    "beast, line, learner_waiting",
    [("mono", "--num_actors 1", 0.0), ("mono", "--num_actors 1", 0.5), ("poly", "", 0.5)],
)
def test_other_programs_are_not_taken_for_the_run(beast, line, learner_waiting):
    columns = row(learner_waiting=learner_waiting)
    for own, others in (0.5, 1.5), (1.2, 0.8):
        said = advice(beast, line, columns | {"cpu_cores": own})
        assert f"ther programs use {others} of 2 cores" in said and "all cores" not in said
    assert "all cores are busy" in advice(beast, line, columns | {"cpu_cores": 1.9})


def test_a_gpu_that_always_answers_gets_another_thread_and_threads_of_the_cpu_are_not_its_cure():
    columns = row(actor="inference", learner_waiting=0.5, share_answer_waiting=0.05)
    said = advice("poly", "", columns, inference_device="cuda")
    assert "--num_inference_threads 2" in said
    line = "--num_actors 1 --torch_threads 1"
    assert "--batch_size 64" in advice("mono", line, row(waiting=0.5), learner_device="cuda")


def test_lines_name_whose_time_it_is():
    flags = parse("mono", "--num_actors 1")
    assert bottleneck.report({}, flags) == []
    columns = row(waiting=0.5) | {"share_answering": 0.25}
    lines = bottleneck.report(columns, flags)
    assert lines[0].startswith("actors: environment 35%") and lines[0].endswith("waiting 50%")
    assert lines[1] == "inference threads: answering 25%"
    assert lines[2] == "learner: learning 100%, waiting 0%"
    assert lines[3].endswith("cores: 2.0 busy with this, 0.0 idle")
    assert lines[4].startswith("The learner limits this run")
