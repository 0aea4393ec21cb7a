# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Games against the run's own past: who moves, what is learned from it, and the kept files."""

import dataclasses
import itertools
import os
import re
import shutil
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

import monobeast
import polybeast
from libtorchbeast import agents, checkpoint, evaluate, models, past
from libtorchbeast.flags import UserError
from libtorchbeast.loggers.standings import read
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, Clock
from libtorchbeast.rollouts import NOBODY, core_state_of
from libtorchbeast.run import Run, RunState
from libtorchbeast.spec import Actions
from libtorchbeast.transitions import _values_beside_past, learn_from
from tests.kept_test import kept_steps
from tests.support import turns
from tests.support.compare import assert_same
from tests.support.losses import transitions
from tests.support.monobeast import CATCH, beast, refusal, unroll
from tests.support.processes import load, rows

pytestmark = pytest.mark.usefixtures("as_before")
NIM = (
    "--env tests.support.turns:Nim-v0 --reward_scaling none --observation_scaling none --passes 1 "
    "--minibatches 1 --ppo_clip 0 --learning_rate 5e-3 --entropy_cost 0.01 --precision fp32"
)
PAST = "--past_share 0.5 --keep_checkpoints_every 100"
SMALL = "--num_actors 0 --envs_per_actor 8 --batch_size 8 --unroll_length 10"


class Table(nn.Module):
    """For Nim: logits and a value for each number of stones."""

    def __init__(self, spec, flags):
        super().__init__()
        self.logits, self.values = nn.Parameter(torch.zeros(6, 2)), nn.Parameter(torch.zeros(6))

    def initial_state(self, batch_size):
        return ()

    def forward(self, inputs, core_state=()):
        frame = inputs["frame"]
        return dict(policy_logits=frame @ self.logits, baseline=frame @ self.values), core_state


