# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import functools
import itertools
import logging
import os
from unittest.mock import Mock

import gymnasium
import pytest
import torch

import warpbeast
from libtorchbeast import checkpoint, evaluate
from libtorchbeast.flags import UserError
from libtorchbeast.loggers.timing import Clock
from libtorchbeast.models import make_net
from libtorchbeast.rollouts import core_state_of
from libtorchbeast.tensors import TensorRows, TensorVector
from tests.support.processes import load, rows
from tests.support.tensors import Foreign, Turns, Walk
from tests.tensors_test import Changed

CPU = torch.device("cpu")


@pytest.fixture
def parse(tmp_path):
    def parse(text="", xpid="run"):
        small = "--env breakout --num_envs 8 --batch_size 4 --unroll_length 5 --total_steps 400"
        small += f" --eval_every 0 --torch_threads 1 --xpid {xpid} --savedir {tmp_path} "
        return warpbeast.parse((small + text).split())

    return parse


def make_actor(flags):
    vector, spec = warpbeast.open_vector(flags, CPU)
    net = make_net(warpbeast.Net, spec, flags)
    rows = TensorRows(vector, spec, CPU)
    return warpbeast.Actor(rows, net, 0, flags, Clock(warpbeast.ACTIVITIES))


@pytest.mark.parametrize("lstm", ["", "--use_lstm"])
def test_rollouts_follow_each_other(parse, lstm):
    actor = make_actor(parse(lstm))
    before = {name: tensor.clone() for name, tensor in actor.unroll(version=3).items()}
    after = actor.unroll(version=4)
    assert before["frame"].shape == (6, 8, 4, 10, 10)
    for name, tensor in before.items():
        if not name.startswith("core_state/"):
            assert torch.equal(tensor[-1], after[name][0]), name
    assert before["done"][0].all() and not before["done"][1:3].any()
    assert (before["policy_version"][1:] == 3).all() and (after["policy_version"][1:] == 4).all()
    assert ("core_state/0" in before) == bool(lstm)
    parts = list(warpbeast.divide(after, 4))  # which share its memory
    assert [part["reward"].shape for part in parts] == [(6, 4)] * 2
    parts[1]["reward"].fill_(7)
    assert (after["reward"][:, 4:] == 7).all() and not (after["reward"][:, :4] == 7).any()


def test_the_loss_of_a_rollout_with_its_own_weights_has_no_lag(parse):
    """Replaying a rollout gives its logits, also with an LSTM whose episodes end in it."""
    flags = parse("--env space_invaders --use_lstm --unroll_length 30 --precision fp32")
    actor = make_actor(flags)
    for _ in range(4):
        rollout = actor.unroll(version=0)
    assert rollout["done"][1:].any()
    rows = {k: v for k, v in rollout.items() if k != "policy_logits"}
    outputs, _ = actor.net(rows, core_state_of(rollout))
    torch.testing.assert_close(outputs["policy_logits"], rollout["policy_logits"])


