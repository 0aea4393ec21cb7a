# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Box actions are learned with the defaults, by either beast, in three seconds of CPU time each."""

import re

import pytest
import torch

from libtorchbeast.checkpoint import load, save
from tests.support.monobeast import beast
from tests.support.polybeast import beast as poly
from tests.support.processes import rows

pytestmark = pytest.mark.usefixtures("as_before")
CRANE = "--env tests.support.control:Crane-v0 --eval_every 0 --log_every 0.5".split()
SOLVED = -20.0  # a network that does nothing has -53, and one without the moments less than -30


def last_return(savedir):
    return rows(savedir / "run")[-1]["mean_game_return"]


def played_return(savedir, capsys):
    beast(savedir, "--mode", "test", "--greedy")
    return float(re.search("Mean return ([-.0-9]+),", capsys.readouterr().out)[1])


def test_monobeast_solves_a_control_task_with_large_observations(tmp_path, capsys):
    beast(tmp_path, *CRANE, "--total_steps", 20_000, "--num_actors", 0)
    assert last_return(tmp_path) > SOLVED
    state = load(tmp_path / "run/model.tar")
    assert state["net"] == "libtorchbeast.models.VectorNet"
    assert state["model"]["moments.mean"][0] == pytest.approx(2000, rel=0.2)  # millimetres
    assert "Recipe for vectors: --envs_per_actor 16" in capsys.readouterr().err


def test_polybeast_solves_it_too_and_monobeast_plays_its_checkpoint(tmp_path, capsys):
    """Its servers, which know the environment, choose the number of environments. The test mode
    uses the checkpoint's moments, and does not change them. Its learner and its servers share the
    processor unevenly, so it gets twice as many steps."""
    poly(tmp_path, *CRANE, "--total_steps", 40_000, "--num_servers", 1)
    assert last_return(tmp_path) > SOLVED
    assert "16 environments per stream" in capsys.readouterr().err
    mean = played_return(tmp_path, capsys)
    assert mean > SOLVED
    state = load(tmp_path / "run/model.tar")
    state["model"]["moments.mean"] = torch.zeros(2)
    save(str(tmp_path / "run/model.tar"), state)
    assert played_return(tmp_path, capsys) < mean
