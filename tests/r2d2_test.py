# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""R2D2 learns, remembers, replays what was seen, and resumes: with real servers and processes."""

import copy
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

import r2d2
from libtorchbeast import models, transitions
from libtorchbeast.accelerator.devices import CPU
from libtorchbeast.flags import UserError
from libtorchbeast.learner import Learner
from libtorchbeast.q_learning import recurrent_q
from libtorchbeast.spec import Actions, Spec
from libtorchbeast.update import Updater
from tests.support import polybeast
from tests.support.compare import assert_same
from tests.support.envs import Catch
from tests.support.pools import serving
from tests.support.processes import load, rows
from tests.support.small_q_net import random_batch

pytestmark = pytest.mark.usefixtures("as_before")

SERVERS = "--num_servers 1 --envs_per_server 16 --torch_threads 1 --log_every 0.5 --eval_every 0"
SIZES = "--batch_size 16 --unroll_length 10 --burn_in 5 --train_length 15 --replay_capacity 20000"
LEARNING = [*SERVERS.split(), *SIZES.split(), *"--replay_start 500 --replay_ratio 4".split()]
LEARNING += "--learning_rate 3e-3 --target_update_every 20 --n_steps 3 --precision fp32".split()
CATCH = [*LEARNING, "--env", "tests.support.envs:Catch-v0"]
beast = partial(polybeast.beast, program=r2d2)


# ===================================================================================== learning
def test_what_was_seen_five_steps_ago_is_remembered_at_the_ratio_asked_for(tmp_path, capsys):
    """Without memory the best return is 0."""
    recall = ["--env", "examples.memory.recall:Recall-v0", "--eval_every", 5000]
    beast(tmp_path, *LEARNING, *recall, "--num_episodes", 2, "--total_steps", 20_000)
    assert (tmp_path / "run" / "model.best.tar").exists()  # an evaluation has ended
    last = rows(tmp_path / "run")[-1]
    assert last["skipped_updates"] == 0 and last["lag_mean"] > 10 and last["td_error"] > 0
    trained_each = 16 * 15  # at most: transitions across resets are not real
    assert last["replay_ratio"] == pytest.approx(4, abs=2 * trained_each / last["step"])
    capsys.readouterr()
    beast(tmp_path, "--mode", "test", "--num_episodes", 50)
    said = capsys.readouterr().out
    mean = re.search(r"greedy actions.*Mean return (-?[\d.]+)", said, re.S)[1]
    assert float(mean) >= 0.9


def test_it_learns_from_servers_that_run_elsewhere(tmp_path, address):
    """A stream may have more environments than --envs_per_server says."""
    flags = ["--server_addresses", address, "--replay_start", 100, "--total_steps", 1000]
    flags += ["--num_learner_threads", 2, "--num_inference_threads", 2]
    with serving(Catch, address, 6, name="tests.support.envs:Catch-v0"):
        beast(tmp_path, *CATCH, *flags)
    last = rows(tmp_path / "run")[-1]
    assert last["step"] >= 1000 and last["streams"] == 1 and last["stream_failures"] == 0


# ========================================================================================== the law
FROZEN = "--learning_rate 1e-300 --precision fp32 --replay_start 1 --total_steps 400 --eval_every 0"
FROZEN += " --replay_ratio 2 --num_servers 2 --envs_per_server 3 --batch_size 4 --torch_threads 1"


@pytest.mark.parametrize(
    "flags",
    [
        "--env tests.support.envs:Catch-v0 --unroll_length 7 --burn_in 5 --train_length 16",
        "--env tests.support.served_envs:Stacked-v0 --unroll_length 3 --burn_in 0 --train_length 6",
    ],
    ids=["burn-in", "stacks, all rows"],
)
def test_with_frozen_weights_a_replayed_sequence_has_the_recorded_q_row_by_row(
    tmp_path, monkeypatch, flags
):
    """Through servers, streams, inference batches, the queue and the replay. Sequences overlap,
    begin anywhere in an episode, and cross episodes."""
    compared, original = [], r2d2.targets

    def compare(batch):
        rows, online_q = batch.rows, batch.outputs["policy_logits"].detach()
        own, of_target = (
            batch.forward(net, batch.core_state)["policy_logits"]
            for net in (batch.net, batch.net.target)
        )
        assert torch.equal(own, of_target) and own.shape[:2] == rows["action"].shape
        torch.testing.assert_close(online_q, own, rtol=0, atol=2e-6)
        if "q_max" in rows:  # which the made-up rows of the check do not have
            q = online_q.gather(-1, rows["action"].unsqueeze(-1)).squeeze(-1)
            torch.testing.assert_close(q, rows["q_taken"], rtol=0, atol=2e-6)
            torch.testing.assert_close(online_q.amax(-1), rows["q_max"], rtol=0, atol=2e-6)
            compared.append(rows["done"][1:].any().item())
        return original(batch)

    monkeypatch.setattr(r2d2, "targets", compare)
    beast(tmp_path, *FROZEN.split(), *flags.split(), "--replay_capacity", 2000)
    assert len(compared) >= 5 and any(compared)


