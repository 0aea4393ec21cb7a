# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Several agents who act at once: their rows, their loss, and whole runs of MonoBeast. past_test.py
has runs with actor processes, and in PolyBeast."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import monobeast
import polybeast_env
from libtorchbeast.agents import batches_of_groups, groups_of, make_net
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.learner import Learner
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, Clock
from libtorchbeast.moments import Moments
from libtorchbeast.parallel import Grouped, grouped
from libtorchbeast.spec import Actions
from libtorchbeast.transitions import learn_from, targets_of, transitions_of
from libtorchbeast.update import Updater
from tests.own_discounts_test import play
from tests.support import monobeast as mono
from tests.support.parallel_games import LEAVES, NUMBERS, STEPS, Match
from tests.support.processes import load, rows

pytestmark = pytest.mark.usefixtures("as_before")

N, T = 3, 7
WALKERS = 2


def flags_of(text=""):
    small = f"--env match --num_actors 0 --envs_per_actor {N} --batch_size {N} --unroll_length {T}"
    return mono.parse(*f"{small} --precision fp32 --xpid run {text}".split())


def rollout_of(text=""):
    """A network, and a rollout [T+1, N, ...] that begins with the first row of all games."""
    flags, env = flags_of(text), Environment(Match, N, "match")
    torch.manual_seed(0)
    net = make_net(monobeast.Net, env.spec, flags)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)  # no policy is uniform
    actor = monobeast.Actor(env, net, 0, flags, Clock(ACTOR_ACTIVITIES))
    return net, mono.unroll(actor, T), flags


def compute_loss(net, batch, flags, given=None):
    return learn_from(net, batch, given, monobeast.targets, monobeast.loss, flags, 0.0)


# ========================================================================================== groups
def test_roles_with_other_spaces_are_groups():
    env = Environment(Match, N, "match")
    guide, walker = groups_of(env.spec)
    assert (guide.name, guide.agents, guide.numbers) == ("guide", 1, slice(0, 1))
    assert (walker.name, walker.agents, walker.numbers) == ("walker", 2, slice(1, 3))
    assert guide.spec.observations == {"frame": ((NUMBERS + 1,), "float32")}
    mask = {"action_mask": ((NUMBERS,), "int8"), "seen/number": ((NUMBERS,), "int8")}
    assert walker.spec.observations == mask
    assert guide.spec.actions == Actions("discrete", (4,)) and env.spec.frames_per_step == 2
    assert walker.spec.actions == Actions("discrete", (3,))
    assert env.spec.numbers == ("game/return_walker_0", "game/return_walker_1")
    env.close()
    assert env.first.env.closed


class Alike:
    """Agents with equal spaces, whose names may be anything."""

    metadata = {}

    def __init__(self, *agents, groups=None, action_spaces=None, spaces_seen=None):
        self.possible_agents = self.agents = [*agents]
        self.metadata = {"groups": groups} if groups else {}
        self.actions, self.seen = action_spaces or {}, spaces_seen or {}

    def observation_space(self, agent):
        return self.seen.get(agent, spaces.Discrete(3))

    def action_space(self, agent):
        return self.actions.get(agent, spaces.Discrete(2))

    def reset(self, seed=None, options=None):
        return dict.fromkeys(self.agents, 1), {}

    def step(self, actions):
        self.acted = actions
        nothing = dict.fromkeys(self.agents, False)
        return dict.fromkeys(self.agents, 2), dict.fromkeys(self.agents, 1), nothing, nothing, {}


def spec_of(env):
    return Environment(lambda: env, 1, "alike").spec


def names_of(env):
    return {group.name: group.agents for group in groups_of(spec_of(env))}


def test_returns_of_agents_with_like_names_have_columns_of_their_own():
    spec = spec_of(Alike("red", "b-1", "b_1"))
    assert spec.numbers == ("game/return_b_1", "game/return_b_1_")