# With 3 stones whoever moves loses. PERFECT leaves 3 or 0, if it can. LOSER takes one of five.
PERFECT = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 0], [1, 0], [0, 1]]) * 100.0
LOSER = torch.tensor([[0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [1, 0]]) * 100.0


def flags_of(*words):
    return monobeast.parse(" ".join([NIM, SMALL, *words]).split())


def unrolled(folder, words, share, T=40, net=None, kept=None, seed=0):
    """A rollout in which `kept` has one side of a share of the games: network, actor, rollout."""
    torch.manual_seed(seed)
    own = f"--savedir {folder} --xpid run --past_share {share} --keep_checkpoints_every 1"
    flags = flags_of(own, words)
    env = monobeast.make_environment(flags, seed)
    net = net or agents.make_net(monobeast.Net, env.spec, flags)
    kept = kept or agents.make_net(monobeast.Net, env.spec, flags)
    os.makedirs(folder / "run/kept", exist_ok=True)
    checkpoint.save(str(folder / "run/kept/7.tar"), {"model": dict(kept.state_dict())})
    own = monobeast.Net if isinstance(net, agents.Agents) else type(net)
    with mock.patch.object(monobeast, "Net", own):
        actor = monobeast.Actor(env, net, seed, flags, Clock(ACTOR_ACTIVITIES))
    return net, actor, unroll(actor, T, version=3)


def tables(*words):
    flags = flags_of(*words)
    spec = monobeast.make_environment(flags).spec
    net, kept = (models.make_net(Table, spec, flags) for _ in range(2))
    net.logits.data, kept.logits.data = LOSER.clone(), PERFECT.clone()
    return net, kept


def games_of(rollout):
    """Yields (first row, last row, column) of each whole game."""
    done, over = rollout["done"], rollout["episode_over"]
    for b in range(done.shape[1]):
        starts = done[:, b].nonzero()[:, 0].tolist()
        for start in starts:
            ends = [t for t in over[:, b].nonzero()[:, 0].tolist() if t > start]
            if ends:
                yield start, ends[0], b


# ========================================================================================= acting
def test_the_past_has_every_second_move_of_its_games_and_each_side_in_half_of_them(tmp_path):
    net, kept = tables()
    _, _, rollout = unrolled(tmp_path, "", 0.7, 400, net, kept)
    sides = Counter()
    for start, end, b in games_of(rollout):
        past = (rollout["past"][start:end, b] != NOBODY).tolist()
        stones = rollout["frame"][start:end, b].argmax(-1)
        moved = rollout["action"][start:end, b]
        score, last = rollout["game/past"][end, b], rollout["past"][end, b]
        if not any(past):
            sides["nobody"] += 1
            assert score.isnan() and last == NOBODY
            continue
        sides["first" if past[0] else "second"] += 1
        assert past == [bool((t + past[0]) % 2) for t in range(len(past))]
        best = (PERFECT.argmax(-1)[stones] == moved) | (stones == 3)
        assert best[torch.tensor(past)].all()
        assert score == -1 and last == 7  # PERFECT beats LOSER from both sides
    total = sides.total()
    assert total > 600 and abs(sides["nobody"] / total - 0.3) < 0.05, sides
    assert abs(sides["first"] - sides["second"]) < 0.1 * total, sides
    told = ~rollout["game/past"].isnan()
    assert (rollout["episode_over"] | ~told).all()
    assert (rollout["policy_version"][1:] == 3).all()  # so the past makes no lag
    _, _, rollout = unrolled(tmp_path, "", 0.0)
    assert not {"past", "game/past", "core_state/0"} & rollout.keys()


@pytest.mark.parametrize("discount, count", [(1.0, 1), (-1.0, 0)])
def test_a_game_in_which_the_turn_never_passes_is_told_once(tmp_path, caplog, discount, count):
    """One network then has both sides, and the other none."""
    with mock.patch.object(turns.Nim, "discount", discount):
        unrolled(tmp_path, "", 0.7, 400, *tables())
    said = [text for text in caplog.messages if "No move passed the turn in 1" in text]
    assert len(said) == count


@pytest.mark.parametrize("core", ["", "--use_lstm"])
def test_a_replay_gives_the_trained_networks_outputs_and_the_pasts_states(tmp_path, core):
    """Both networks see all rows of a game, also those at which the other one moves."""
    flags = flags_of(core)
    kept = models.make_net(monobeast.Net, monobeast.make_environment(flags).spec, flags)
    net, actor, rollout = unrolled(tmp_path, core, 1.0, 30, kept=kept)
    with torch.no_grad():
        state = core_state_of(rollout)
        assert len(state) == len(models.initial_state(net, 1))
        outputs, _ = models.forward(net, rollout, state)
        torch.testing.assert_close(outputs["policy_logits"], rollout["policy_logits"])
        torch.testing.assert_close(outputs["baseline"], rollout["baseline"])
        if core:
            _, after = models.forward(kept, rollout, models.initial_state(kept, 8))
            theirs = actor.next_core_state[len(after) : -1]
            for seen, expected in zip(theirs, after, strict=True):
                torch.testing.assert_close(seen, expected)


def test_a_game_whose_opponent_changes_counts_for_none(tmp_path):
    """Each game of Nim has at most 5 moves, and then a reset."""
    net, actor, _ = unrolled(tmp_path, "", 1.0, 1, *tables())
    kept = actor.past._kept[1]
    env = monobeast.make_environment(flags_of(), 0)
    row, began, told = env.initial(0), torch.zeros(8, dtype=torch.int64), 0
    state = actor.past.initial_state(net, 8)
    for t in range(200):
        file = 5 if t % 10 == 9 else 0  # another one for a row, and then the first again
        actor.past._kept = file, kept
        tensors = {k: torch.from_numpy(x)[None] for k, x in row.items()}
        began = torch.where(tensors["done"][0], t, began)
        outputs, state = actor.past.act(net, tensors, state)
        ended = tensors["episode_over"][0]
        is_whole = ended & (began // 10 == t // 10) & (file == 0)
        assert is_whole.equal(~outputs["game/past"][0].isnan()) or t < 6
        assert {*outputs["past"][0].tolist()} <= {NOBODY, file}
        told += int(is_whole.sum())
        row = env.step(outputs["action"][0].numpy())
    assert told > 100


def test_games_that_are_longer_than_a_file_would_stay_count(tmp_path, monkeypatch):
    monkeypatch.setattr(past, "CHANGE_AFTER", 2)  # a game has 3 to 5 moves
    order = itertools.cycle([7, 8])
    monkeypatch.setattr(past, "choose", lambda steps, results: next(order))
    _, actor, _ = unrolled(tmp_path, "", 1.0, 1, *tables())
    shutil.copy(tmp_path / "run/kept/7.tar", tmp_path / "run/kept/8.tar")
    rollouts = [unroll(actor, 100, version=3) for _ in range(2)]
    ended = sum(int(x["episode_over"].sum()) for x in rollouts)
    counted = sum(int((~x["game/past"].isnan()).sum()) for x in rollouts)
    assert 0.5 * ended < counted < ended


@pytest.mark.parametrize("columns", [8, 2])
def test_the_file_changes_after_as_many_games_whatever_part_of_the_environments_a_call_has(
    tmp_path, monkeypatch, columns
):
    """As in PolyBeast. From step 20 on a game counts in each step; four are played at a time."""
    monkeypatch.setattr(past, "CHANGE_AFTER", 10)
    taken = mock.Mock()
    monkeypatch.setattr(past.Past, "_take_another", taken)
    own = past.Past(nn.Module(), 0.5, str(tmp_path), num_envs=8)
    own._kept = 7, nn.Module()
    changes = []
    for step in range(40):
        for _ in range(8 // columns):
            own._opponent(columns)
        own._games += step >= 20
        if taken.call_count > len(changes):
            changes.append(step)
            own._games = 0
    assert changes == [24, 34]


def test_a_file_that_cannot_be_read_changes_no_opponent_and_a_strangers_is_refused(
    tmp_path, caplog
):
    net, actor, _ = unrolled(tmp_path, "", 1.0, 1, *tables())
    path = tmp_path / "run/kept/7.tar"
    path.write_bytes(path.read_bytes()[:-1])
    actor.past._take_another(str(tmp_path / "run"))
    assert actor.past._kept[0] == 7 and actor.past._kept[1].logits.equal(PERFECT)
    actor.past._kept = NOBODY, actor.past._kept[1]
    row = {k: torch.from_numpy(x)[None] for k, x in actor.row.items()}
    state = actor.past.initial_state(net, 8)
    caplog.clear()
    for _ in range(past.CHANGE_AFTER):
        actor.past.act(net, row, state)
    assert caplog.text.count("There is no new opponent") == 1
    checkpoint.save(str(path), {"model": {"logits": torch.zeros(6, 3), "values": net.values.data}})
    with pytest.raises(UserError, match=r"kept/7.tar is of another network .* logits is \[6, 3\]"):
        actor.past._take_another(str(tmp_path / "run"))


# ======================================================================================= learning
def merged(rewards, discounts, values, log_rhos, real, past, lambda_):
    """V-trace's targets and advantages of one column, in an environment to which the moves of the
    past belong: a transition leads from an own row to the next own row."""
    T = len(rewards)
    v, advantages = [values[T]] * (T + 1), [0.0] * T
    next_own, reward, discount, moves = T, 0.0, 1.0, 0
    for t in reversed(range(T)):
        if past[t]:  # what this move adds to the own transition before it
            reward, discount = rewards[t] + discounts[t] * reward, discounts[t] * discount
            moves += 1
            continue
        R, G = rewards[t] + discounts[t] * reward, discounts[t] * discount
        trace, V = lambda_ ** (moves + 1), values[next_own]
        rho = min(1.0, float(log_rhos[t].exp())) if real[t] else 0.0
        v[t] = values[t] + rho * (R + G * V - values[t]) + G * trace * rho * (v[next_own] - V)
        advantages[t] = R + G * ((1 - trace) * V + trace * v[next_own]) - values[t]
        next_own, reward, discount, moves = t, 0.0, 1.0, 0
    return v[:T], advantages


@pytest.mark.parametrize("lambda_", [1.0, 0.9])
def test_the_moves_of_the_past_are_the_environments(lambda_, seed=0):
    """Also with several of them in a row, at the ends of a rollout and of games."""
    torch.manual_seed(seed)
    T, B = 30, 20
    terminated, truncated = torch.rand(2, T + 1, B) < 0.1
    truncated &= ~terminated
    done = torch.rand(T + 1, B) < 0.05
    done[1:] = (terminated | truncated)[:-1]
    past = torch.where(torch.rand(T + 1, B) < 0.5, 7, NOBODY)
    made = dict(
        reward=torch.randn(T + 1, B), done=done, terminated=terminated, past=past,
        discount=torch.where(torch.rand(T + 1, B) < 0.7, -1.0, 1.0),
        action=torch.randint(3, (T + 1, B)), policy_logits=torch.randn(T + 1, B, 3),
    )  # fmt: skip
    outputs = dict(policy_logits=torch.randn(T + 1, B, 3), baseline=torch.randn(T + 1, B))
    batch = transitions(made, outputs, vtrace_lambda=lambda_, reward_clipping="none")
    batch.outputs = outputs | {"baseline": _values_beside_past(batch)}
    found = monobeast.targets(batch)
    assert batch.real.equal(~done[1:]) and batch.own.equal(batch.real & (past[:-1] == NOBODY))
    for b in range(B):
        v, advantages = merged(
            batch.reward[:, b], batch.discount[:, b], outputs["baseline"][:, b],
            (batch.log_pi - batch.log_mu)[:, b], batch.real[:, b], batch.of_past[:, b], lambda_,
        )  # fmt: skip
        own = batch.own[:, b]
        torch.testing.assert_close(found["v"][own, b], torch.tensor(v)[own], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            found["advantage"][own, b], torch.tensor(advantages)[own], rtol=1e-4, atol=1e-4
        )


def test_only_positions_from_which_the_network_itself_has_moved_are_learned(tmp_path):
    words = "--discounting 1 --vtrace_lambda 1 --entropy_cost 0 --baseline_cost 1"
    net, kept = tables(words)
    _, _, rollout = unrolled(tmp_path, words, 1.0, 60, net, kept)
    own, real = (rollout["past"] == NOBODY)[:-1], ~rollout["done"][1:]
    stones = rollout["frame"][:-1].argmax(-1)
    assert {*stones[own & real].tolist()} == {3, 5}
    assert {*stones[~own & real].tolist()} == {1, 2, 4, 5}
    for _ in range(50):
        results = learn_from(
            net, rollout, None, monobeast.targets, monobeast.loss, flags_of(words), 0.0
        )
        assert results["real_transitions"] == (own & real).sum()
        gradients = torch.autograd.grad(results["total_loss"], [net.values, net.logits])
        for x, gradient in zip((net.values, net.logits), gradients, strict=True):
            x.data -= 0.3 * gradient
    assert net.values[3] < -0.9 and net.values[5] < -0.9, net.values  # all games are lost
    untouched = [1, 2, 4]
    assert not net.values[untouched].any() and net.logits[untouched].equal(LOSER[untouched])


# ============================================================================== all act at once
MATCH = "--env tests.support.parallel_games:Match-v0"  # guide_0 has one side, two walkers the other
OF_PAST = 2  # what the kept networks of these tests always choose


def matches(folder, words="", share=0.7, T=200):
    """A rollout of matches, in which the kept networks always choose OF_PAST, and the newest never
    does."""
    flags = flags_of(MATCH, words)
    spec = monobeast.make_environment(flags).spec
    net, kept = (agents.make_net(monobeast.Net, spec, flags) for _ in range(2))
    for network, bias in ((net, -100.0), (kept, 100.0)):
        for own in network.nets.values():
            [*own.policy.parameters()][-1].data[OF_PAST] = bias
    return *unrolled(folder, f"{MATCH} {words}", share, T, net, kept), flags


def test_where_all_act_at_once_the_past_has_one_side_for_a_game(tmp_path):
    _, _, rollout, _ = matches(tmp_path)
    ends = lambda k: torch.cat([rollout[f"{name}/{k}"] for name in ("guide", "walker")], 2)
    has_ended = ends("done") & ~rollout["done"][..., None]  # so nobody uses the agent's action
    acts = ~(has_ended | ends("terminated") | ends("truncated"))
    sides = Counter()
    for start, end, b in games_of(rollout):
        is_past = rollout["past"][start:end, b] != NOBODY  # [steps, agents]
        assert (is_past == is_past[0]).all() and is_past[0, 1] == is_past[0, 2]
        chosen = rollout["action"][start:end, b] == OF_PAST
        assert (chosen & acts[start:end, b]).equal(is_past & acts[start:end, b])
        score = rollout["game/past"][end, b]
        if not is_past.any():
            assert score.isnan() and (rollout["past"][end, b] == NOBODY).all()
            sides["nobody"] += 1
            continue
        assert not is_past[0].all() and (rollout["past"][end, b] == 7).all()
        sides["guide" if is_past[0, 0] else "walkers"] += 1
        guide = rollout["guide/episode_return"][end, b].mean()
        walkers = rollout["walker/episode_return"][end, b].mean()
        expected = walkers - guide if is_past[0, 0] else guide - walkers
        torch.testing.assert_close(score, expected)
    total = sides.total()
    assert total > 250 and abs(sides["nobody"] / total - 0.3) < 0.1, sides
    assert abs(sides["guide"] - sides["walkers"]) < 0.2 * total, sides


@pytest.mark.parametrize("words", ["--passes 2 --minibatches 2 --ppo_clip 0.2", "--core lstm"])
def test_agents_of_the_past_have_no_part_in_the_loss(tmp_path, words):
    """Neither do their rewards, which their own rows have."""
    net, _, rollout, flags = matches(tmp_path, words, T=60)
    others = dict(rollout)
    of_past = rollout["past"] != NOBODY
    after = torch.cat([torch.zeros_like(of_past[:1]), of_past[:-1]]) & ~rollout["done"][..., None]
    for name, own in (("guide", after[..., :1]), ("walker", after[..., 1:])):
        others[f"{name}/reward"] = rollout[f"{name}/reward"] + 5 * own
        assert own.any()
    found = []
    for batch in (rollout, others):
        results = learn_from(net, batch, None, monobeast.targets, monobeast.loss, flags, 0.0)
        found.append(torch.autograd.grad(results["total_loss"], models.trained(net)))
        real = [(~own["done"][1:] & (own["past"][:-1] == NOBODY)).sum()
                for _, own, _ in net.batches(batch)]  # fmt: skip
        assert results["real_transitions"] == sum(real) > 0
    assert any(seen.any() for seen in found[0])
    for seen, expected in zip(*found, strict=True):
        assert seen.equal(expected)


def test_equal_returns_are_a_draw():
    past_ = SimpleNamespace(_groups=[SimpleNamespace(name="a"), SimpleNamespace(name="b")])
    row = {f"{k}/episode_return": torch.full((1, A), 0.9) for k, A in (("a", 1), ("b", 3))}
    theirs = torch.tensor([[False, True, True, True]])
    assert past.Past._score(past_, row, theirs, theirs) == 0


def test_sides_are_groups_or_every_other_agent_and_need_two_agents_who_tell_their_returns():
    flags = flags_of(MATCH, PAST)
    spec = monobeast.make_environment(flags).spec
    guide, walker = agents.groups_of(spec)
    assert past.sides([guide, walker]) == [0, 1, 1] and past.sides([walker]) == [0, 1]
    untold = {k: v for k, v in spec.observations.items() if k != "walker/episode_return"}
    alone = {k: v for k, v in spec.observations.items() if k.startswith("guide")}
    for seen, actions in ((untold, spec.actions), (alone, Actions("multi_discrete", (4,)))):
        other = dataclasses.replace(spec, observations=seen, actions=actions)
        with pytest.raises(UserError, match="expected a ParallelEnv"):
            past.past_of_run(monobeast.Net, other, flags)


@pytest.mark.parametrize("beast_", ["monobeast", "polybeast"])
def test_a_run_of_several_agents_has_standings(tmp_path, monkeypatch, beast_):
    """With several passes and an actor process, and from servers."""
    words = f"{MATCH} {PAST} --batch_size 8 --unroll_length 10 --total_steps 2000 --eval_every 0"
    if beast_ == "monobeast":
        own = "--num_actors 1 --envs_per_actor 8 --use_lstm --passes 2 --minibatches 2"
        beast(tmp_path, *words.split(), *own.split())
        beast(tmp_path, "--mode", "test", "--num_episodes", 8, "--against", "run")
    else:
        monkeypatch.setattr(past, "CHANGE_AFTER", 30)  # in this process, where inference is
        own = "--num_servers 1 --envs_per_server 8 --num_inference_threads 2 --core mingru "
        own += "--net monobeast.Net --passes 1 --minibatches 1 --total_steps 4000"
        polybeast.main(f"--savedir {tmp_path} --xpid run {words} {own}".split())
    met, last = read(str(tmp_path / "run")), rows(tmp_path / "run")[-1]
    assert last["frame"] == 2 * last["step"]
    assert len(met) > (2 if beast_ == "polybeast" else 0)
    assert sum(sum(result[:3]) for result in met.values()) > 30
    lags = [row["lag_max"] for row in rows(tmp_path / "run") if "lag_max" in row]
    assert -4 <= last["game_past"] <= 4 and max(lags) < 100


# ======================================================================================= programs
def test_a_stop_at_a_barrier_changes_nothing(tmp_path, monkeypatch):
    words = f"{NIM} {SMALL} {PAST} --core mingru --barrier_updates 1 --no_learning_rate_decay "
    words += "--entropy_schedule constant --keep_checkpoints 3 --eval_every 0"
    steps, tick = [], Run.tick

    def remember(run, late=False):
        steps.extend([] if run.state.between_barriers else [run.learner.step])
        tick(run, late)

    monkeypatch.setattr(Run, "tick", remember)
    beast(tmp_path / "unbroken", *words.split(), "--total_steps", 1500)
    for total_steps in (*steps[2:12:8], 1500):
        beast(tmp_path / "stopped", *words.split(), "--total_steps", total_steps)
    assert "not, bit for bit" not in (tmp_path / "stopped/run/out.log").read_text()
    learned = [load(tmp_path / name / "run") for name in ("stopped", "unbroken")]
    assert_same(*({k: x[k] for k in ("model", "optimizer", "step")} for x in learned))
    assert kept_steps(tmp_path / "stopped/run") == kept_steps(tmp_path / "unbroken/run")


def test_a_killed_run_goes_on_with_the_table_of_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(past, "CHANGE_AFTER", 20)
    words = f"{NIM} {SMALL} {PAST} --eval_every 0".split()
    beast(tmp_path, *words, "--total_steps", 3000)
    run = tmp_path / "run"
    saved, met = load(run)["stats"]["standings"], read(str(run))
    assert saved["results"] == met and len(met) > 3
    assert all(sum(result[:3]) for result in met.values())
    assert rows(run)[-1]["rating"] == pytest.approx(saved["rating"])
    (run / "opponents.csv").write_text("step,wins,draws,losses,rating\n0,9,9,9,0\n")
    beast(tmp_path, "--total_steps", 3500)
    later = read(str(run))
    assert all(a <= b for k in met for a, b in zip(met[k][:3], later[k][:3], strict=True))
    assert later != met and later[0][1] < 9


def test_a_match_has_an_opponent_in_all_games_and_each_side_in_half_of_them(tmp_path, capsys):
    words = f"{NIM} {SMALL} --net tests.past_test.Table --total_steps 100 --eval_every 0"
    beast(tmp_path, *words.split())
    state = load(tmp_path / "run")
    for xpid, weights in (("loser", LOSER), ("perfect", PERFECT)):
        shutil.copytree(tmp_path / "run", tmp_path / xpid)
        state["model"]["logits"] = weights
        checkpoint.save(str(tmp_path / xpid / "model.tar"), state)
    for xpid, against in (("loser", "perfect"), ("perfect", "loser")):
        capsys.readouterr()
        test = ("--mode", "test", "--num_episodes", 60, "--against", against, "--xpid", xpid)
        beast(tmp_path, *test)
        won = 60 if xpid == "perfect" else 0
        said = capsys.readouterr().out
        assert f"Against {against}: {won} won, 0 drawn, {60 - won} lost." in said
        beast(tmp_path, *test, "--max_episode_steps", 1)
        assert f"Against {against}: 0 won, 0 drawn, 0 lost, 60 cut." in capsys.readouterr().out
        first_wins = float(re.search(r"Mean game_first_wins (\S+)", said)[1])
        assert 0.3 < first_wins < 0.7
    test = ("--mode", "test", "--xpid", "loser", "--against", "nothing")
    assert "--against nothing: there is no checkpoint" in refusal(tmp_path, *test)
    catch = monobeast.parse([*CATCH, "--against", "loser", "--mode", "test"])
    with pytest.raises(UserError, match="--against loser: expected .* players who move in turn"):
        past.match(nn.Module(), monobeast.make_environment(catch).spec, catch)


def test_the_pasts_network_needs_no_gradient():
    """Autocast keeps casts of what does, for all threads, which compute in streams of their own."""
    flags = flags_of(MATCH, PAST)
    own = past.past_of_run(monobeast.Net, monobeast.make_environment(flags).spec, flags)
    parameters = [*own._kept[1].parameters()]
    assert parameters and not any(x.requires_grad for x in parameters)


def test_the_best_file_of_self_play_follows_the_opponents(monkeypatch):
    other, past, keep = "Lost-v0", "--past_share 0.5", mock.Mock()
    of_turns = SimpleNamespace(numbers=("discount",), groups={})
    at_once = SimpleNamespace(numbers=(), groups={"a": 2})
    row = {"mean_eval_return": 0.5, f"mean_eval_return/{other}": -1.0, "has_players": True}
    others = f"--eval_env {other}"
    for words, spec, expected, saved in (
        (past, of_turns, 0.5, [0.0, 2.0]),  # the rating
        (f"{past} {others}", at_once, -1.0, [0.5, 0.5]),
        (others, of_turns, -1.0, [0.5, 0.5]),
        ("", of_turns, 0.5, [0.5, 0.5]),
    ):
        flags = flags_of(words, "--eval_every 100")
        evaluator = evaluate.Evaluator(SimpleNamespace(step=0), spec, flags, None, keep)
        evaluator._is_playing, evaluator._played = True, {"flags": {}}
        monkeypatch.setattr(evaluator, "_result", row.copy)
        evaluator.take()
        assert keep.call_args.args[0] == expected
        state = SimpleNamespace(flags=flags, stats=Stats(8), checkpoints=mock.Mock())
        for _ in range(2):
            RunState.save_if_best(state, 0.5, {})
            state.stats.standings.add(0, 1.0)
        assert [call.args[0] for call in state.checkpoints.save_if_best.call_args_list] == saved


@pytest.mark.parametrize("words, expected", [
    ("--past_share 0.5", "expected --keep_checkpoints_every, too"),
    (f"{PAST} --disable_checkpoint", "no --disable_checkpoint"),
    (f"{PAST} --env {CATCH[1]}", 'with metadata["own_discounts"] = True'),
])  # fmt: skip
def test_wrong_uses_are_one_sentence(tmp_path, words, expected):
    assert expected in refusal(tmp_path, *f"{NIM} {SMALL} {words}".split())
