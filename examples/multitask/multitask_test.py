# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import monobeast
from examples.multitask.popart import ValueHeads
from examples.multitask.tasks import SCALES, make_task
from libtorchbeast.distributions import make_distribution
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError, replace
from libtorchbeast.spec import Actions
from tests.support.forks import FORKS, SMALL, apply, command, git, import_fork, run_python
from tests.support.processes import load, rows

HERE = Path(__file__).parent
FLAGS = monobeast.parse("--env tasks --num_actors 0".split())


def task(number, env="tasks"):
    return make_task(type(FLAGS)(**vars(replace(FLAGS, env=env)), env_index=number))


def play(env, seed):
    """A game of random actions: its rewards, and what the last step told."""
    rewards, ended, random = [], False, np.random.default_rng(seed)
    env.reset(seed=seed)
    while not ended:
        seen, reward, ended, _, info = env.step(int(random.integers(6)))
        assert seen in env.observation_space
        rewards.append(reward)
    return rewards, info["torchbeast"]["game_numbers"]


# ========================================================================================== tasks
@pytest.mark.parametrize("number", range(6))
def test_an_environments_number_chooses_its_task(number):
    env, name = task(number), [*SCALES][number % 3]
    seen, _ = env.reset(seed=number)
    assert seen["task"].tolist() == np.eye(3)[number % 3].tolist()
    game = env.unwrapped.game
    assert game.game_name() == name and env.action_space.n == 6
    own, image = game.state().transpose(2, 0, 1), seen["image"]
    assert np.array_equal(image[: len(own)], own) and not image[len(own) :].any()


@pytest.mark.parametrize("number, name", [*enumerate(SCALES)])
def test_rewards_are_scaled_and_returns_told_without_it(number, name):
    env = task(number)
    games = [play(env, seed) for seed in range(20)]
    rewards = {reward for rewards, _ in games for reward in rewards}
    assert rewards == {0, SCALES[name]}
    for rewards, told in games:
        assert told == {name: sum(rewards) / SCALES[name]}


def test_one_task_can_be_named_and_a_game_with_more_channels_is_refused(monkeypatch):
    assert {task(number, "tasks/asterix").name for number in range(3)} == {"asterix"}
    with pytest.raises(UserError, match="--env tasks/pong: expected one of breakout, asterix, spa"):
        task(0, "tasks/pong")
    monkeypatch.setitem(SCALES, "freeway", 1000)
    with pytest.raises(UserError, match="MinAtar/Freeway-v1: expected at most 6 channels, seen 7"):
        task(3)


def test_no_flag_scales_the_one_hot():
    """--observation_scaling moments scales floats, and then no value head would be chosen."""
    assert Environment(lambda: task(1), 1).spec.scalable == []


# ========================================================================================= PopArt
def make_heads(rate):
    torch.manual_seed(0)
    return ValueHeads(16, 3, rate), torch.randn(50, 16), torch.eye(3)[torch.arange(50) % 3]


def sums_of(heads, returns):
    """The sums of a batch with 8 returns for each of the tasks {number: returns [8]}."""
    v = torch.stack([*returns.values()]).float()  # [T, B = 8]
    one_hot = torch.eye(3)[torch.tensor([*returns])].unsqueeze(1).expand(-1, 8, -1)
    return heads.sums(v, one_hot, torch.ones_like(v))


def test_new_moments_do_not_change_the_values():
    """Returns of 10,000 after returns of 1 change the scale 10,000 times."""
    heads, x, one_hot = make_heads(rate=0.5)
    before = heads(x, one_hot).detach()
    for size in (1.0, 1e4, 1e-2):
        heads.take(sums_of(heads, {k: size * (k + torch.randn(8)) for k in range(3)}))
        error = (heads(x, one_hot) - before).abs().max()
        assert error < 1e-6 * float(heads.scales().max() + heads.mean.abs().max()) + 1e-5
    assert not torch.allclose(heads.scales(), torch.ones(3), rtol=0.5)


def test_a_step_of_the_moments_by_hand():
    """Returns 1 and 3 have the mean 2 and the mean square 5; 0 and 1 go a quarter of the way."""
    heads, _, _ = make_heads(rate=0.25)
    v = torch.tensor([[1.0, 3.0, 77.0]])  # the last transition is not real
    one_hot = torch.eye(3)[1].expand(1, 3, 3)
    sums = heads.sums(v, one_hot, torch.tensor([[1.0, 1.0, 0.0]]))
    assert sums.tolist() == [[0, 2, 0], [0, 4, 0], [0, 10, 0]]
    heads.take(sums)
    assert heads.mean.tolist() == [0, 0.5, 0] and heads.square.tolist() == [1, 2, 1]
    torch.testing.assert_close(heads.scales(), torch.tensor([1, 1.75**0.5, 1]))