def test_environments_explore_by_the_ladder_and_keep_to_the_mask():
    """A row that allows no action, such as the last one of a game that ended because the board is
    full, gets any."""
    torch.manual_seed(0)
    explorer = r2d2.Explorer(4)
    numbers = explorer.number(torch.tensor([-1, -1, 6, -1])[None, :, None])
    assert numbers.flatten().tolist() == [0, 1, 6, 3]
    q = torch.tensor([0.0, 2.0, -1e9]).expand(1, 4, 3)
    actions = torch.stack([explorer.choose(q, numbers) for _ in range(4000)])
    share = (actions == 0).float().mean(0).squeeze()  # half of the random ones
    expected = recurrent_q.epsilons(4) / 2
    torch.testing.assert_close(share, expected, atol=0.025, rtol=0)
    assert not (actions == 2).any()
    none = torch.full((1, 4, 3), -1e9)
    assert {explorer.choose(none, numbers)[0, 0].item() for _ in range(200)} == {0, 1, 2}


def test_a_stream_that_is_opened_again_explores_as_before():
    """Otherwise no environment might be left that hardly explores."""
    explorer = r2d2.Explorer(6)
    new = torch.full((1, 2, 1), explorer.NEW)
    streams = [explorer.number(new) for _ in range(3)]
    seen = torch.cat(streams).flatten().tolist()
    for lost in (2, 1, 2, 0):
        for _ in range(3):
            others = [explorer.number(x) for i, x in enumerate(streams) if i != lost]
        streams[lost] = explorer.number(new)
        assert not set(streams[lost].flatten().tolist()) & set(seen)
        seen += streams[lost].flatten().tolist()
        used = torch.cat([*others, streams[lost]]) % 6
        assert sorted(used.flatten().tolist()) == list(range(6))


def spec_with(kind="discrete", sizes=(3,), shape=(4, 5), also=None, **more):
    observations = {"frame": (shape, "uint8"), **(also or {})}
    return Spec("Some", 4, observations, Actions(kind, sizes), **more)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_weight_is_learned_after_a_burn_in_in_either_precision(precision):
    """Under autocast, weights that were cast without gradients would be used again from a cache."""
    flags = r2d2.parse(["--env", "CartPole-v1", "--burn_in", "3", "--precision", precision])
    spec = spec_with(shape=(2, 5, 5))
    torch.manual_seed(0)
    net = models.make_net(r2d2.Net, spec, flags)
    batch = random_batch(net, spec, 8, 4)
    models.add_for_loss(net, spec, flags)
    results = transitions.learn_from(net, batch, None, r2d2.targets, r2d2.loss, flags, 0.0)
    results["total_loss"].backward()
    names = [name for name, x in net.named_parameters() if x.grad is None or not x.grad.any()]
    assert names == [] and all(x.grad is None for x in models.of_learner(net).parameters())