def test_how_groups_are_named():
    assert names_of(Alike("red_0", "red_1")) == {"red": 2}
    assert names_of(Alike("alice", "bob")) == names_of(Alike(1, 2)) == {"agents": 2}
    other = {"red_1": spaces.Discrete(5), "blue": spaces.Discrete(5)}
    assert names_of(Alike("red_0", "red_1", action_spaces=other)) == {"red": 1, "red_1": 1}
    other = {"wolf_1": spaces.Discrete(5), "game_0": spaces.Discrete(6)}
    wolves = Alike("wolf_1", "wolf", "game_0", action_spaces=other)
    assert names_of(wolves) == {"wolf": 1, "wolf_": 1, "game_": 1}
    roles = {"red_0": "red", "blue.0": "b.lue"}
    assert names_of(Alike("red_0", "blue.0", groups=roles)) == {"red": 1, "b_lue": 1}
    assert names_of(Alike("red_0", "blue_0", "red_1", groups=roles)) == {"red": 1, "agents": 2}


def groups_that_see(**spaces_seen):
    env = Alike(*spaces_seen, spaces_seen=spaces_seen)
    return [group.spec for group in groups_of(spec_of(env))]


def test_what_the_agents_of_a_group_see():
    """A reward among the parts of an observation makes no group. Agents whose numbers stand for
    other things are none. Many agents have the sets of one."""
    reward = spaces.Dict(prev=spaces.Dict(reward=spaces.Box(-1, 1)))
    (spec,) = groups_that_see(a=reward, b=reward)
    assert spec.observations == {"prev/reward": ((1,), "float32")}
    each = groups_that_see(a=spaces.Discrete(4), b=spaces.Discrete(8))
    assert [spec.sets for spec in each] == [{"frame": 4}, {"frame": 8}]
    many = {f"a{i}": spaces.MultiDiscrete([40] * 40) for i in range(50)}
    (spec,) = groups_that_see(**many)
    assert spec.sets == {"frame": 40}


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (spaces.Box(-2, 4, (2,)), [0.0, -1.0, 1.0, 0.0], [[1, -2], [4, 1]]),
        (spaces.Box(0, 1, (1, 2)), [-1.0, 1.0, 0.0, 0.0], [[[0, 1]], [[0.5, 0.5]]]),
        (spaces.MultiDiscrete([2, 3]), [0, 2, 1, 1], [[0, 2], [1, 1]]),
        (spaces.Discrete(3, start=5), [0, 2], [5, 7]),
    ],
)
def test_each_agent_gets_its_actions_in_its_space(space, given, expected):
    made = Alike("a_0", "a_1", action_spaces=dict.fromkeys(["a_0", "a_1"], space))
    env = Environment(lambda: made, 1, "alike")
    env.initial(0)
    row = env.step(np.array([given], env.spec.actions.dtype))
    for agent, action in zip(made.possible_agents, expected, strict=True):
        assert space.contains(made.acted[agent]) and np.array_equal(made.acted[agent], action)
    assert row["a/reward"].tolist() == [[1, 1]] and row["a/frame"].tolist() == [[2, 2]]
    (group,) = groups_of(env.spec)
    assert env.spec.sets == {"a/frame": 3} and group.spec.sets == {"frame": 3}


def changed(env, **attributes):
    vars(env).update(attributes)
    return env


def returning(env, **told):
    """The environment, whose `step` tells these parts otherwise."""
    step, names = env.step, ["seen", "rewards", "terminations", "truncations", "infos"]
    own = lambda actions: (*(dict(zip(names, step(actions), strict=True)) | told).values(),)
    return changed(env, step=own)


