# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

import vtrace
from examples.rnd import exploration
from libtorchbeast.spec import Actions, Spec
from libtorchbeast.tools import fork_diff
from tests.support.forks import ENVS, SMALL, apply, command, import_fork, run_python
from tests.support.processes import load, rows

torch.set_num_threads(1)
HERE = Path(__file__).parent
MODULE = "examples.rnd.exploration"
ROOMS = f"--env {MODULE}:MultiRoom-N7-S4-v0 --net {MODULE}.Net"
SPEC = SimpleNamespace(num_actions=7)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A clean copy of the repository with monobeast.diff."""
    folder = tmp_path_factory.mktemp("rnd") / "copy"
    assert apply(HERE / "monobeast.diff", folder) == {"monobeast.py"}
    assert not fork_diff.outside("HEAD", folder)
    return folder


def train(copy, words, savedir):
    run_python([*words, "--xpid", "run", "--savedir", str(savedir)], copy)
    return savedir / "run"


@pytest.mark.parametrize("bonus", ["none", "rnd", "rnd-first", "ride", "ride-first"])
def test_the_fork_trains(copy, bonus, tmp_path):
    small = f"--unroll_length 20 {SMALL} {ENVS['monobeast']} --bonus {bonus}"
    folder = train(copy, [*command(HERE, "monobeast"), *small.split()], tmp_path)
    state = load(folder)
    assert state["updates"] >= 3
    assert (float(rows(folder)[-1]["bonus"]) > 0) == (bonus != "none")
    names = sum(state["optimizer_groups"], [])  # a parameter without a gradient has no averages
    trained = {names[i] for i in state["optimizer"]["state"]}
    assert {name for name in names if ".goal." not in name} == trained


def test_polybeast_trains(copy, tmp_path):
    words = f"-m polybeast {ROOMS} --bonus rnd-first --unroll_length 20 {SMALL} {ENVS['polybeast']}"
    folder = train(copy, words.split(), tmp_path)
    assert load(folder)["updates"] >= 3 and float(rows(folder)[-1]["bonus"]) > 0


def test_the_bonus_makes_the_agent_see_more(copy, tmp_path):
    """Learning in small: without a bonus, an episode shows about 18 different views."""
    words = [*command(HERE, "monobeast"), "--total_steps", "150_000"]
    assert float(rows(train(copy, words, tmp_path))[-1]["game_views"]) > 27


def test_the_bonus_has_v_trace_and_a_value_of_its_own(copy):
    fork = import_fork(copy)
    torch.manual_seed(0)
    reward, bonus = torch.randn(2, 5, 3)  # T = 5, B = 3
    outputs = dict(zip(["baseline", "loss/bonus_value"], torch.randn(2, 6, 3), strict=True))
    explorer = SimpleNamespace(bonus=lambda batch: dict(bonus=bonus))
    flags = SimpleNamespace(clip_rho_threshold=1.0, vtrace_lambda=0.9, bonus_weight=0.3)
    batch = SimpleNamespace(
        flags=flags, outputs=outputs, net=SimpleNamespace(explorer=explorer), reward=reward,
        discount=torch.full((5, 3), 0.9), log_rho=torch.zeros(5, 3), real=torch.ones(5, 3) > 0,
    )  # fmt: skip
    found = fork.targets(batch)
    (v, advantages), (bonus_v, bonus_advantages) = (
        vtrace.from_importance_weights(
            batch.log_rho, batch.discount, each, values[:-1], values[-1], lambda_=0.9
        )
        for each, values in zip((reward, bonus), outputs.values(), strict=True)
    )
    expected = dict(v=v, advantage=advantages + 0.3 * bonus_advantages, bonus_v=bonus_v)
    expected |= dict(value=outputs["baseline"][:-1], bonus=bonus)
    torch.testing.assert_close(found, expected)


def test_the_network_has_two_values():
    spec = Spec("", 1, dict(image=((7, 7, 3), "uint8")), Actions("discrete", (7,)))
    net = exploration.Net(spec, SimpleNamespace())
    outputs, _ = net(dict(image=torch.zeros(1, 1, 7, 7, 3, dtype=torch.uint8)))
    assert outputs["baseline"] != outputs["loss/bonus_value"]
    values = torch.stack([outputs["baseline"], outputs["loss/bonus_value"]], -1)
    assert torch.equal(values, net.values(net.see(exploration.one_hot(torch.zeros(1, 1, 7, 7, 3)))))


def test_visits_are_counted_in_each_episode():
    env = gymnasium.make("MultiRoom-N7-S4-v0", disable_env_checker=True)
    seen, _ = env.reset(seed=1)
    assert seen["loss/visits"] == 1 and seen["loss/visits"].dtype == np.float32
    assert {*seen} == {"image", "loss/visits"}
    counts = [env.step(0)[0]["loss/visits"] for _ in range(8)]  # turns left, twice around
    assert counts == [1, 1, 1, 2, 2, 2, 2, 3]
    *_, info = env.step(6)  # does nothing
    assert info["torchbeast"]["game_numbers"] == {"views": 4}
    assert env.reset(seed=1)[0]["loss/visits"] == 1


@pytest.mark.parametrize("name", ["MultiRoom-N7-S4-v0", "KeyCorridor-S3-R3-v0", "DoorKey-8x8-v0"])
def test_one_hot_says_all_of_a_view(name):
    env = gymnasium.make(name, disable_env_checker=True)
    seen, _ = env.reset(seed=0)
    view = torch.from_numpy(seen["image"])[None, None]
    parts = exploration.one_hot(view).view(7, 7, -1).split(exploration.KINDS, -1)
    assert torch.equal(torch.stack([x.argmax(-1) for x in parts], -1).byte(), view[0, 0])
    assert all(torch.equal(x.sum(-1), torch.ones(7, 7)) for x in parts)


def batch_of(visits, view=0):
    T, B = visits.shape
    image = torch.full((T, B, 7, 7, 3), view, dtype=torch.uint8)
    image[..., 0] += torch.arange(T).view(T, 1, 1, 1).byte()  # each row has another view
    return SimpleNamespace(
        now=dict(image=image, action=torch.zeros(T, B, dtype=torch.int64)),
        next={"image": image + 1, "loss/visits": visits}, reward=torch.zeros(T, B),
        weights=torch.ones(T, B), flags=SimpleNamespace(discounting=0.5), mean=torch.mean,
    )  # fmt: skip


VISITS = torch.tensor([[1.0], [4.0], [2.0], [1.0], [1.0]])


@pytest.mark.parametrize(
    "kind, only_first, factors",
    [
        (exploration.Novelty, False, [1, 1, 1, 0, 1]),
        (exploration.Novelty, True, [1, 0, 0, 0, 1]),
        (exploration.Impact, False, [1, 0.5, 0.5**0.5, 0, 1]),
        (exploration.Impact, True, [1, 0, 0, 0, 1]),
    ],
)
def test_the_bonus_falls_with_visits_and_has_returns_of_size_1(kind, only_first, factors):
    torch.manual_seed(0)
    explorer, batch = kind(SPEC, only_first), batch_of(VISITS)
    batch.weights[3] = 0  # this transition is not real
    novelty = explorer.novelty(batch)
    first = explorer.bonus(batch)
    assert not first["bonus"].any()  # there are no moments yet
    expected = novelty.flatten() * torch.tensor(factors)
    sums = [expected[0]]
    for bonus in expected[1:]:
        sums.append(bonus + sums[-1] / 2)
    assert torch.allclose(first["bonus_return"].flatten(), torch.stack(sums))
    net = SimpleNamespace(explorer=explorer)
    batch.targets = first
    for count in (4, 8):  # the second batch is like the first
        exploration.Net.take_statistics(net, exploration.Net.statistics(net, batch))
        assert explorer.moments[0] == count
    deviation = first["bonus_return"][batch.weights > 0].std(correction=0)
    assert torch.allclose(explorer.bonus(batch)["bonus"].flatten(), expected / deviation, rtol=1e-3)


def test_rnd_judges_the_new_view():
    explorer, batch = exploration.Novelty(SPEC, False), batch_of(VISITS)
    novelty = explorer.novelty(batch)
    batch.now["image"] = 0 * batch.now["image"]
    batch.next["image"][1] = batch.next["image"][0]
    changed = explorer.novelty(batch) != novelty
    assert changed.flatten().tolist() == [False, True, False, False, False]


def learned(explorer, batch):
    """Trains with the batch. Returns the losses before the first and the last of 100 steps."""
    weights = [x for x in explorer.parameters() if x.requires_grad]
    optimizer, log = torch.optim.Adam(weights, 1e-3), []
    for _ in range(100):
        optimizer.zero_grad()
        losses = explorer.losses(batch)
        sum(losses.values()).backward()
        optimizer.step()
        log.append({name: x.item() for name, x in losses.items()})
    return log[0], log[-1]


def test_rnd_is_bored_by_what_it_has_seen():
    torch.manual_seed(0)
    explorer, seen = exploration.Novelty(SPEC, False), batch_of(VISITS)
    learned(explorer, seen)
    assert explorer.novelty(seen).max() < 0.2 * explorer.novelty(batch_of(VISITS, view=3)).min()
    assert not any(x.requires_grad for x in explorer.goal.parameters())


def test_ride_learns_what_an_action_does_with_its_authors_weights():
    torch.manual_seed(0)
    explorer, batch = exploration.Impact(SPEC, False), batch_of(VISITS)
    (now, then), action = explorer.embedded(batch), batch.now["action"]
    logits = explorer.inverse(torch.cat([now, then], -1)).flatten(0, 1)
    one_hot = torch.nn.functional.one_hot(action, SPEC.num_actions)
    expected = explorer.forward_model(torch.cat([now, one_hot], -1))
    distances = torch.linalg.vector_norm(expected - then, dim=-1)
    losses = explorer.losses(batch)
    inverse = torch.nn.functional.cross_entropy(logits, action.flatten())
    torch.testing.assert_close(losses["inverse_loss"], 0.1 * inverse)
    torch.testing.assert_close(losses["forward_loss"], 10 * (distances**2 / 2).mean())
    first, last = learned(explorer, batch)
    for name in ("inverse_loss", "forward_loss"):
        assert 0 < last[name] < 0.1 * first[name]


def test_an_action_without_effect_has_no_impact():
    explorer, batch = exploration.Impact(SPEC, False), batch_of(VISITS)
    batch.next["image"][1] = batch.now["image"][1]
    assert (explorer.novelty(batch).flatten() > 0).tolist() == [True, False, True, True, True]