def test_a_task_without_transitions_keeps_its_moments_and_head():
    heads, _, _ = make_heads(rate=0.5)
    heads.take(sums_of(heads, {k: 5.0 * k + torch.randn(8) for k in range(3)}))
    before = {name: x.clone() for name, x in heads.state_dict().items()}
    heads.take(sums_of(heads, {0: torch.randn(8), 2: torch.randn(8)}))
    for name, x in heads.state_dict().items():
        assert x[1].equal(before[name][1]), name
        assert not x[0].equal(before[name][0]) and not x[2].equal(before[name][2]), name


def test_a_rate_of_0_is_without_popart():
    heads, x, one_hot = make_heads(rate=0.0)
    before = {name: x.clone() for name, x in heads.state_dict().items()}
    heads.take(sums_of(heads, {k: 1e3 * torch.randn(8) for k in range(3)}))
    for name, after in heads.state_dict().items():
        torch.testing.assert_close(after, before[name], rtol=1e-6, atol=0)
    plain = torch.nn.functional.linear(x, heads.weight, heads.bias)
    torch.testing.assert_close(heads(x, one_hot), (plain * one_hot).sum(-1))
    assert heads.scale_of(one_hot[None]).tolist() == [[1.0] * 50]


def test_errors_of_all_tasks_get_the_same_scale():
    heads, _, one_hot = make_heads(rate=1.0)
    returns = {k: 10.0**k * torch.randn(8) for k in range(3)}
    heads.take(sums_of(heads, returns))
    expected = torch.stack([x.std(correction=0) for x in returns.values()])
    torch.testing.assert_close(heads.scale_of(one_hot[None, :3])[0], expected, rtol=1e-4, atol=0)


# ======================================================================================= the fork
@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A clean copy with both diffs."""
    folder = tmp_path_factory.mktemp("fork") / "copy"
    changed = apply(HERE / "monobeast.diff", folder)
    git(folder, "apply", str(HERE / "polybeast.diff"))
    assert changed == {"monobeast.py"}
    assert set(git(folder, "diff", "--name-only").split()) == {"monobeast.py", "polybeast_env.py"}
    return folder


@pytest.mark.parametrize("ppo_clip", [0.0, 0.2])
def test_the_loss_is_the_same_whatever_the_scales_are(copy, ppo_clip):
    fork = import_fork(copy)
    torch.manual_seed(0)
    heads, one_hot = ValueHeads(16, 3, rate=0.01), torch.eye(3).expand(4, 3, 3)  # T = 4, B = 3
    numbers = dict(zip(["v", "advantage", "value", "now"], torch.randn(4, 4, 3), strict=True))
    logits = torch.randn(4, 3, 6)

    def losses(scales):
        heads.square.copy_(torch.tensor(scales) ** 2)
        goal = {name: heads.scales() * x for name, x in numbers.items()}
        outputs = dict(baseline=goal.pop("now"), policy_logits=logits)
        net = SimpleNamespace(
            baseline=heads, distribution=make_distribution(Actions("discrete", (6,)))
        )
        batch = SimpleNamespace(
            flags=replace(FLAGS, ppo_clip=ppo_clip), net=net, targets=goal, outputs=outputs,
            now=dict(task=one_hot), log_rho=logits[..., 0], rho=logits[..., 0].exp(),
            log_pi=logits[..., 1], own=one_hot[..., 0] < 2, progress=0.0, mean=torch.mean,
        )  # fmt: skip
        return fork.loss(batch)

    torch.testing.assert_close(losses([1.0, 10.0, 100.0]), losses([1.0, 1.0, 1.0]))


ENVS = {"monobeast": "--num_actors 0 --envs_per_actor 6", "polybeast": "--envs_per_server 6"}


def train(beast, copy, savedir, flags):
    run_python([*command(HERE, beast), *flags.split(), "--savedir", str(savedir)], copy)
    return rows(savedir / "run")


@pytest.mark.parametrize("beast", FORKS)
def test_the_fork_trains(beast, copy, tmp_path):
    flags = f"{SMALL} --batch_size 6 --total_steps 3000 {ENVS[beast]}"
    assert {f"game_{name}" for name in SCALES} <= train(beast, copy, tmp_path, flags)[-1].keys()
    model = load(tmp_path / "run")["model"]
    assert (model["baseline.mean"] != 0).all() and (model["baseline.square"] != 1).all()


def test_the_game_with_the_smallest_rewards_is_learned(copy, tmp_path):
    """Learning in small: without PopArt the return of Breakout stays below 0.8."""
    flags = "--num_actors 0 --total_steps 300_000 --seed 1 --xpid run"
    assert train("monobeast", copy, tmp_path, flags)[-1]["game_breakout"] > 1.2