PAIR = spaces.MultiDiscrete([2, 2])
WRONG = [
    (changed(Alike("a"), agent_iter=None), "Alike, an AEC environment; expected a ParallelEnv, or"),
    (Alike(), "expected all agents that a game may have in its possible_agents"),
    (Alike("a", "b", groups={"a": "x", "b": "x"}, action_spaces={"b": PAIR}),
     r"\] 'x': expected agents with equal spaces, seen 'a' with .* and 'b' with .*\(2, 2\)"),
    (Alike("a", "b", action_spaces={"b": spaces.Box(0, 1, (1,))}),
     r"expected Boxes of all agents or of none, .* seen 'a' with Discrete\(2\) and 'b' with"),
    (Alike("a", "b", action_spaces={"b": PAIR}), "with equally many numbers in an action, seen"),
    (Alike("a", groups=["a"]), r"groups\"\]: expected {AGENT: GROUP}, seen \['a'\]"),
    (changed(Alike("a", "b"), reset=lambda seed: ({"a": 1}, {})),
     "of each in `agents`, .* not all of 'b'"),
    (changed(Alike("a"), agents=[]), r"reset\(\): expected at least one agent in `agents`"),
    (returning(Alike("a"), rewards={}), "each that has acted also reward, .* not all of 'a'"),
    (returning(Alike("a"), seen={}), "of each in `agents`, .*; seen not all of 'a'"),
    (returning(Alike("a"), seen={"a": {"x": 1}}),
     r"of 'a': expected shapes {'frame': .*, seen {'x': "),
    (returning(Alike("a"), rewards={"a": np.nan}), r"^Reward: .* number, seen nan .* from 'a'"),
    (returning(Alike("a"), rewards={"a": None}), r"^Reward: .* number, seen None .* from 'a'"),
    (returning(Alike("a", "b"), terminations={"a": True, "b": False}),
     "agents: expected none that has ended before, or ends before it acts, seen 'a'"),
    (returning(Alike("a", "b"), truncations={"a": False, "b": True}), "before it acts, seen 'b'"),
    (changed(Alike("a"), agents=["a", "ghost"], reset=lambda seed: ({"a": 1, "ghost": 1}, {})),
     "agents: expected names of possible_agents, seen 'ghost'"),
    (changed(Alike("a", "b"), reset=lambda seed: {"a": 1, "b": 1}),
     r"reset\(\) of a ParallelEnv: expected 2 values, seen a dict"),
    (changed(Alike("a"), step=lambda actions: ({}, {}, {}, {})),
     r"step\(\) of a ParallelEnv: expected 5 values, seen 4 values"),
    (Alike("a_0", groups={"A_0": "x"}), r"agents of possible_agents, seen {'A_0': 'x'}"),
    (Alike("a", groups={"a": ""}), r"expected names of groups for agents .* seen {'a': ''}"),
    (changed(Alike("a"), metadata={"game_numbers": ["x"]}), "expected none of a ParallelEnv"),
]  # fmt: skip


@pytest.mark.parametrize(("env", "expected"), WRONG)
def test_a_wrong_environment_is_refused_in_one_sentence(env, expected):
    with pytest.raises(UserError, match=rf"\A.*{expected}.*\Z"):  # no line ends in it
        play(lambda: env, [0, 0])


def test_an_environment_of_one_agent_is_left_as_it_is():
    env = gymnasium.make("CartPole-v1")
    assert grouped(lambda: env)() is env
    spec = spec_of(env)
    net = make_net(monobeast.Net, spec, flags_of())
    assert groups_of(spec) == [] and type(net).__name__ == "VectorNet"


def test_a_class_for_gymnasium_may_declare_what_its_environment_does_not():
    class Filmed(Grouped, gymnasium.Env):
        metadata = {"render_modes": [], "render_fps": 7}

    seen = Filmed(Match()).metadata
    assert seen["render_fps"] == 7 and "return_walker_0" in seen["game_numbers"]
    assert {k: seen[k] for k in Match.metadata} == Match.metadata


# ============================================================================================ rows
def test_an_agent_that_leaves_early():
    """Over one game and the first two rows of the next one."""
    each = play(Match, [0] * (STEPS + 2))
    told = lambda name: each[name][1:].tolist()
    assert told("done") == [False] * 4 + [True, False]
    assert told("episode_over") == told("truncated") == [False] * 3 + [True, False, False]
    assert told("terminated") == [False] * 6 and told("episode_step") == [1, 2, 3, 4, 0, 1]
    yes, no = [True, True], [False, False]
    assert each["walker/done"][0].tolist() == yes
    assert told("walker/done") == [no, no, [False, True], [False, True], yes, no]
    assert told("walker/terminated") == [no, [False, True], no, [True, False], no, no]
    assert told("walker/truncated") == [no] * 6
    assert told("guide/truncated") == [[False]] * 3 + [[True], [False], [False]]
    assert told("guide/terminated") == [[False]] * 6
    mask = np.array(told("walker/action_mask")).any(axis=-1).tolist()
    assert mask == [yes, [True, False], yes, [False, True], yes, yes]
    number = np.array(told("walker/seen/number"))
    assert not number[LEAVES:STEPS, 1].any() and number[:, 0].any(axis=-1).all()
    rewards = np.array(told("walker/reward"))
    assert not rewards[LEAVES:STEPS, 1].any() and told("reward")[4] == 0
    assert np.allclose(rewards[:, 0], np.ravel(told("guide/reward")))
    returns = np.cumsum(rewards[:STEPS], axis=0)
    assert np.allclose(told("walker/episode_return")[:STEPS], returns)
    assert told("walker/episode_return")[STEPS] == [0, 0]
    assert told("episode_return")[STEPS - 1] == pytest.approx(returns[-1, 0])
    numbers = [told(f"game/return_walker_{i}")[STEPS - 1] for i in range(2)]
    assert numbers == pytest.approx(returns[-1].tolist())
    assert np.isnan(told("game/return_walker_0")[STEPS])


