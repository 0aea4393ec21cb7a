# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Evaluation while training, and the test mode: whole games with the weights of a moment."""

import contextlib
import errno
import os
import re
import signal
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
import torch

import monobeast
import polybeast
from libtorchbeast import checkpoint, evaluate, models, workers
from libtorchbeast.environment import Environment
from libtorchbeast.evaluate import Evaluator
from libtorchbeast.flags import UserError, replace
from libtorchbeast.seeds import derive_seed, seed_everything
from libtorchbeast.spec import Actions, Spec
from tests.support.actors import make_learner
from tests.support.compare import assert_same
from tests.support.monobeast import IN_ORDER, beast, refusal
from tests.support.processes import Program, load, wait_for

pytestmark = pytest.mark.usefixtures("as_before")

EVERY = 1000


def parse(env="tests.support.envs:Catch-v0", **flags):
    words = ["--env", env, "--eval_every", EVERY, "--num_episodes", 5]
    words += [word for name, value in flags.items() for word in (f"--{name}", value)]
    return monobeast.parse([str(word) for word in words])


@pytest.mark.parametrize("names", [",", "Acrobot-v1, ,CartPole-v0"])
def test_a_missing_id_between_commas_is_an_error(names):
    with pytest.raises(UserError, match=r"--eval_env .*: expected ids with a comma between two"):
        evaluate.columns_of_others(parse(eval_env=names))


def test_the_returns_are_told_though_the_environment_does_not_close(monkeypatch, capfd):
    flags = parse(num_episodes=2, mode="test")
    net, env = monobeast.player(flags)
    monkeypatch.setattr(env, "close", Mock(side_effect=OSError("stuck")))
    monkeypatch.setattr(evaluate, "load", lambda *_: (net.eval(), env))
    with pytest.raises(OSError, match="stuck"):
        evaluate.play_newest(flags, monobeast.player)
    assert "Mean return" in capfd.readouterr().out


def test_the_groups_of_another_environment_have_the_same_order(monkeypatch):
    of = lambda name, *groups: {f"{g}/{k}": ((1,), "float32") for g in groups for k in (name, "x")}
    spec = lambda *groups: Spec("x", 1, of("reward", *groups), Actions("multi_discrete", (2, 2)))
    env = SimpleNamespace(spec=spec("b", "a"), initial=lambda seed: None, close=lambda: None)
    flags, player = parse(env="CartPole-v1", eval_env="Acrobot-v1"), lambda flags: (None, env)
    evaluate.try_others(flags, spec("b", "a").signature(), player)
    with pytest.raises(UserError, match="expected the observations and actions of --env"):
        evaluate.try_others(flags, spec("a", "b").signature(), player)


def in_another(env, flags):
    """The player of another environment."""
    return monobeast.player(replace(flags, env=env))


@pytest.fixture
def evaluator():
    """Makes Evaluators for a learner at step 0, and closes them at the end."""
    made = []

    def make(player=monobeast.player, keep=lambda *_: None, **flags):
        flags = parse(**flags)
        seed_everything(0)
        net, env = monobeast.player(flags)
        learner = make_learner(net, flags)
        made.append(Evaluator(learner, env.spec, flags, player, keep))
        return made[-1]

    yield make
    for each in made:
        each.close()


def advance(evaluator, step):
    """Sets the learner's step and takes the columns of the next row."""
    evaluator._learner.step = step
    return evaluator.take()


def wait_for_row(evaluator):
    found = []
    wait_for(lambda: found.append(evaluator.take()) or found[-1])
    return found[-1]


