# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.spec import Actions, describe_actions
from libtorchbeast.tensors import FromArrays, TensorEnv, TensorRows, TensorVector, pick
from tests.support.tensors import Turns, Walk

CPU = torch.device("cpu")


class Changed(TensorVector):
    """Gives something else for `frame`, `reward`, `end` and `info`."""

    def __init__(self, env, num_envs, metadata=None, **changes):
        super().__init__(env, num_envs)
        self.metadata, self.changes = self.metadata | (metadata or {}), changes

    def step(self, actions):
        observation, reward, *ends, info = super().step(actions)
        change = lambda name, x: self.changes.get(name, lambda x: x)(x)
        observation = {k: change(k, x) for k, x in observation.items()}
        ends = [change("end", x) for x in ends]
        return observation, change("reward", reward), *ends, change("info", info)


def rows_of(vector):
    spec = Environment(lambda: vector, vector.num_envs, "walk").spec
    return TensorRows(vector, spec, CPU)


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "box"])
@pytest.mark.parametrize("walk", [Walk, Turns])
def test_rows_are_those_of_the_numpy_adapter(walk, kind):
    """Bit by bit, over several episodes, which terminate and truncate."""
    env, N = walk(kind), 5
    plain = Environment(lambda: TensorVector(env, N), N, "walk")
    rows = rows_of(TensorVector(env, N))
    expected, row = plain.initial(seed=3), rows.initial(seed=3)
    random = np.random.default_rng(0)
    ends = np.zeros(2, int)
    for _ in range(80):
        assert row.keys() == expected.keys()
        for name, value in expected.items():
            seen = row[name].numpy()
            assert seen.dtype == value.dtype, name
            np.testing.assert_array_equal(seen, value, err_msg=name)
        ends += expected["terminated"].any(), expected["truncated"].any()
        if kind == "box":
            actions = random.normal(0, 2, (N, 2)).astype(np.float32)
        else:
            actions = random.integers(1, 3, (N, *env.actions.shape))
        expected, row = plain.step(actions), rows.step(torch.from_numpy(actions))
    assert ends.sum() > 5 and (ends > 0).all()


def test_an_environment_that_ended_is_reset_in_the_next_step_and_no_other():
    env = Walk("discrete")
    state = env.zeros(3)
    state["draws"] = torch.tensor([[0.0], [0.25], [0.99]])
    state, seen, reward, terminated, truncated = env.step(state, torch.zeros(3, dtype=torch.int64))
    assert seen["frame"][:, 0].tolist() == [0, 1, 3]  # all began, each where its draw says
    assert not (terminated | truncated | (reward != 0)).any()
    state["ended"] = torch.tensor([False, True, False])
    before = {name: tensor.clone() for name, tensor in state.items()}
    after, seen, reward, _, _ = env.step(state, torch.full((3,), 2))
    assert seen["frame"][:, 0].tolist() == [1, 1, 4]
    assert after["time"].tolist() == [1, 0, 1] and reward[1] == 0
    for name, tensor in before.items():  # a step leaves the state that it gets as it is
        assert torch.equal(state[name], tensor)


@pytest.mark.parametrize(
    "place, change, expected",
    [
        (1, lambda x: x.sum(), r"expected float32\[3\] as reward, seen float32\[\]"),
        (3, lambda x: x.long(), r"expected bool\[3\] as truncated, seen int64\[3\]"),
        (3, lambda x: False, r"expected bool\[3\] as truncated, seen False"),
    ],
)
def test_an_advance_that_gives_no_number_for_each_environment_is_refused(place, change, expected):
    """Else the sum of all rewards would be the reward of each."""

    class Wrong(Walk):
        def advance(self, state, actions):
            result = list(super().advance(state, actions))
            result[place] = change(result[place])
            return result

    with pytest.raises(UserError, match=expected):
        TensorVector(Wrong(), 3).reset()


class Bare(TensorEnv):
    """Lacks its four functions."""

    observations = {"frame": ((1,), "float32")}
    actions = Actions("discrete", (2,))
    state = {}


