# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The beasts train whole on the simulated device: with threads, evaluation, checkpoint, resume."""

import types

import pytest
import torch

import warpbeast
from libtorchbeast import learner
from libtorchbeast.tensors import TensorVector
from tests.support import polybeast as poly
from tests.support import simulated_device as sim
from tests.support.processes import load, rows
from tests.support.tensors import Foreign, Walk

pytestmark = [sim.needs_simulated_device, pytest.mark.usefixtures("as_before")]

SMALL = "--unroll_length 5 --checkpoint_every 1 --torch_threads 1".split()


def train(monkeypatch, savedir, beast, flags, graphs=0):
    """A run, and its resume. Nothing of it may be out of order on the device. In each there are
    `graphs` replays or more, and nothing that should have a graph has none."""
    monkeypatch.setattr(learner, "threading", types.SimpleNamespace(RLock=sim.RLock))
    with sim.installed():
        for steps in (150, 300):
            beast(savedir, *flags, *SMALL, "--total_steps", steps)
            assert sim.counts["kernels"] > 500 and sim.counts["graphs"] >= graphs
            state, last = load(savedir / "run"), rows(savedir / "run")[-1]
            assert steps <= state["step"] == last["step"] < steps + 100
            assert last["skipped_updates"] == 0 and last["updates"] == state["updates"]
    assert "its results are not those" not in (savedir / "run" / "out.log").read_text()
    tensors = [*state["model"].values(), *state["optimizer"]["state"][0].values()]
    assert all(tensor.isfinite().all() for tensor in tensors if torch.is_tensor(tensor))
    assert all(tensor.abs().max() < 1e3 for tensor in state["model"].values())


def test_polybeast_with_an_lstm_learns_on_one_device_and_acts_on_another(monkeypatch, tmp_path):
    flags = "--use_lstm --num_inference_threads 2 --learner_device sim:0 --inference_device sim:1"
    flags += " --num_learner_threads 2 --eval_every 100 --num_episodes 1"
    own = [*poly.SMALL, *flags.split()]
    train(monkeypatch, tmp_path, poly.beast, own, graphs=10)  # of inference
    assert rows(tmp_path / "run")[-1]["streams"] == 1
    said = (tmp_path / "run" / "out.log").read_text()
    assert "graphs: update no" in said and "graphs: inference 3 sizes" in said


def test_warpbeast_learns_from_a_vector_on_its_device(monkeypatch, tmp_path):
    make = lambda flags, device: Foreign(TensorVector(Walk("box"), flags.num_envs), device)
    monkeypatch.setattr(warpbeast, "create_env", make)
    waits, update = [], learner.Learner.update

    def counted(*args, **options):
        before = sim.counts["waits"]
        numbers = update(*args, **options)
        waits.append(sim.counts["waits"] - before)
        return numbers

    def warp(savedir, *flags):
        words = ["--savedir", savedir, "--xpid", "run", *"--num_envs 8 --batch_size 4".split()]
        warpbeast.main([str(word) for word in (*words, *flags)])

    monkeypatch.setattr(learner.Learner, "update", counted)
    train(monkeypatch, tmp_path, warp, ["--use_lstm", "--learner_device", "sim", "--eval_every", 0])
    assert set(waits) == {1}
