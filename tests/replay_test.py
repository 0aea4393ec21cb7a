# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a replay gives is what the environments gave, whatever was overwritten, lost or resumed."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

import r2d2
from libtorchbeast.flags import replace
from libtorchbeast.q_learning.replay import Replay, draw
from libtorchbeast.rollouts import core_state_of
from libtorchbeast.spec import Actions, Spec
from tests.support.compare import assert_same

K, T, H = 3, 4, 2
OBSERVATIONS = {"frame": ((K, 2), "uint8"), "where": ((), "int64")}
SPEC = Spec("Walk", 2, OBSERVATIONS, Actions("discrete", (3,)), stacks={"frame": K})
STATE = (torch.zeros(1, 1, H),)
DTYPES = {"frame": "uint8", "episode_step": "int32"}
DTYPES |= dict.fromkeys("where action last_action policy_version environment".split(), "int64")
DTYPES |= dict.fromkeys("done terminated truncated episode_over".split(), "bool")
DTYPES |= dict.fromkeys("reward episode_return q_taken q_max".split(), "float32")
SMALL = "--env CartPole-v1 --unroll_length 4 --burn_in 3 --train_length 6 --replay_capacity 160"
SMALL += " --replay_start 1 --batch_size 8 --num_servers 1 --envs_per_server 2"


def make_flags(*more):
    return r2d2.parse([*SMALL.split(), *map(str, more)])


class World:
    """Environments that remember each of their rows, and hand them over as the actor pool does."""

    def __init__(self, num_envs, seed=0):
        self.rng = np.random.default_rng(seed)
        self.history = {i: [self.row(i, None)] for i in range(1, num_envs + 1)}

    def row(self, number, before):
        step = 0 if before is None or before["episode_over"] else before["episode_step"] + 1
        stack = np.zeros((K, 2), np.uint8) if step == 0 else np.roll(before["frame"], -1, axis=0)
        stack[-1] = self.rng.integers(1, 255, 2)
        ends = self.rng.random() < 0.2
        is_first = before is None or before["terminated"]
        where = before["where"] + 1 if before else 0
        return dict(
            frame=stack, where=where, episode_step=step,
            done=is_first, terminated=ends, truncated=False,
            episode_over=bool(ends and self.rng.random() < 0.5), episode_return=0.0,
            reward=0.0 if is_first else self.rng.normal(), last_action=0,
            action=int(self.rng.integers(3)), policy_version=where,
            q_taken=self.rng.normal(), q_max=self.rng.normal(), environment=number,
            core_state=self.rng.normal(size=(1, H)),
        )  # fmt: skip

    def reopen(self, number, new):
        """The stream is lost. The new one has another number."""
        del self.history[number]
        self.history[new] = [self.row(new, None)]

    def rollout(self, *numbers):
        columns = []
        for number in numbers or self.history:
            rows = self.history[number]
            for _ in range(T):
                rows.append(self.row(number, rows[-1]))
            columns.append(rows[-T - 1 :])
        batch = {
            k: torch.from_numpy(np.stack([[row[k] for row in c] for c in columns], 1).astype(dtype))
            for k, dtype in DTYPES.items()
        }
        states = np.stack([c[0]["core_state"] for c in columns], 1).astype("float32")
        return batch | {"core_state/0": torch.from_numpy(states)}


def make_replay(flags, path=None, priorities=None, spec=SPEC, state=STATE):
    priorities = priorities or (lambda rows: torch.ones(rows["reward"].shape[1]))
    return Replay(flags, spec, state, r2d2.OWN_OUTPUTS, priorities, path)


def filled(flags, path=None, priorities=None, rollouts=30):
    replay, world = make_replay(flags, path, priorities), World(2)
    for _ in range(rollouts):
        replay.insert(world.rollout())
    return replay, world


def resumed_from(state, flags, path):
    replay = make_replay(flags, path)
    replay.load_state_dict(state)
    return replay


def real_steps(batch, first=0):
    return int((~batch["done"][first + 1 :]).sum())


def check(batch, world, flags):
    """Each sequence is a part of its environment's history, from a rollout's first row on."""
    length = flags.burn_in + flags.train_length
    assert batch["reward"].shape == (length + 1, flags.batch_size)
    for b in range(flags.batch_size):
        start = int(batch["where"][0, b])
        begins = lambda row, b=b: np.float32(row["q_max"]) == batch["q_max"][0, b]
        fits = [h for h in world.history.values() if start < len(h) and begins(h[start])]
        assert len(fits) == 1 and start % T == 0
        rows = fits[0][start : start + length + 1]
        for name in ("frame", "where", "reward", "done", "terminated", "action", "q_taken"):
            expected = torch.from_numpy(np.array([row[name] for row in rows]))
            assert torch.equal(batch[name][:, b], expected.to(batch[name].dtype)), name
        state = torch.from_numpy(rows[0]["core_state"]).float()
        assert torch.equal(batch["core_state/0"][:, b], state)