def test_an_evaluation_is_what_the_test_mode_plays_and_its_weights_are_handed_on(evaluator):
    """Not those of the learner, which has gone on, nor those of the next evaluation, which begins
    at once. Games in other environments change nothing. The process is kept."""
    kept, weights, pids = [], [], set()
    others = "CartPole-v0,CartPole-v1"
    keep = lambda *told: kept.append(told)
    e = evaluator(env="CartPole-v1", envs_per_actor=3, eval_env=others, keep=keep)
    assert e.take() == advance(e, EVERY - 1) == {} and e._process is None

    def learn(number):
        e._learner.step, e._learner.updates = number * EVERY + 7, 10 * number
        with torch.no_grad():
            e._learner.net.policy[-1].bias[number % 2] += 1.0
        weights.append({k: v.clone() for k, v in e._learner.state_dict()["model"].items()})

    learn(1)
    assert e.take() == {}
    learn(2)  # before the first evaluation has ended
    for number in (1, 2):
        pids.add(e._process.pid)
        row = wait_for_row(e)
        seed = derive_seed(e._flags.seed, 10 * number, 0, 0, 1)
        net, env = monobeast.player(e._flags)
        net.load_state_dict(weights[number - 1])
        seed_everything(seed)
        games = evaluate.play(e._flags, net.eval(), env, seed)  # as the test mode plays
        assert len(games) == 5
        # CartPole-v0 differs in games of more than 200 steps, which this network cannot play.
        for column in ("/CartPole-v0", "/CartPole-v1", ""):
            mean = row.pop(f"mean_eval_return{column}")
            assert mean == pytest.approx(sum(game.score for game in games) / 5)
        assert row.pop("eval_step") == number * EVERY + 7 and row.pop("eval_cpu_s") > 0
        assert not row
        score, state = kept[number - 1]
        assert (score, state["step"], state["updates"]) == (mean, number * EVERY + 7, 10 * number)
        assert_same(dict(state["model"]), weights[number - 1])
        assert state["flags"]["eval_env"] is None  # the score does not depend on it
    assert advance(e, 3 * EVERY - 1) == {} and not e._is_playing  # once each
    assert len(pids) == 1 and len(kept) == 2


@pytest.mark.parametrize("more, seed, most", [("--net monobeast.Net", 1, 20), ("--use_lstm", 0, 9)])
def test_games_at_once_are_those_one_by_one(more, seed, most):
    """There are more games than environments, and some games are cut."""
    line = f"--env CartPole-v1 --mode test --greedy --num_episodes 7 {more}"
    games = []
    for width in (1, 3):
        words = [*line.split(), "--max_episode_steps", str(most), "--envs_per_actor", str(width)]
        flags = monobeast.parse(words)
        seed_everything(seed)
        net, env = monobeast.player(flags)
        assert env.spec.num_envs == width
        games.append(evaluate.play(flags, net.eval(), env, 5))
    assert games[0] == games[1] and len(games[0]) == 7
    assert {game.complete for game in games[0]} == {True, False}