@pytest.mark.parametrize("method", ["reset", "advance", "observe", "picture"])
def test_a_method_that_an_environment_lacks_is_named(method):
    arguments = [{}] if method in ("observe", "picture") else [{}, torch.zeros(1)]
    with pytest.raises(UserError, match=f"Bare: expected a method '{method}', seen none"):
        getattr(Bare(), method)(*arguments)


@pytest.mark.parametrize("actions", [Actions("discrete", 3), 3])
def test_actions_of_another_kind_are_refused(actions):
    env = Walk()
    env.actions = actions
    with pytest.raises(UserError, match=r"such actions as Actions\('discrete', \(3,\)\), seen"):
        TensorVector(env, 2)


def test_the_same_seed_gives_the_same_games():
    """Environments do not draw the numbers of the actions, though an actor seeds its own generator
    with the seed that it gives to its environments."""
    vectors = [TensorVector(Walk("discrete"), 4) for _ in range(3)]
    pairs = zip(vectors, (3, 3, 2), strict=True)
    seen = [vector.reset(seed=seed)[0]["frame"] for vector, seed in pairs]
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    torch.manual_seed(3)
    drawn = torch.rand(8, generator=vectors[0]._generator)
    assert not torch.isin(drawn, torch.rand(64)).any()


def test_no_gradient_goes_through_an_environment():
    """Else the second update from a rollout would go through it again, and fail."""
    weight = torch.ones(1, requires_grad=True)

    class Learned(Walk):
        def advance(self, state, actions):
            state, reward, *ends = super().advance(state, actions)
            return {**state, "place": weight * state["place"]}, weight * reward, *ends

    class Differentiable(TensorVector):
        def reset(self, **options):
            return {k: weight * x for k, x in super().reset(**options)[0].items()}, {}

        def step(self, actions):
            observation, *rest = super().step(actions)
            return {k: weight * x for k, x in observation.items()}, *rest

    for vector in (TensorVector(Learned(), 2), Differentiable(Walk(), 2)):
        rows = rows_of(vector)
        for row in (rows.initial(0), rows.step(torch.zeros(2, dtype=torch.int64))):
            assert not row["frame"].requires_grad and not row["reward"].requires_grad
        env = Environment(lambda: FromArrays(vector), 2)  # noqa: B023
        env.initial(0)
        env.step(np.zeros(2, np.int64))


def test_a_number_gets_the_dtype_of_what_it_replaces():
    """Else `~dead` would be -1 where a bool was put as 0."""
    dead = Walk().put(
        {"dead": torch.ones(2, dtype=torch.bool)}, torch.tensor([True, False]), dead=0
    )
    assert dead["dead"].tolist() == [False, True] and dead["dead"].dtype == torch.bool


def test_the_precision_of_a_network_is_not_the_environments():
    """Actors may step the environment inside the network's autocast."""

    class Turned(Walk):
        def observe(self, state):
            return {"frame": super().observe(state)["frame"] @ torch.eye(2)}

    vector, zeros = TensorVector(Turned(), 2), np.zeros(2, np.int64)
    with torch.autocast("cpu", torch.bfloat16):
        assert vector.reset(seed=0)[0]["frame"].dtype == torch.float32
        assert vector.step(zeros)[0]["frame"].dtype == torch.float32


def test_draws_are_read_by_their_names():
    env = TensorEnv()
    env.draws = {"one": 1, "two": 2}
    state = {"draws": torch.tensor([[0.1, 0.2, 0.999]])}
    assert torch.equal(env.drawn(state, "one"), torch.tensor([0.1]))
    assert env.drawn(state, "two", 10).tolist() == [[2, 9]]
    with pytest.raises(UserError, match=r"one of the draws \['one', 'two'\], seen 'three'"):
        env.drawn(state, "three")