def test_core_states_keep_their_order_and_a_part_may_be_empty():
    spec = dataclasses.replace(SPEC, observations=OBSERVATIONS | {"empty": ((0, 2), "float32")})
    replay = make_replay(make_flags(), spec=spec, state=STATE * 12)
    world = World(2)
    for _ in range(9):
        states = {f"core_state/{i}": torch.full((1, 2, H), float(i)) for i in range(12)}
        replay.insert(world.rollout() | states | {"empty": torch.zeros(T + 1, 2, 0, 2)})
    batch = replay.sample()
    assert [int(x[0, 0, 0]) for x in core_state_of(batch)] == list(range(12))
    assert batch["empty"].shape == (10, 8, 0, 2)


def test_sequences_are_of_one_stream_also_if_streams_end_and_differ_in_speed():
    """Every fifth time the oldest stream is lost, and its environment begins another."""
    flags, world = make_flags(), World(3)
    replay, everything = make_replay(flags), World(0)
    for i in range(60):
        streams = sorted(world.history)
        replay.insert(world.rollout(*(streams[1:] if i % 2 else streams[i % 4 :: 2])))
        everything.history |= world.history
        if i % 5 == 4:
            world.reopen(streams[0], streams[-1] + 1)
        if replay.may_sample():
            check(replay.sample(), everything, flags)


@pytest.mark.parametrize("seed", range(4))
def test_the_frames_of_an_environment_that_was_silent_for_long_are_its_own(seed):
    """Its newest block was overwritten and forgotten, and its game goes on."""
    replay, world = make_replay(flags := make_flags()), World(1, seed)
    replay.insert(world.rollout())
    for number in range(2, 2 * replay._M + 4):
        world.history[number] = [world.row(number, None)]
        replay.insert(world.rollout(number))
    for _ in range(6):
        replay.insert(world.rollout(1))
    for _ in range(3):
        check(replay.sample(), world, flags)


@pytest.mark.parametrize("ratio", [0.5, 4])
def test_the_ratio_is_kept_by_counting(ratio):
    flags, world = make_flags("--replay_ratio", ratio, "--replay_start", 40), World(2)
    replay = make_replay(flags)
    new = trained = received = steps = 0

    def counted():
        nonlocal new, received
        for _ in range(100):
            rollout = world.rollout()
            received += real_steps(rollout)
            new += real_steps(rollout) if received >= 40 else 0
            yield rollout

    for number, batch in enumerate(replay.batches(counted())):
        trained += real_steps(batch, flags.burn_in)
        if number % 3 == 0:
            replay.learned(batch, None)  # its update was skipped
        else:
            replay.learned(batch, {"priorities": [1.0] * flags.batch_size})
            steps += int(batch["column/new_steps"][0, 0])
            assert steps == received  # so the run's steps are those of its environments
        assert abs(trained - ratio * new) <= max(8 * 6, ratio * 2 * T)
    assert new > 500 and replay.columns()["replay_ratio"] == trained / new


@pytest.mark.parametrize("exponent", [0, 0.5])
def test_sequences_are_drawn_by_their_priorities(exponent):
    replay, _ = filled(make_flags("--priority_exponent", exponent), rollouts=19)
    for serial in range(40):
        of_one = {"column/serial": torch.tensor([[serial]])}
        replay.learned(of_one, {"priorities": [1.0 + serial % 4]})
    counts, chances = Counter(), {}
    for _ in range(500):
        batch = replay.sample()
        serials = batch["column/serial"][0].tolist()
        counts.update(serials)
        chances |= zip(serials, batch["column/chance"][0].tolist(), strict=True)
    weights = {s: (1.0 + s % 4) ** exponent for s in range(34)}  # the last two of each lack rows
    total = sum(weights.values())
    assert counts.keys() == weights.keys()
    expected = {s: 4000 * w / total for s, w in weights.items()}
    assert sum((counts[s] - e) ** 2 / e for s, e in expected.items()) < 63.9  # once in 1,000
    assert all(chances[s] == pytest.approx(w / total) for s, w in weights.items())


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100])
def test_the_share_of_a_slot_is_that_of_the_sum_before_it(size):
    rng = np.random.default_rng(size)
    numbers = rng.integers(0, 4, size).astype(float)  # zeros among them
    numbers[rng.integers(size)] = 1
    shares = rng.random(50)
    slots, chances = draw(numbers, shares)
    ends = numbers.cumsum() / numbers.sum()
    assert ((shares < ends[slots]) & (shares >= ends[slots] - chances - 1e-6)).all()
    np.testing.assert_allclose(chances, numbers[slots] / numbers.sum(), rtol=1e-6)


def test_a_slot_with_0_is_never_drawn_whatever_is_rounded():
    rng = np.random.default_rng(0)
    numbers = rng.random(1000) * 10.0 ** rng.integers(-12, 12, 1000)
    numbers[rng.random(1000) < 0.5] = 0
    nearly_1 = np.nextafter(1, 0)
    shares = np.array([0.0, nearly_1, *(1 - 1e-15 * np.arange(100)), *rng.random(10_000)])
    assert (numbers[draw(numbers, shares)[0]] > 0).all()