def test_each_agent_has_a_reward_and_a_return_of_its_own():
    rewards = {"a_0": 1.0, "a_1": 20.0, "b": 300.0}
    each = play(lambda: returning(Alike(*rewards, groups={"b": "b"}), rewards=rewards), [0] * 3)
    assert each["reward"].tolist() == [0, 1, 1, 1]
    assert each["a/reward"].tolist() == [[0, 0], [1, 20], [1, 20], [1, 20]]
    assert each["b/reward"].tolist() == [[0], [300], [300], [300]]
    for group in ("", "a/", "b/"):
        returns = each[f"{group}reward"].cumsum(axis=0)
        assert np.array_equal(each[f"{group}episode_return"], returns)


def test_an_agent_that_comes_later_or_again_begins_an_episode():
    class Comes(Alike):
        agents_after = [["a"], ["a", "b"], ["a", "b"], ["a"], []]

        def reset(self, seed=None, options=None):
            self.agents, self.steps = ["a"], 0
            return super().reset()

        def step(self, actions):
            acted, self.agents = self.agents, self.agents_after[self.steps]
            self.steps += 1
            over = {agent: agent == "b" and self.steps == 3 for agent in acted}
            seen = dict.fromkeys([*acted, *self.agents], 2)
            return seen, dict.fromkeys(acted, 1.0), over, dict.fromkeys(acted, False), {}

    each = play(lambda: Comes("a", "b"), [0] * 5)
    # b comes at row 2, ends at row 3, comes again at once, and has no word of its end at row 4.
    assert each["agents/done"][:, 1].tolist() == [True, True, True, False, True, True]
    assert each["agents/frame"][:, 1].tolist() == [0, 0, 2, 2, 0, 0]
    assert each["agents/terminated"][:, 1].tolist() == [False] * 3 + [True, False, False]
    for ended in (each["agents/terminated"][:, 0], each["terminated"]):
        assert ended.tolist() == [False] * 5 + [True]


def test_a_mask_that_forbids_all_is_an_error_unless_its_agent_ends():
    """In Match each walker's last one does."""

    class Masked(Match):
        def observe(self, agents, ended):
            return super().observe(agents, [*ended, "walker_1"])

    with pytest.raises(UserError, match="'walker/action_mask' of environment 0: expected an a"):
        play(Masked, [0])


def test_an_agent_that_is_absent_has_no_last_action():
    net, rollout, _ = rollout_of()
    for name in ("action", "last_action"):
        rollout[name] = torch.ones_like(rollout[name])
    rows = {name: x for name, x in rollout.items() if "/" not in name or "walker" in name}
    rows |= {name: x for name, x in rollout.items() if name.startswith("guide")}
    for group, _, own, _ in net.rows_of_groups(rows, ()):
        if group.name == "walker":
            absent = own["done"] & ~rollout["done"].repeat_interleave(WALKERS, 1)
            assert absent.any() and not own["last_action"][absent].any()
            assert own["last_action"][~own["done"]].all() and own["action"].all()