@pytest.mark.parametrize("sides", [2, 3, 5, 8, 1000, 2**22 + 1])
def test_the_largest_draw_gives_the_last_side(sides):
    largest = torch.tensor([1 - 2.0**-24])
    assert pick(largest, sides).item() == sides - 1
    assert pick(largest, torch.tensor([sides])).item() == sides - 1


def box(low, high):
    return Box(*(np.broadcast_to(x, 2).astype(np.float32) for x in (low, high)))


DISCRETE = [Discrete(3, start=5), MultiDiscrete([3, 3], start=[5, 5])]
BOXES = [box(-3, 5), box(-np.inf, np.inf), box([-1, -np.inf], [2, 0])]


@pytest.mark.parametrize("space", DISCRETE + BOXES)
def test_actions_reach_their_space_as_elsewhere(space):
    class Own(TensorVector):
        def __init__(self):
            super().__init__(Walk(describe_actions(space).kind), 3)
            self.single_action_space = space

        def step(self, actions):
            self.got = torch.as_tensor(actions)
            return super().step(actions - getattr(space, "start", 0))

    twin, vector = Own(), Own()
    plain, rows = Environment(lambda: twin, 3), rows_of(vector)
    plain.initial(0), rows.initial(0)
    actions = plain.spec.actions.zeros(3)
    if isinstance(space, Box):
        actions[:] = [[0.3, -7], [1.5, 0.2], [-1, 1]]
    plain.step(actions), rows.step(torch.from_numpy(actions))
    torch.testing.assert_close(vector.got, twin.got, rtol=1e-6, atol=1e-6)
    assert isinstance(space, Box) or twin.got.eq(5).all()


def f32(seen):
    return rf"float32\[2, 2\] as the observation 'frame', seen {seen}"


ARRAY = "expected tensors on cpu, where the network is, seen a ndarray as the reward"
WRONG = [  # the metadata, or what is given for `frame`, `reward`, `end` or `info`
    (dict(metadata={"game_numbers": ["win"]}), "no game_numbers in its metadata, .* game/win"),
    (dict(frame=lambda x: x.double()), f32(r"float64\[2, 2\]")),
    (dict(frame=lambda x: x[:, :1]), f32(r"float32\[2, 1\]")),
    (dict(frame=lambda x: {"a": x}), r"expected the parts \['frame'\], seen \['frame/a'\]"),
    (dict(frame=lambda x: x.to("meta")), "on cpu, where the network is, seen a Tensor on meta"),
    (dict(reward=lambda x: x.numpy()), ARRAY),
    (dict(reward=lambda x: x[:, None]), r"expected \[2\] as the reward, seen float32\[2, 1\]"),
    (dict(end=lambda x: x[:, None]), r"expected \[2\] as the end, seen bool\[2, 1\]"),
    (dict(info=lambda x: {"torchbeast": {"life_lost": 1}}), "life_lost, which WarpBeast cannot"),
    (dict(info=lambda x: {"torchbeast": {"game_numbers": {}}}), "game_numbers, which WarpB"),
    (dict(info=lambda x: {"torchbeast": {"discounts": 1}}), "keys among .*, seen {.discounts.: 1}"),
    (dict(info=lambda x: {"torchbeast": {"discount": 1}}), 'expected metadata."own_discounts"'),
]


@pytest.mark.parametrize("changes, expected", WRONG)
def test_what_it_cannot_follow_and_a_step_that_was_not_declared_so_are_refused(changes, expected):
    with pytest.raises(UserError, match=expected):
        rows = rows_of(Changed(Walk("discrete"), 2, **changes))
        rows.initial(0)
        rows.step(torch.zeros(2, dtype=torch.int64))


def test_whole_numbers_may_be_rewards_and_ends():
    changed = Changed(Walk("discrete"), 2, end=lambda x: x.long(), reward=lambda x: x.long())
    rows = rows_of(changed)
    rows.initial(0)
    for _ in range(9):
        row = rows.step(torch.ones(2, dtype=torch.int64))
    assert row["reward"].dtype == torch.float32 and row["done"].dtype == torch.bool
