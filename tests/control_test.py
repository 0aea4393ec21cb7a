# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Box actions are learned with the defaults, by either beast, in three seconds of CPU time each."""

import math

import pytest
import torch

import polybeast
from libtorchbeast.checkpoint import load, save
from libtorchbeast.loggers.csv_table import read_csv
from tests.support.monobeast import beast, refusal

pytestmark = pytest.mark.usefixtures("one_thread", "as_before")
CRANE = "--env tests.support.control:Crane-v0 --eval_every 0 --log_every 0.5".split()
STEPS = ["--total_steps", "20000"]
SOLVED = -20.0  # a network that does nothing has -53, and one without the moments less than -30


def last_return(savedir):
    _, rows = read_csv(savedir / "run/logs.csv")
    return float(rows[-1]["mean_game_return"])


def test_monobeast_solves_a_control_task_with_large_observations(tmp_path, capsys):
    beast(tmp_path, *CRANE, *STEPS, "--num_actors", 0)
    assert last_return(tmp_path) > SOLVED
    state = load(tmp_path / "run/model.tar")
    assert state["net"] == "libtorchbeast.models.VectorNet"
    assert state["model"]["moments.mean"][0] == pytest.approx(2000, rel=0.2)  # millimetres
    assert "Recipe for vectors: --envs_per_actor 16" in capsys.readouterr().err


def test_polybeast_solves_it_too_and_monobeast_plays_its_checkpoint(tmp_path, capsys):
    """Its servers, which know the environment, choose the number of environments. The test mode
    uses the checkpoint's moments, and does not change them. Its learner and its servers share the
    processor unevenly, so it gets half as many steps again."""
    steps = ["--total_steps", "30000"]
    words = ["--savedir", tmp_path, "--xpid", "run", *CRANE, *steps, "--num_servers", 1]
    polybeast.main([*map(str, words)])
    assert last_return(tmp_path) > SOLVED
    assert "16 environments per stream" in capsys.readouterr().err
    beast(tmp_path, "--mode", "test", "--greedy")
    said = capsys.readouterr().out
    mean = float(said.split("Mean return ")[1].split(",")[0])
    assert mean > SOLVED
    state = load(tmp_path / "run/model.tar")
    state["model"]["moments.mean"] = torch.zeros(2)
    save(str(tmp_path / "run/model.tar"), state)
    beast(tmp_path, "--mode", "test", "--greedy")
    spoilt = float(capsys.readouterr().out.split("Mean return ")[1].split(",")[0])
    assert spoilt < mean and not math.isclose(spoilt, mean)


def test_a_run_of_an_older_version_keeps_its_network_and_its_scales(tmp_path, capsys):
    """Version 0.6 had monobeast.Net for vectors, and neither moments nor recipes for them."""
    old = "--net monobeast.Net --observation_scaling none --reward_scaling none --passes 1 "
    old += "--minibatches 1"
    words = [*CRANE, *old.split(), "--envs_per_actor", 8, "--unroll_length", 5, "--num_actors", 0]
    beast(tmp_path, *words, "--total_steps", 300)
    path = str(tmp_path / "run/model.tar")
    state = load(path)
    newer = (
        "observation_scaling",
        "reward_scaling",
        "passes",
        "minibatches",
        "ppo_clip",
    )
    state["flags"] = {k: v for k, v in state["flags"].items() if k not in newer} | {"net": None}
    save(path, state)
    beast(tmp_path, "--mode", "test", "--num_episodes", 1)
    beast(tmp_path, "--total_steps", 600)
    after = load(path)
    assert after["step"] >= 600 and after["net"] == "monobeast.Net"
    assert not any(name.startswith("moments") for name in after["model"])
    assert "Recipe" not in capsys.readouterr().err.split("Resuming")[1]
    older = dict(observation_scaling="none", reward_scaling="none", passes=1)
    older |= dict(minibatches=1, ppo_clip=0.0)
    assert after["flags"] | {"net": None} == state["flags"] | older | {"total_steps": 600}
    message = refusal(tmp_path, "--observation_scaling", "moments")
    assert "model.tar does not match the flags in `shapes`" in message and "moments.mean" in message
