# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Running moments: right over batches, of real transitions only, and carried by the weights."""

import pytest
import torch
from torch import nn

import monobeast
from libtorchbeast import models
from libtorchbeast.models import forward
from libtorchbeast.moments import LIMIT, Moments, discounted_returns, laid_out
from libtorchbeast.spec import Actions, Spec
from libtorchbeast.weights import NewestWeights, SharedWeights
from tests.support.compare import assert_same
from tests.support.monobeast import parse

T, B = 6, 4
OBSERVATIONS = {
    "hand": ((2,), "float64"), "picture": ((3, 9, 9), "float32"),
    "level": ((), "float32"), "token": ((2,), "int64"),
}  # fmt: skip
SPEC = Spec("some", B, OBSERVATIONS, Actions("discrete", (3,)))
SCALED = ("--observation_scaling", "moments", "--reward_scaling", "returns")


def moments(*flags, spec=SPEC):
    return Moments(spec, parse("--env", "Some-v0", *(flags or SCALED)), pixels=True)


def played(reward, done, steps, returns):
    """What `discounted_returns` reads of rows."""
    return dict(reward=reward, done=done, episode_step=steps.int(), episode_return=returns)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_are_laid_out_with_the_channels_last(dtype):
    images = torch.randint(0, 256, (2, 3, 4, 40, 36)).to(dtype)
    for out in (laid_out(images), models.as_floats(images[0])):
        flat = out.reshape(-1, 4, 40, 36)
        assert flat.is_contiguous(memory_format=torch.channels_last)
    once = laid_out(images)
    assert torch.equal(once, images)
    assert laid_out(once).data_ptr() == once.data_ptr()  # not copied again


def random_rows(seed=0):
    torch.manual_seed(seed)
    done = torch.rand(T + 1, B) < 0.2
    steps, returns = torch.zeros(T + 1, B), torch.zeros(T + 1, B)
    reward = torch.randn(T + 1, B) * 3 + 1
    reward[done] = 0
    for t in range(1, T + 1):
        steps[t] = torch.where(done[t], 0, steps[t - 1] + 1)
        returns[t] = torch.where(done[t], 0, returns[t - 1] + reward[t])
    return {
        "hand": torch.randn(T + 1, B, 2, dtype=torch.float64) * 50 + 1000,
        "picture": torch.rand(T + 1, B, 3, 9, 9),
        "level": torch.rand(T + 1, B),
        "token": torch.randint(9, (T + 1, B, 2)),
        **played(reward, done, steps, returns),
    }