def test_first_priorities_and_those_of_sequences_that_are_gone():
    own = lambda rows: rows["q_max"][0].abs()
    replay, _ = filled(make_flags("--priority_exponent", 1), priorities=own, rollouts=19)
    before = replay._priorities.copy()
    assert len(set(before[before > 0])) == 34
    three = {"column/serial": torch.tensor([[39, 36, 4]])}
    replay.learned(three, {"priorities": [9.0, 9.0, 9.0]})
    before[4] = 9
    assert (replay._priorities == before).all()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_sequence_whose_priority_is_not_finite_is_drawn_next(number):
    """Its loss is not finite either, which the learner says. The others remain."""
    own = lambda rows: torch.full((2,), number)
    replay, _ = filled(make_flags("--priority_exponent", 1), priorities=own, rollouts=19)
    assert replay.may_sample() and replay.sample()["column/chance"].isfinite().all()
    each = {"column/serial": torch.arange(36)[None]}
    replay.learned(each, {"priorities": [*[1.0] * 5, number] * 6})
    assert set((replay.sample()["column/serial"] % 6).flatten().tolist()) == {5}


def test_a_resume_goes_on_with_the_same_content_priorities_and_draws(tmp_path, caplog):
    flags, path = make_flags("--save_replay"), str(tmp_path / "replay.bin")
    replay, world = filled(flags, path)
    for _ in range(5):
        batch = replay.sample()
        replay.learned(batch, {"priorities": batch["q_max"][0].abs().tolist()})
    torch.save(replay.state_dict(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    resumed = resumed_from(state, replace(flags, seed=9), path)
    assert_same(resumed.state_dict(), replay.state_dict())
    for _ in range(5):
        one, other = replay.sample(), resumed.sample()
        assert all(torch.equal(one[k], other[k]) for k in one)
        check(other, world, flags)
    other = resumed_from(state, make_flags("--save_replay", "--train_length", 7), path)
    assert "has another layout and is not used" in caplog.text and not other.may_sample()


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.25), (1, 0), (0, 1)])
def test_a_resume_with_another_exponent_or_ratio_follows_it_at_once(tmp_path, before, after):
    flags, path = make_flags("--save_replay", "--priority_exponent", before), str(tmp_path / "r")
    replay, world = filled(replace(flags, replay_ratio=8.0), path)
    while replay.may_sample():
        serials = replay.sample()["column/serial"]
        priorities = (1.0 + serials[0] % 4).tolist()
        replay.learned({"column/serial": serials}, {"priorities": priorities})
    flags = replace(flags, replay_ratio=2.0, priority_exponent=after)
    resumed = resumed_from(replay.state_dict(), flags, path)
    old, new = replay._priorities, resumed._priorities
    expected = old ** (after / before) if before else np.ones_like(old)
    np.testing.assert_allclose(new[old > 0], expected[old > 0], rtol=1e-6)
    assert not new[old == 0].any() and "replay_ratio" not in resumed.columns()
    for _ in range(50):
        resumed.insert(world.rollout())
        while resumed.may_sample():
            resumed.sample()
    assert resumed.columns()["replay_ratio"] == pytest.approx(2, abs=0.5)  # that of the new steps


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_overwritten_after_the_checkpoint_is_left_out_of_a_resume(
    tmp_path, monkeypatch, is_killed
):
    """Also if a first resume is killed before it has entered what it leaves out, which may be all
    then."""
    flags, path = make_flags("--save_replay"), str(tmp_path / "replay.bin")
    replay, world = filled(flags, path)
    state = replay.state_dict()
    for _ in range(5):  # and then it is killed
        replay.insert(world.rollout())

    def killed(*arguments):
        raise KeyboardInterrupt

    if is_killed:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Replay, "_forget", killed)
            resumed_from(state, flags, path)
    resumed = resumed_from(state, flags, path)
    newer = np.isin(np.arange(40), np.arange(60, 70) % 40)
    assert not resumed._priorities[newer].any()
    assert is_killed or resumed.may_sample()
    for _ in range(50 * resumed.may_sample()):
        batch = resumed.sample()
        check(batch, world, flags)
        # 10 blocks are newer, whose successors lack frames.
        assert batch["column/serial"].min() >= 30 + 2
    world.reopen(1, 8)
    world.reopen(2, 9)
    for _ in range(20):
        resumed.insert(world.rollout())
    check(resumed.sample(), world, flags)


def test_a_resume_whose_file_is_lost_begins_as_a_new_run_does(tmp_path):
    flags, path = make_flags("--save_replay", "--replay_start", 60), tmp_path / "replay.bin"
    replay, world = filled(flags, str(path))
    path.unlink()
    resumed = resumed_from(replay.state_dict(), flags, str(path))
    assert replay._priorities.any() and not resumed._priorities.any()
    assert resumed.columns() == {"replay_steps": 0}
    received = 0
    for _ in range(30):
        resumed.insert(rollout := world.rollout())
        received += real_steps(rollout)
        assert resumed.may_sample() == (received >= 60)