# ============================================================================================ loss
@pytest.mark.parametrize("text", ["", "--use_lstm"])
def test_nothing_is_learned_from_an_agent_that_has_left(text):
    """The loss does not depend on what the rows of an agent that has left hold. agents_test.py has
    that it is the sum of the groups' own."""
    net, rollout, flags = rollout_of(f"{text} --passes 1 --minibatches 1")
    together = compute_loss(net, rollout, flags)
    is_done = rollout["walker/done"]
    expected = torch.zeros(T + 1, dtype=torch.bool)
    expected[[0, *range(LEAVES + 1, STEPS + 2)]] = True  # row STEPS + 1 begins the next game
    assert (is_done[:, :, 1] == expected[:, None]).all()
    real = 2 * N * (T - 1) + N * (T - int(expected[1:].sum()))
    assert together["real_transitions"].item() == real
    together["total_loss"].backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    has_left = is_done.clone()
    has_left[[0, STEPS + 1]] = False
    changed = dict(rollout)
    for k in ("walker/seen/number", "walker/reward"):
        x = changed[k] = rollout[k].clone()
        x[has_left] = 1
    net.zero_grad()
    other = compute_loss(net, changed, flags)
    torch.testing.assert_close(other["total_loss"], together["total_loss"])
    other["total_loss"].backward()
    for p, gradient in zip(net.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient)


@pytest.mark.parametrize("text", ["", "--use_lstm"])
def test_the_targets_of_an_agent_that_leaves_are_those_of_its_own_time(text):
    """A truncated agent bootstraps, and a terminated one does not."""
    net, rollout, flags = rollout_of(f"{text} --passes 1 --minibatches 1 --discounting 0.9")
    (guide, of_guide), (walker, batch) = batches_of_groups(net, rollout)
    found = monobeast.targets(transitions_of(walker, batch, flags, 0.0))
    short = {k: x[: LEAVES + 1] for k, x in batch.items() if not k.startswith("core_state/")}
    short |= {k: x for k, x in batch.items() if k.startswith("core_state/")}
    alone = monobeast.targets(transitions_of(walker, short, flags, 0.0))
    for name in ("v", "advantage"):
        torch.testing.assert_close(found[name][:LEAVES, 1::WALKERS], alone[name][:, 1::WALKERS])
    discount = transitions_of(walker, batch, flags, 0.0).discount
    assert (discount[STEPS - 1, 0::2] == 0).all() and (discount[LEAVES - 1, 1::2] == 0).all()
    discount = transitions_of(guide, of_guide, flags, 0.0).discount
    assert torch.equal(discount, torch.full_like(discount, 0.9))


@pytest.mark.parametrize("text", ["", "--use_lstm"])
def test_several_passes_learn_from_the_targets_of_the_first(text):
    """One pass over all of a batch with given targets has the loss that computes them itself."""
    net, rollout, flags = rollout_of(f"{text} --passes 2 --minibatches 1 --ppo_clip 0.2")
    update = Updater(net, flags, torch.device("cpu"), None, monobeast.targets, monobeast.loss)
    first, second = update.parts(rollout, 0.0)
    parts = targets_of(net, rollout, monobeast.targets, flags, 0.0)[0]
    assert parts["1/v"].shape == (T, N, WALKERS) and parts["0/v"].shape == (T, N, 1)
    given = compute_loss(net, first.batch, flags, first.targets)
    own = compute_loss(net, rollout, flags)
    for name in ("total_loss", "real_transitions"):
        torch.testing.assert_close(given[name], own[name])
    learner = Learner(update)
    assert learner.update(rollout, lambda state, version: None) is not None
    assert learner.updates == 2 and learner.step == own["real_transitions"].item()


def test_each_network_has_moments_of_its_own_agents():
    text = "--observation_scaling moments --reward_scaling returns"
    net, rollout, flags = rollout_of(text)
    assert not hasattr(net, "moments")
    update = Updater(net, flags, torch.device("cpu"), None, monobeast.targets, monobeast.loss)
    update.take_in(rollout)
    for group, (own, batch) in zip(net.groups, batches_of_groups(net, rollout), strict=True):
        expected = Moments(group.spec, flags, pixels=False)
        expected.update(batch)
        assert own.moments.count == (~batch["done"][1:]).sum()
        assert expected.state_dict().keys() == own.moments.state_dict().keys()
        for name, x in own.moments.state_dict().items():
            assert torch.equal(x, expected.state_dict()[name])
    assert net.nets["guide"].moments.mean.shape == (NUMBERS + 1,)