def test_batches_give_the_moments_of_all_real_transitions():
    own, seen, returns = moments(), [], []
    for seed in range(5):
        rows = random_rows(seed)
        own.update(rows)
        real = ~rows["done"][1:]
        parts = [rows["hand"][:-1][real], rows["level"][:-1][real].unsqueeze(-1)]
        seen.append(torch.cat(parts, dim=-1))
        returns.append(discounted_returns(rows, own.discounting)[real])
    x = torch.cat(seen)
    torch.testing.assert_close(own.mean, x.mean(dim=0).float(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(own.variance, x.var(dim=0, correction=0).float(), rtol=1e-3, atol=0)
    assert own.count == len(x)
    deviation = torch.cat(returns).std(correction=0)
    rewards = torch.tensor([[1.0, -2.0, 1e9]])
    expected = torch.tensor([[1 / deviation, -2 / deviation, LIMIT]])
    torch.testing.assert_close(own.scaled_rewards(rewards), expected)


def test_floats_are_scaled_and_images_and_whole_numbers_are_not():
    own, rows = moments(), random_rows()
    torch.testing.assert_close(own.scaled(rows)["level"], rows["level"])  # before an update
    for seed in range(20):
        own.update(random_rows(seed))
    rows["hand"][0, 0, 0] = 1e9
    before = {k: v.clone() for k, v in rows.items()}
    scaled = own.scaled(rows)
    assert_same(rows, before)
    assert scaled["hand"].dtype == torch.float32 and scaled["hand"][0, 0, 0] == LIMIT
    assert scaled["hand"][1:].mean().abs() < 0.5 and 0.5 < scaled["hand"][1:].std() < 1.5
    assert scaled["level"].shape == (T + 1, B) and scaled["level"].min() < -1
    for name in rows.keys() - {"hand", "level"}:
        assert scaled[name] is rows[name]


def test_numbers_whose_squares_overflow_stay_finite():
    own = moments()
    for seed in range(3):
        rows = random_rows(seed)
        rows["hand"][..., 0] = torch.where(rows["hand"][..., 0] > 1000, 3e38, 1.0)
        rows["reward"][2] = 1e30
        own.update(rows)
    seen = own.scaled(rows)["hand"]
    assert seen.isfinite().all() and 0.5 < seen[..., 1].std() < 1.5
    assert own.scaled_rewards(rows["reward"]).isfinite().all()


def test_returns_are_discounted_sums_that_end_with_an_episode():
    """Over a whole episode, in one rollout or in two, if the rewards are all equal."""
    gamma, steps = 0.9, torch.arange(13)
    column = played(torch.where(steps > 0, 2.0, 0.0), steps == 0, steps, 2.0 * steps)
    rows = {k: torch.stack([v, v.roll(5)], dim=1) for k, v in column.items()}
    expected = 2 * (1 - gamma**steps) / (1 - gamma)
    expected = torch.stack([expected, expected.roll(5)], dim=1)
    torch.testing.assert_close(discounted_returns(rows, gamma), expected[1:])
    later = {k: v[7:] for k, v in rows.items()}
    torch.testing.assert_close(discounted_returns(later, gamma), expected[8:])
    life = {k: v[5:, 1:] for k, v in rows.items()}  # it begins here, the game began earlier
    life |= {k: life[k] + 60 for k in ("episode_step", "episode_return")}
    torch.testing.assert_close(discounted_returns(life, gamma), expected[6:, 1:])
    undiscounted = torch.stack([2.0 * steps, (2.0 * steps).roll(5)], dim=1)
    torch.testing.assert_close(discounted_returns(rows, 1.0), undiscounted[1:])


def test_with_own_discounts_the_rewards_before_a_rollout_have_them_too():
    steps = torch.arange(13)
    rows = played(torch.where(steps > 0, 2.0, 0.0), steps == 0, steps, 2.0 * steps)
    rows = {k: v.unsqueeze(1) for k, v in rows.items()}
    rows["discount"] = torch.where(rows["done"], 1.0, -0.5)
    expected = 2 * (1 - 0.45**steps) / (1 - 0.45)
    for first in (0, 7):
        seen = discounted_returns({k: v[first:] for k, v in rows.items()}, 0.9)
        torch.testing.assert_close(seen[:, 0], expected[first + 1 :])
    rows["discount"] = torch.ones(13, 1)
    seen = discounted_returns({k: v[7:] for k, v in rows.items()}, 1.0)
    torch.testing.assert_close(seen[:, 0], 2.0 * steps[8:])


def test_returns_of_a_life_leave_out_the_lives_before_it():
    """In games of 100 lives of ten steps. Rollouts begin anywhere in a life."""
    t = torch.arange(1100).view(-1, 1)
    begins, returns = t % 11 == 0, (t - t // 11 - 1.0).clamp(min=0)
    rows = played((~begins).float(), begins, t, returns)
    whole = discounted_returns(rows, 0.99)
    parts = [
        discounted_returns({k: x[i : i + 26] for k, x in rows.items()}, 0.99)
        for i in range(0, 1075, 25)
    ]
    assert float(torch.cat(parts).std()) == pytest.approx(float(whole.std()), rel=0.1)


@pytest.mark.parametrize("is_away", [lambda t: t > 35, lambda t: t % 20 < 2], ids=["left", "comes"])
def test_an_agent_that_is_away_begins_no_lives_and_shortens_nobodys_past(is_away):
    """Another agent is in the game all the time. All rows of the absent one are `done`."""
    steps = torch.arange(32, 72).view(-1, 1).repeat(1, 2)
    done = is_away(steps) & torch.tensor([False, True])
    rows = played((~done).float(), done, steps, steps.float())
    alone = {k: x[:, :1] for k, x in rows.items()}
    both = discounted_returns(rows, 0.99)[:, :1]
    torch.testing.assert_close(both, discounted_returns(alone, 0.99))


@pytest.mark.parametrize("off", ["observation", "reward"])
def test_each_half_can_be_turned_off(off):
    own, rows = moments(*SCALED, f"--{off}_scaling", "none"), random_rows()
    own.update(rows)
    assert (own.scaled(rows)["hand"] is rows["hand"]) == (off == "observation")
    same = torch.equal(own.scaled_rewards(rows["reward"]), rows["reward"])
    assert same == (off == "reward")


def test_rewards_may_be_scaled_from_a_resume_on():
    before, never_off = moments("--observation_scaling", "moments"), moments()
    for own in (before, never_off):
        own.update(random_rows())
    resumed = moments()
    resumed.load_state_dict(before.state_dict())
    rewards = torch.ones(1, 3)
    assert torch.equal(resumed.scaled_rewards(rewards), never_off.scaled_rewards(rewards))


VECTOR = Spec("some", B, {"frame": ((3,), "float64")}, Actions("discrete", (3,)))


def test_a_network_carries_its_moments_and_forward_applies_them(tmp_path):
    flags = parse("--env", "Some-v0", *SCALED)
    net, shared, newest = (models.make_net(monobeast.Net, VECTOR, flags) for _ in range(3))
    rows = random_rows() | {"frame": torch.randn(T + 1, B, 3, dtype=torch.float64) * 9 + 70}
    net.moments.update(rows)
    expected, _ = forward(net, rows, ())
    plain, _ = net.forward(rows, ())
    assert not torch.allclose(expected["baseline"], plain["baseline"])
    weights = SharedWeights().begin(net.state_dict(), 0)
    weights.copy_to(shared)
    weights.close()
    NewestWeights(net.state_dict(), 0, torch.device("cpu")).copy_to(newest)
    for other in (shared, newest):
        assert_same(forward(other, rows, ())[0], expected)
    assert "moments.mean" in net.state_dict() and not list(net.moments.parameters())
    flags = parse("--env", "Some-v0", "--observation_scaling", "none", "--reward_scaling", "none")
    assert not hasattr(models.make_net(monobeast.Net, VECTOR, flags), "moments")


SHAPES = {"frame": (4, 36, 36), "colour": (36, 36, 3), "code": (9,)}
BYTES = {name: (shape, "uint8") for name, shape in SHAPES.items()}


def test_pixels_are_scaled_by_their_own_moments_so_that_what_moves_stands_out():
    """A ball on a background that never changes, in every second row at most."""
    spec = Spec("some", B, OBSERVATIONS | BYTES, Actions("discrete", (3,)))
    own = moments("--observation_scaling", "pixels", spec=spec)
    seen = []
    for seed in range(5):
        rows = random_rows(seed) | {
            k: torch.randint(256, (T + 1, B, *shape), dtype=torch.uint8)
            for k, shape in SHAPES.items()
        }
        rows["frame"] = torch.full((T + 1, B, 4, 36, 36), 87, dtype=torch.uint8)
        rows["frame"][0, 0, :, 5, 5] = 236
        rows["done"][:] = False  # so that all batches count alike
        own.update(rows)
        seen.append(rows["colour"][0].float())  # one row of at most eight
    scaled = own.scaled(rows)
    x = torch.cat(seen)
    deviation = (x.var(dim=0, correction=0) + 1).sqrt()
    expected = ((rows["colour"].float() - x.mean(0)) / deviation).clamp(-5, 5)
    torch.testing.assert_close(scaled["colour"], expected, rtol=1e-3, atol=1e-3)
    ball = scaled["frame"][0, 0, :, 5, 5]
    assert (ball > 1.5).all() and (scaled["frame"][1:, :, :, 6:].abs() < 1e-3).all()
    rows["frame"][1, 1, 0, 9, 9] = 255  # where nothing has ever moved
    assert own.scaled(rows)["frame"][1, 1, 0, 9, 9] == 5
    assert scaled["code"] is rows["code"] and scaled["picture"] is rows["picture"]
    assert scaled["hand"] is not rows["hand"]  # as with moments


class Divides(nn.Module):
    """A network of a fork, which divides bytes by 255 itself."""

    def __init__(self, spec, flags):
        super().__init__()
        self.policy = nn.Linear(4 * 36 * 36, spec.num_actions)
        self.baseline = nn.Linear(4 * 36 * 36, 1)

    def initial_state(self, batch_size):
        return ()

    def forward(self, inputs, core_state):
        assert inputs["frame"].dtype == torch.uint8
        x = inputs["frame"].flatten(2).float() / 255
        return dict(policy_logits=self.policy(x), baseline=self.baseline(x).squeeze(-1)), ()


@pytest.mark.parametrize("net_class, scales", [(monobeast.Net, True), (Divides, False)])
def test_atari_scales_pixels_for_networks_that_read_images_with_parts(net_class, scales):
    flags = parse("--env", "PongNoFrameskip-v4", "--precision", "fp32")
    frame = {"frame": BYTES["frame"]}
    net = models.make_net(net_class, Spec("some", B, frame, Actions("discrete", (3,))), flags)
    pixels = torch.randint(256, (T + 1, B, 4, 36, 36), dtype=torch.uint8)
    own = {"frame": pixels, "last_action": torch.zeros(T + 1, B, dtype=torch.int64)}
    rows = {k: v for k, v in random_rows().items() if k not in OBSERVATIONS} | own
    assert hasattr(net, "moments") == scales == (", pixels scaled" in models.said_of(net))
    if scales:
        net.moments.update(rows)
    same = torch.equal(forward(net, rows, ())[0]["baseline"], net.forward(rows, ())[0]["baseline"])
    assert same != scales