def test_a_run_trains_resumes_and_plays(parse, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    run = warpbeast.train(parse())
    state = load(tmp_path / "run")
    assert run.complete() and state["updates"] >= 20 and state["net"] == "monobeast.Net"
    run.state.save_if_best(0.5, {name: state[name] for name in ("model", "step", "flags")})
    assert checkpoint.load(str(tmp_path / "run/model.best.tar"))["mean_eval_return"] == 0.5
    warpbeast.train(parse("--total_steps 600"))
    assert load(tmp_path / "run")["step"] >= 600
    log = (tmp_path / "run" / "out.log").read_text()
    assert "--total_steps changes from 400 to 600" in log and log.count("changes from") == 1
    recipe = "--passes 1 --minibatches 1 --ppo_clip 0.0 --learning_rate 0.003"
    assert f"Recipe for other: {recipe}" in caplog.text
    games = evaluate.play_newest(parse("--mode test --num_episodes 3"), warpbeast.player)
    assert len(games) == 3 and all(game.complete for game in games)
    evaluate.play_newest(parse("--mode test_render --num_episodes 1"), warpbeast.player)
    assert (tmp_path / "run" / "test.mp4").stat().st_size > 1000
    last = rows(tmp_path / "run")[-1]
    shares = [last[f"share_{name}"] for name in warpbeast.ACTIVITIES]
    assert sum(shares) == pytest.approx(1, abs=0.01)


def test_the_same_seed_gives_the_same_weights(parse):
    def weights(xpid, seed):
        net = warpbeast.train(parse(f"--seed {seed}", xpid)).learner.net
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    first, second, other = weights("a", 1), weights("b", 1), weights("c", 2)
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_the_compiled_step_is_one_graph_and_gives_the_same(parse, monkeypatch, caplog):
    compiled = Mock(side_effect=functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(torch, "compile", compiled)
    caplog.set_level(logging.INFO)
    plain = make_actor(parse()).unroll(0)
    vector, spec = warpbeast.open_vector(parse("--compile"), CPU)
    fast = TensorRows(vector, spec, CPU).initial(0)
    assert [call.kwargs["fullgraph"] for call in compiled.call_args_list] == [True]
    assert "compiled as one graph, for cpu" in caplog.text
    assert torch.equal(fast["frame"], plain["frame"][0])


@pytest.mark.parametrize(
    "text, expected",
    [
        ("--batch_size 3", "--batch_size 3: expected a divisor of --num_envs 8"),
        ("--num_learner_threads 2", "--num_learner_threads 2: expected 1"),
        ("--env pong", "--env pong: expected one of asterix"),
    ],
)
def test_flags_that_it_cannot_follow_are_refused(parse, text, expected, monkeypatch):
    with pytest.raises(UserError, match=expected):
        warpbeast.train(parse(text))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="warpbeast: error: this program has one learner; torchr"):
        warpbeast.main([])


def test_another_vector_that_gives_tensors_trains_and_plays(parse, monkeypatch):
    foreign = lambda flags, device: Foreign(TensorVector(Walk("box"), flags.num_envs))
    monkeypatch.setattr(warpbeast, "create_env", foreign)
    assert warpbeast.train(parse()).complete()
    two = parse("--mode test --num_episodes 2")
    assert len(evaluate.play_newest(two, warpbeast.player)) == 2


def test_what_lies_between_rollouts_and_learner_begins_once(parse, monkeypatch):
    """So it may pair batches, also where each rollout is one batch."""
    began = []

    class EverySecond(warpbeast.Between):
        def batches(self, rollouts):
            began.append(self)
            yield from itertools.islice(rollouts, 0, 8, 2)

    monkeypatch.setattr(warpbeast, "Between", EverySecond)
    run = warpbeast.train(parse("--num_envs 4"))
    assert len(began) == 1 and run.learner.updates == 4


class Forbidding(Walk):
    observations = {"frame": ((2,), "float32"), "action_mask": ((3,), "bool")}

    def observe(self, state):
        mask = (state["time"] != 3)[:, None].expand(-1, 3)
        return super().observe(state) | {"action_mask": mask}


class Tiles(Walk):
    observations = {"frame": ((2,), "float32"), "tile": ((), "int64")}

    def observe(self, state):
        return super().observe(state) | {"tile": state["time"].long()}


def numbered(num_envs):
    """Its tile is to be a number of a set, and goes beyond it."""
    vector = TensorVector(Tiles(), num_envs)
    vector.single_observation_space.spaces["tile"] = gymnasium.spaces.Discrete(3)
    return vector


def telling(discount):
    told = lambda n: {"torchbeast": {"discount": torch.full((n,), discount)}}
    return lambda n: Changed(Turns(), n, info=lambda _: told(n))


def changed(**changes):
    return lambda n: Changed(Walk(), n, **changes)


ALLOWED = r"'action_mask' of environment \d+: expected an allowed action"
WRONG = {
    "a reward of NaN": (changed(reward=lambda x: x / 0), "breakout: expected finite rewards"),
    "a mask": (lambda n: TensorVector(Forbidding(), n), ALLOWED),
    "a number of a set": (numbered, "'tile': expected 0 to 2, seen 3"),
    "a discount": (telling(-2.0), "discounts from -1 to 1, seen -2"),
    "another": (telling(1.5), "discounts from -1 to 1, seen 1.5"),
    "no number": (telling(torch.nan), "discounts .*, seen nan"),
    "a vector of arrays": (lambda n: gymnasium.make_vec("CartPole-v1", n), "expected tensors on"),
    "an error": (lambda n: {}["level"], r"--env breakout: KeyError: 'level' \(.*warpbeast_test.py"),
    "a single environment": (lambda n: gymnasium.make("CartPole-v1"), "expected a TensorVector"),
    "an end": (changed(end=lambda x: x.float()), "bools as the ends, seen floats"),
    "infinity": (
        changed(frame=lambda x: x.masked_fill(x == 3, torch.inf)),
        r"--env breakout: expected finite numbers in observations \['frame'\]",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_environment_is_refused(parse, monkeypatch, what):
    make, expected = WRONG[what]
    monkeypatch.setattr(warpbeast, "create_env", lambda flags, device: make(flags.num_envs))
    flags = parse()
    with pytest.raises(UserError, match=expected):
        warpbeast.train(flags)
    begins_none = what.endswith(("arrays", "environment", "error"))
    assert not (begins_none and os.listdir(flags.savedir))


def test_each_step_is_watched(parse):
    """The first one may be compiled, which may take as long as --open_timeout."""
    actor, seen = make_actor(parse()), []
    step, actor.on_open = actor.rows.step, lambda count: seen.append("opened")

    def watched(action):
        seen.append("watched" if actor.clock.call_began[0] else "not")
        return step(action)

    actor.rows.step = watched
    actor.unroll(version=0)
    assert seen == ["watched", "opened"] * 5 and not actor.clock.call_began[0]