class ShorterAndShorter(gymnasium.Env):
    """A game of as many steps as its seed says, each rewarded; all later ones have one step."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.left = seed or 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_the_first_game_of_each_environment_counts_and_is_told_when_it_ends():
    """Later games do not count, though an environment plays until all first games are over."""
    flags, told, told_before = parse(num_episodes=5), [], []
    with contextlib.closing(Environment(ShorterAndShorter, 3)) as env:
        net = models.make_net(monobeast.Net, env.spec, flags)
        watching = lambda row: told_before.append(len(told)), lambda *game: told.append(game)
        games = evaluate.play(flags, net, env, 3, *watching)
    assert games == [evaluate.Game(steps, steps, True, {}) for steps in (3, 4, 5, 6, 7)]
    assert told == [*enumerate(games)]
    # In each row: first games end after 3, 4 and 5 steps, the next ones 6 and 7 steps later.
    assert told_before == [0, 0, 0, 0, 1, 2] + [3] * 7 + [4, 5]


def test_only_the_first_rank_evaluates(evaluator, monkeypatch):
    monkeypatch.setattr(evaluate.ranks, "rank", lambda: 1)
    e = evaluator(env="CartPole-v1", eval_env="CartPole-v0")
    e.try_others()
    assert advance(e, EVERY) == {} and e._process is None


def test_a_failure_is_told_and_the_next_one_is_tried(evaluator, caplog, monkeypatch):
    e = evaluator(player=partial(in_another, "CartPole-v1"))
    advance(e, EVERY)
    wait_for(lambda: e.take() or caplog.messages)
    assert "The evaluation at step 1000 failed: --env " in caplog.text
    advance(e, 2 * EVERY)
    os.kill(e._process.pid, signal.SIGKILL)
    wait_for(lambda: e.take() or len(caplog.messages) > 1)
    assert "The evaluation at step 2000 failed: exit code -9: Killed" in caplog.text
    e._player, refuse = monobeast.player, Mock(side_effect=OSError(errno.EAGAIN, "no process left"))
    with monkeypatch.context() as patch:
        patch.setattr(workers, "Process", refuse)
        assert advance(e, 3 * EVERY) == advance(e, 3 * EVERY + 1) == {}
    assert e._weights is None
    assert caplog.text.count("at step 3000 failed: [Errno 11] no process left") == 1
    advance(e, 4 * EVERY)
    assert wait_for_row(e)["eval_step"] == 4 * EVERY


def test_an_environment_that_hangs_is_told_and_ends_the_evaluation(evaluator, caplog, monkeypatch):
    monkeypatch.setenv("STUCK", "3")
    stuck = partial(in_another, "tests.support.envs:StuckCatch-v0")
    e = evaluator(player=stuck, open_timeout=1)
    advance(e, EVERY)
    wait_for(lambda: e.take() or len(caplog.messages) == 2)
    late = "Environment 3 of 5 took longer than --open_timeout 1 to open."
    assert caplog.messages[0] == f"Evaluation at step 1000: {late}"
    assert "The evaluation at step 1000 failed: exit code " in caplog.messages[1]


def test_games_without_end_are_ended(evaluator, caplog, monkeypatch):
    e = evaluator(env="tests.support.envs:EndlessCatch-v0", max_episode_steps=10**9)
    advance(e, EVERY)
    first = e._process.pid
    assert advance(e, 2 * EVERY) == {} and e._process.pid == first  # the next one waits
    monkeypatch.setattr(evaluate, "LONGEST_EVALUATION_S", 0.0)
    assert advance(e, 2 * EVERY) == {} and e._process.pid != first
    assert "at step 1000 has not ended within 0 s and is killed" in caplog.text
    wait_for(lambda: not os.path.exists(f"/proc/{first}"))


def test_a_run_evaluates_and_leaves_nothing(tmp_path, capsys):
    """Also in environments that it does not train on, whose returns are known. It is PolyBeast,
    which has a server that it must not leave."""
    flags = "--env tests.support.envs:PacedCatch-v0 --batch_size 4 --log_every 0.2 --num_servers 1 "
    flags += "--envs_per_server 4 --net monobeast.Net --total_steps 1_000_000_000"
    others = [f"tests.support.envs:{name}-v0" for name in ("OneStepCatch", "ShortOrLong")]
    more = ["--eval_every", EVERY, "--eval_env", ", ".join(others)]
    with Program(tmp_path, *flags.split(), *more, module="polybeast") as program:
        evaluated = lambda: [row for row in program.rows() if row.get("eval_step")]
        program.wait_for(lambda: len(evaluated()) >= 2)
        program.process.terminate()
        assert program.wait_for_end() == 0
        wait_for(lambda: not program.session())
    first, second = evaluated()[:2]
    assert EVERY <= first["eval_step"] < second["eval_step"] <= second["step"]
    assert -1 <= first["mean_eval_return"] <= 1
    assert first[f"mean_eval_return/{others[0]}"] == 0
    assert 5 <= first[f"mean_eval_return/{others[1]}"] <= 60
    told = r"Evaluation at step [0-9]+: mean return \S+, 0 in {}, [0-9.]+ in {}\n"
    assert re.search(told.format(*others), program.printed())
    best = checkpoint.load(str(program.path / "model.best.tar"))
    rows = {row["eval_step"]: row["mean_eval_return"] for row in evaluated()}
    assert best["mean_eval_return"] == pytest.approx(max(rows.values()), abs=1e-6)
    assert rows[best["step"]] == pytest.approx(best["mean_eval_return"], abs=1e-6)
    words = f"--savedir {tmp_path} --xpid run --mode test_render --best --num_episodes 2"
    polybeast.main(words.split())
    said = f"Loaded {program.path}/model.best.tar, trained for {best['step']:,} steps"
    assert said in capsys.readouterr().out and (program.path / "test.mp4").exists()


@pytest.mark.parametrize("eval_every", [500, 0], ids=["at the last step", "never"])
def test_a_run_that_is_complete_starts_no_evaluation(tmp_path, monkeypatch, eval_every):
    start = Mock()
    monkeypatch.setattr(Evaluator, "_start", start)
    flags = ["--total_steps", 500, "--eval_every", eval_every, "--log_every", 0.1]
    beast(tmp_path, *IN_ORDER, *flags)
    assert not start.called


def test_the_test_mode_prints_mean_spread_and_each_game(savedir, capsys):
    beast(savedir, "--mode", "test", "--num_episodes", 20)
    printed = capsys.readouterr().out
    games = re.findall(r"^Game (\d+) of 20: return (-?\d+), (\d+) steps$", printed, re.MULTILINE)
    assert sorted(int(number) for number, _, _ in games) == list(range(1, 21))
    assert {int(steps) for _, _, steps in games} == {9} and "cut" not in printed
    scores = np.array([float(score) for _, score, _ in games])
    summary = f"Mean return {scores.mean():.2f}, standard deviation {scores.std():.2f}"
    assert summary in printed
    assert "tests.support.envs:Catch-v0, sampled actions" in printed  # --env is the run's own
    beast(savedir, *"--mode test --num_episodes 2 --greedy --max_episode_steps 4".split())
    assert capsys.readouterr().out.count("4 steps (cut at --max_episode_steps 4)") == 2


def test_the_test_mode_needs_a_checkpoint_that_fits(savedir):
    for words, file in (((), "model.tar"), (("--best",), "model.best.tar")):
        message = refusal(savedir, "--mode", "test", "--xpid", "none", *words)
        assert "no checkpoint" in message and f"{savedir}/none/{file}" in message
        assert ("--savedir" in message) != bool(words)
    state = load(savedir / "run")
    checkpoint.save(str(savedir / "run/model.tar"), state | {"net": "polybeast.Net"})
    message = refusal(savedir, "--mode", "test")
    assert "has the network polybeast.Net, this program's is monobeast.Net" in message
    flags = state["flags"] | {"greedy": True}  # as R2D2 always plays
    checkpoint.save(str(savedir / "run/model.tar"), state | {"net": "r2d2.Net", "flags": flags})
    assert refusal(savedir, "--mode", "test").endswith("or --net r2d2.Net --greedy")
    checkpoint.save(str(savedir / "run/model.tar"), state)
    message = refusal(savedir, "--mode", "test", "--use_lstm")
    assert "does not fit this network (--net, --core, or Net was edited): " in message
    checkpoint.save(str(savedir / "run/model.tar"), state | {"env": "NoSuchGame-v0"})
    message = refusal(savedir, "--mode", "test")
    assert "--env NoSuchGame-v0: Environment `NoSuchGame` doesn't exist" in message


def test_another_environment_that_holds_the_gil_is_told_in_time(evaluator, monkeypatch):
    name = "tests.support.envs:GilCatch-v0"
    monkeypatch.setattr(evaluate, "IMPORTS_S", 4.0)
    said = f"--eval_env {name}: its process has ended .exit code -9: Killed.; it may take 6 s"
    with pytest.raises(UserError, match=said):
        evaluator(eval_env=name, open_timeout=2).try_others()