# ============================================================================================ runs
LEARN = "--num_actors 0 --envs_per_actor 8 --batch_size 8 --unroll_length 16 --precision fp32"
LEARN += " --learning_rate 1e-2 --passes 4 --minibatches 2 --discounting 0.5"


def test_monobeast_learns_to_coordinate_and_counts_games(tmp_path, capsys, monkeypatch):
    """`create_env` returns the ParallelEnv itself. A perfect game returns 4 to the guide and to
    walker 0, and 2 to walker 1; a random one about 1.3."""
    monkeypatch.setattr(monobeast, "create_env", lambda flags: Match())
    flags = ["--env", "match", *LEARN.split(), "--eval_every", 0]
    mono.beast(tmp_path, *flags, "--total_steps", 10_000)
    path = tmp_path / "run"
    last, state = rows(path)[-1], load(path)
    assert last["mean_game_return"] > 3.5 and last["game_return_walker_0"] > 3.5
    assert last["game_return_walker_1"] > 1.7 and last["mean_game_length"] == STEPS
    # Of a game's five transitions in each of three columns, 4 + 4 + 2 are real.
    assert state["step"] >= 10_000 and abs(last["games"] - state["step"] / 10) < 30
    mono.beast(tmp_path, "--total_steps", 10_500)
    assert load(path)["updates"] > state["updates"] and load(path)["step"] >= 10_500
    capsys.readouterr()
    mono.beast(tmp_path, *"--mode test --num_episodes 5".split())
    printed = capsys.readouterr().out
    assert f"to {STEPS} in 5 games." in printed and "Mean game_return_walker_1 " in printed


def test_a_recurrent_run_is_filmed_and_exported(tmp_path):
    small = "--env tests.support.parallel_games:Match-v0 --num_actors 0 --envs_per_actor 4 "
    small += "--batch_size 4 --unroll_length 8 --use_lstm --total_steps 100 --eval_every 0"
    mono.beast(tmp_path, *small.split())
    mono.beast(tmp_path, *"--mode test_render --num_episodes 1".split())
    assert (tmp_path / "run" / "test.mp4").stat().st_size > 500
    mono.beast(tmp_path, "--mode", "export")
    assert (tmp_path / "run" / "policy.pt2").stat().st_size > 1000


def test_a_server_tries_no_action_that_a_mask_may_forbid(monkeypatch):
    monkeypatch.setattr(Match, "step", lambda *_: pytest.fail("the action may be forbidden"))
    monkeypatch.setattr(polybeast_env, "create_env", lambda flags: Match())
    polybeast_env.try_environment(polybeast_env.parse("--env match --num_servers 1".split()))


@pytest.mark.parametrize("ends", ["terminations", "truncations"])
@pytest.mark.parametrize("wrong", ["False", [False], np.nan, 2], ids=str)
def test_the_end_of_an_agent_that_is_no_bool_is_refused(ends, wrong):
    class Wrong(Match):
        def step(self, actions):
            seen, rewards, *both, info = super().step(actions)
            both[ends == "truncations"] |= {"walker_0": wrong}
            return seen, rewards, *both, info

    with pytest.raises(UserError, match=f"{ends[:-1]}: expected a bool, seen .* from 'walker_0'"):
        play(Wrong, [0])


def test_environments_with_another_order_of_agents_are_refused():
    both = iter([Alike("keeper_0", "keeper_1"), Alike("keeper_1", "keeper_0")])
    with pytest.raises(UserError, match="Environment 1: expected .*keeper_0', 'keeper_1'.* seen "):
        play(both.__next__, [], 2)


def test_the_returns_of_all_are_told_where_a_wrapper_cuts_the_game():
    class Cut(Grouped):
        def step(self, action):
            row, reward, terminated, truncated, info = super().step(action)
            self.steps += 1
            return row, reward, terminated, truncated or self.steps == 3, info

        def reset(self, **seed):
            self.steps = 0
            return super().reset(**seed)

    each = play(lambda: Cut(Match()), [0] * 3)
    assert each["truncated"].tolist() == [False] * 3 + [True]
    assert np.array_equal(np.isfinite(each["game/return_walker_0"]), each["truncated"])