def test_the_baseline_is_the_value_of_an_allowed_action():
    spec = spec_with(shape=(2, 5, 5), also={"action_mask": ((3,), "int8")})
    net = models.make_net(r2d2.Net, spec, r2d2.parse(["--env", "CartPole-v1"]))
    batch = random_batch(net, spec, 8, 4)
    worst = net.forward(batch, net.initial_state(4))[0]["policy_logits"].argmin(-1)
    batch["action_mask"] = torch.nn.functional.one_hot(worst, 3)
    outputs, _ = models.forward(net, batch, net.initial_state(4))
    q = outputs["policy_logits"].gather(-1, worst.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(outputs["baseline"], recurrent_q.unrescale(q))


def test_the_target_is_the_network_of_every_so_many_updates():
    flags = r2d2.parse("--env CartPole-v1 --burn_in 2 --target_update_every 3".split())
    spec = spec_with()
    net = models.make_net(r2d2.Net, spec, flags)
    batch = random_batch(net, spec, 6, 2)
    models.add_for_loss(net, spec, flags)
    learner = Learner(Updater(net, flags, CPU, None, r2d2.targets, r2d2.loss))
    copied_at = [0]
    for update in range(1, 8):
        before = copy.deepcopy(net.target.state_dict())
        assert learner.update(batch, lambda state_dict, version: None) is not None
        now = net.target.state_dict()
        is_copy, is_same = (
            all(torch.equal(x, other[k]) for k, x in now.items())
            for other in (net.state_dict(), before)
        )
        assert is_copy != is_same
        copied_at += [update] * is_copy
    assert copied_at == [0, 3, 6] and learner.step == 7 * 5  # the new steps that the batch says
    assert not any("target" in k for k in learner.state_dict()["model"])


# ======================================================== resume: see also tests/faults/signals.py
OLD_RUN = Path(__file__).parent / "support/r2d2_8744ad2"
STILL = ["--learning_rate", 1e-300, "--target_update_every", 10_000]  # too small to change a weight


def test_a_run_from_before_the_loss_was_on_the_page_goes_on_and_plays(tmp_path, capsys):
    """Made with commit 8744ad2: python -m r2d2 --env CartPole-v1 --net
    tests.support.small_q_net.SmallQ --precision fp32 --num_servers 1 --envs_per_server 4
    --batch_size 4 --unroll_length 5 --burn_in 2 --train_length 8 --replay_capacity 1000
    --replay_start 100 --target_update_every 7 --total_steps 600 --seed 7 --eval_every 0"""
    savedir = shutil.copytree(OLD_RUN, tmp_path / "old")
    before = load(savedir / "run")
    beast(savedir, "--mode", "test", "--num_episodes", 2)
    assert "2 games" in capsys.readouterr().out
    beast(savedir, "--total_steps", 750, *STILL)
    state = load(savedir / "run")
    assert_same(state["model"], before["model"])
    assert_same(state["loss"], before["loss"])  # the target network, 6 updates older
    assert before["updates"] % 7 == 6 and state["updates"] > before["updates"]
    assert not torch.equal(state["loss"]["target.q.bias"], state["model"]["q.bias"])
    assert "replay" not in state and not (savedir / "run/replay.bin").exists()
    text = (savedir / "run/out.log").read_text()
    assert "The replay buffer starts empty" in text
    changed = {"savedir", "core", "total_steps", "learning_rate", "target_update_every"}
    assert {*re.findall(r"--(\w+) changes from", text)} == changed
    assert state["step"] >= 750 and rows(savedir / "run")[-1]["skipped_updates"] == 0
    for saved in (before, state):
        assert saved["optimizer"]["state"][0]["step"] == saved["updates"]
    assert rows(savedir / "run")[0]["step"] > before["step"]


def test_a_new_run_with_the_weights_of_another_has_them_in_its_target(tmp_path):
    shutil.copytree(OLD_RUN, tmp_path / "old")
    before = load(tmp_path / "old/run")
    net = "--net tests.support.small_q_net.SmallQ --precision fp32"
    words = f"--env CartPole-v1 {net} --num_servers 1".split()
    sizes = [*SIZES.split(), "--replay_start", 100, "--total_steps", 300, "--eval_every", 0]
    beast(tmp_path, *words, *sizes, *STILL, "--init_from", tmp_path / "old/run")
    state = load(tmp_path / "run")
    assert state["updates"] > 0
    assert_same(state["model"], before["model"])
    assert_same(state["loss"], {f"target.{k}": x for k, x in before["model"].items()})


# ====================================================================================== wrong flags
def test_what_only_training_needs_is_not_asked_of_another_programs_run():
    draft = r2d2.make_parser().parse_args(["--mode", "test"])
    draft.passes = 10
    assert r2d2.check_flags(draft).passes == 10


UNFIT = [
    (dict(kind="box", sizes=(2,)), "", r"--env Some: .* Discrete actions, seen Box\(2\)"),
    (dict(kind="multi_discrete", sizes=(2, 2)), "", r"Discrete .*, seen MultiDiscrete\(2, 2\)"),
    (dict(stacks={"frame": 4}), "--unroll_length 2", "expected at least 3, for stacks of 4 frames"),
    ({}, "--replay_capacity 100 --replay_start 10 --num_servers 1",
     "--replay_capacity 100: expected at least 320, so that each of 4 environments has"),
    ({}, "--replay_capacity 5000 --replay_start 6000", "expected at most --replay_capacity 5000"),
    ({}, "--n_steps 6 --train_length 5", "--n_steps 6: expected at most --train_length 5"),
    ({}, "--unroll_length 41", "--unroll_length 41: expected at most --train_length 40"),
    ({}, "--total_steps 10_000", "--replay_start 10000: expected less than --total_steps 10000"),
    ({}, "--num_servers 1 --max_learner_queue_size 3",
     "^--max_learner_queue_size 3: expected at least 4$"),
    *((dict(also={key: ((2,), "float32")}), "", f"^The observation key '{key}' is also a row's key")
      for key in ("q_taken", "environment", "serial")),
]  # fmt: skip


@pytest.mark.parametrize("spec, flags, message", UNFIT)
def test_what_does_not_fit_together_is_refused(spec, flags, message):
    with pytest.raises(UserError, match=message):
        flags = r2d2.parse(["--env", "CartPole-v1", *flags.split()])
        r2d2.check_fits(flags, spec_with(**spec))


def test_a_buffer_that_is_too_large_is_refused(tmp_path):
    flags = ("--total_steps", 1000, "--replay_capacity", 10**12)
    message = polybeast.refusal(tmp_path, *CATCH, *flags, program=r2d2)
    assert message.startswith(f"--replay_capacity {10**12}: expected a smaller number, or fewer")
    assert not (tmp_path / "run").exists()


def test_a_loss_without_priorities_is_refused(tmp_path, monkeypatch):
    scalar = {"priorities": torch.tensor(1.0)}
    total = lambda batch, loss=r2d2.loss: {"total_loss": loss(batch)["total_loss"], **scalar}
    monkeypatch.setattr(r2d2, "loss", total)
    message = polybeast.refusal(tmp_path, *CATCH, "--total_steps", 1000, program=r2d2)
    assert message.startswith("loss() returned the vectors []; expected priorities [B] among them")
    assert not (tmp_path / "run").exists()
