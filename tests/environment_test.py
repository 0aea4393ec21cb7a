# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The adapter on scripted environments of every kind, against rows written by hand."""

import math
import re
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from tests.support.scripted import (
    NOTHING,
    OBSERVATIONS,
    STEPS,
    A,
    N,
    OldGym,
    OneBuffer,
    Scripted,
    ScriptedVector,
    is_over,
    make_scripts,
    separate,
    sync_vector,
    vector,
)


def leaves(kind, observations):
    """{name: [N, ...]}, the names written out by hand."""
    if kind == "dict":
        return {
            "a/b": np.stack([o["a"]["b"] for o in observations]),
            "a/c": np.stack([o["a"]["c"] for o in observations]),
            "flags": np.stack([o["flags"] for o in observations]),
        }
    if kind == "tuple":
        return {str(k): np.stack([o[k] for o in observations]) for k in range(2)}
    return {"frame": np.stack(observations)}


def oracle(scripts, actions, kind="array"):
    """The rows of the design page's table, one environment and one row after the other."""
    show = OBSERVATIONS[kind][1]
    columns = []
    for i, script in enumerate(scripts):
        column = []
        ended = over = True
        episode_step, episode_return = 0, 0.0
        for t in range(len(actions) + 1):
            reward, terminated, truncated, life_lost = NOTHING if over else script[t]
            episode_step = 0 if over else episode_step + 1
            episode_return = 0.0 if over else episode_return + reward
            action = 0 if ended else actions[t - 1][i]
            done, ended = ended, terminated or truncated
            over = is_over(terminated, truncated, life_lost)
            column.append(
                dict(
                    observation=show(i, t, -1 if done else action),
                    reward=np.float32(0.0 if done else reward),
                    done=np.bool_(done),
                    terminated=np.bool_(terminated),
                    truncated=np.bool_(truncated),
                    episode_over=np.bool_(over),
                    episode_step=np.int32(episode_step),
                    episode_return=np.float32(episode_return),
                    last_action=np.int64(action),
                )
            )
        columns.append(column)
    rows = []
    for cells in zip(*columns, strict=True):
        observations = leaves(kind, [cell.pop("observation") for cell in cells])
        rows.append(observations | {k: np.stack([cell[k] for cell in cells]) for k in cells[0]})
    return rows


def assert_same_row(seen, expected, t):
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        assert seen[name].dtype == value.dtype, (t, name)
        np.testing.assert_array_equal(seen[name], value, f"{name} of row {t}", strict=True)


def random_actions(seed):
    return np.random.default_rng(seed).integers(A, size=(STEPS, N))


def assert_rows(env, scripts, kind="array", seed=0):
    actions = random_actions(seed)
    expected = oracle(scripts, actions, kind)
    assert_same_row(env.initial(seed), expected[0], 0)
    for t in range(STEPS):
        assert_same_row(env.step(actions[t]), expected[t + 1], t + 1)
    env.close()


CASES = [  # name, maker of the adapter, arguments of make_scripts, kinds of observations
    ("gymnasium", separate, {}, OBSERVATIONS),
    ("old Gym", partial(separate, env_class=OldGym), dict(life=False, both=False), OBSERVATIONS),
    ("one buffer of all", partial(separate, env_class=OneBuffer), {}, ["array"]),
    ("vector", vector, {}, ["array", "image", "discrete"]),
    # Lives are lost in it, and the resets after that have rewards and ends.
    ("gymnasium's vector", sync_vector, {}, OBSERVATIONS),
]


@pytest.mark.parametrize(
    "make, of_scripts, kind",
    [
        pytest.param(make, of_scripts, kind, id=f"{name}, {kind}")
        for name, make, of_scripts, kinds in CASES
        for kind in kinds
    ],
)
def test_every_environment_gives_the_rows_of_the_table(make, of_scripts, kind):
    scripts = make_scripts(seed=1, **of_scripts)
    assert_rows(make(scripts, kind), scripts, kind)


def test_the_scripts_hold_every_case():
    """Other tests need rows that are both first and last, over or not, after each ending."""
    rows = oracle(make_scripts(seed=1), random_actions(0))
    all_of = lambda name: np.stack([row[name] for row in rows])
    done, over, step = all_of("done"), all_of("episode_over"), all_of("episode_step")
    ended = all_of("terminated") | all_of("truncated")
    assert (done & ended & over).any() and (done & ended & ~over).any()
    assert (done & (step > 0)).any()  # a life lost, the game goes on
    assert (done & (step == 0))[1:].any()
    assert (all_of("terminated") & all_of("truncated")).any()
    assert (ended[1:] & done[:-1] & (step[1:] == 1)).any()  # a game of one step


def test_a_vector_that_would_lose_the_reset_after_a_lost_life_is_refused():
    life = [NOTHING, (0.0, True, False, True), (9.0, False, False, False)]
    vector = SyncVectorEnv([lambda: Scripted(life, 0)], autoreset_mode=AutoresetMode.NEXT_STEP)
    env = Environment(lambda: gymnasium.wrappers.vector.RecordEpisodeStatistics(vector), 1)
    env.initial(0)
    env.step(np.array([0]))
    with pytest.raises(ValueError, match="Vector environment: after a lost life"):
        env.step(np.array([0]))


def test_a_foreign_info_means_nothing():
    """Other libraries have keys with such names too, for instance of the episode before."""

    class Foreign(Plain):
        info = dict(terminated=True, truncated=True, life_lost=True, reset_reward=9.0)

        def reset(self, **kwargs):
            return F3, self.info

    env = Environment(lambda: Foreign(result=(F3, 1.0, True, False, Foreign.info)), 1)
    env.initial(0)
    assert env.step(np.array([0]))["episode_over"].all()
    row = env.step(np.array([0]))
    assert row["done"].all() and row["episode_return"] == 0
    assert not (row["terminated"] | row["truncated"] | row["episode_over"]).any()


@pytest.mark.parametrize("make", [separate, vector, sync_vector])
def test_initial_starts_all_over_again(make):
    """It does so in the middle of a game and right after the end of one."""
    scripts = make_scripts(seed=5, life=False)
    env = make(scripts)
    actions = random_actions(5)
    expected = oracle(scripts, actions)
    for length in (1, 7, 30, 8):
        assert_same_row(env.initial(0), expected[0], 0)
        for t in range(length):
            assert_same_row(env.step(actions[t]), expected[t + 1], t + 1)


@pytest.mark.parametrize("make", [separate, vector, sync_vector])
def test_a_row_stays_valid_until_the_next_step(make):
    """It does, even if the caller changes the actions or steps another adapter."""
    scripts = make_scripts(seed=7, life=False)
    env, other = make(scripts), make(scripts)
    row, _ = env.initial(0), other.initial(0)
    for chosen in random_actions(7)[:50]:
        actions = chosen.copy()
        before = {k: v.copy() for k, v in row.items()}
        other.step((chosen + 1) % A)
        assert_same_row(row, before, None)
        row = env.step(actions)
        before = {k: v.copy() for k, v in row.items()}
        actions[:] = 0
        assert_same_row(row, before, None)


@pytest.mark.parametrize("env_class", [Scripted, OldGym])
def test_environment_i_gets_seed_plus_i_and_all_are_closed(env_class):
    env = separate(make_scripts(seed=8), env_class=env_class)
    env.initial(40)
    envs = [getattr(part, "_new", part) for part in env._source._envs]
    assert [each.seeds for each in envs] == [[40], [41], [42], [43]]
    env.close()
    assert all(each.closed for each in envs)


def test_an_environment_that_cannot_be_closed_leaves_no_other_open():
    env = separate(make_scripts(seed=8))
    env.initial(0)
    first, *others = env._source._envs
    first.close = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        env.close()
    assert len(others) == N - 1 and all(other.closed for other in others)


def test_create_env_is_called_once_per_environment_or_once_for_a_vector():
    """Single ones are opened and reset one after the other, and only the first for the spec."""
    scripts, calls = make_scripts(seed=8), []
    one_vector = ScriptedVector(scripts)
    single = Environment(lambda: calls.append("one") or Scripted(scripts[0], 0), N)
    vector = Environment(lambda: calls.append("vector") or one_vector, N)
    assert calls == ["one", "vector"]
    single.initial(0, calls.append)
    vector.initial(40, calls.append)
    assert calls[2:] == [1, "one", 2, "one", 3, "one", 4, N] and one_vector.seeds == [40]
    single.initial(0)
    assert calls[10:] == []  # all are open


@pytest.mark.parametrize("make", [separate, vector])
def test_spec_says_what_the_rows_hold(make):
    spec = make(make_scripts(seed=8), "image").spec
    assert (spec.name, spec.num_envs, spec.num_actions) == ("scripted", N, A)
    assert spec.observations == {"frame": ((1, 2, 2), "uint8")}
    assert (spec.actions.kind, spec.actions.sizes) == ("discrete", (A,))
    assert spec.frames_per_step == 1 and spec.stacks == {}


def test_spec_of_nested_observations():
    names = separate(make_scripts(seed=8), "dict").spec.observations
    assert names == {"a/b": ((2,), "float32"), "a/c": ((), "int64"), "flags": ((2,), "int8")}
    names = separate(make_scripts(seed=8), "tuple").spec.observations
    assert names == {"0": ((2,), "float32"), "1": ((), "int64")}


def test_frames_per_step_and_stacks_come_from_the_metadata():
    """Stacks are not of the signature."""

    class Stacked(Plain):
        metadata = {"frame_stacks": {"frame": 3}, "frames_per_step": 4}

    make = lambda env: Environment(lambda: env(Box(0, 1, (3, 2))), 1)
    stacked, plain = (make(env).spec for env in (Stacked, Plain))
    assert stacked.stacks == {"frame": 3} and stacked.frames_per_step == 4
    assert stacked.signature() == plain.signature()


def test_rewards_are_not_clipped_and_their_sum_is_exact():
    """float32 would lose the quarters; the sum is kept in float64."""
    script = [NOTHING, (2.0**24, False, False, False)] + [(0.25, False, False, False)] * 8
    env = separate([script])
    env.initial(0)
    rows = [env.step(np.array([0])) for _ in range(9)]
    assert rows[0]["reward"] == 2.0**24
    assert rows[-1]["episode_return"] == np.float32(2.0**24 + 2)


# ============================================================================== what is refused


F3 = np.zeros(3, np.float32)


class Plain(gymnasium.Env):
    """Returns the values that the test sets."""

    def __init__(self, space=None, action_space=None, first=F3, result=None):
        self.observation_space = space or Box(0, 1, (3,))
        self.action_space = action_space or Discrete(A)
        self._first, self._result = first, result

    def reset(self, *, seed=None, options=None):
        return self._first, {}

    def step(self, action):
        return self._result


class PlainVector(ScriptedVector):
    """Two environments; replaces parts of what `step` returns."""

    def __init__(self, replaced):
        super().__init__([[NOTHING] * 9] * 2)
        self._replaced = replaced

    def step(self, actions):
        names = ("observation", "reward", "terminated", "truncated", "info")
        result = dict(zip(names, super().step(actions), strict=True))
        return tuple((result | self._replaced).values())


def stacked(shape, **stacks):
    env = Plain(Box(0, 1, shape))
    env.metadata = {"frame_stacks": stacks}
    return env


def sync_with(mode):
    return SyncVectorEnv([lambda: Scripted([], 0)] * 2, autoreset_mode=mode)


def silent():
    """A vector that does not say its autoreset mode."""
    env = ScriptedVector(make_scripts(seed=0)[:2])
    env.metadata = {}
    return env


ACTIONS = "Action space: expected Discrete.* Box of floats.* seen"
NO_STACK = r"metadata.\"frame_stacks\"..*expected 'frame' \[4, \.\.\.\], .* seen "


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: sync_with(AutoresetMode.SAME_STEP), "expected.*NEXT_STEP.*seen.*SAME_STEP"),
        (lambda: sync_with(AutoresetMode.DISABLED), "expected.*NEXT_STEP.*seen.*DISABLED"),
        (silent, "expected.*NEXT_STEP.*seen None"),
        (lambda: ScriptedVector(make_scripts(seed=0)[:1]), "expected num_envs 2.*seen 1"),
        (lambda: ScriptedVector(make_scripts(seed=0)[:3]), "expected num_envs 2.*seen 3"),
        (lambda: Plain(action_space=Box(-1, 1, (2,), np.int8)), ACTIONS),
        (lambda: Plain(action_space=MultiBinary(3)), ACTIONS),
        (lambda: Plain(action_space=Tuple([Discrete(2)])), ACTIONS),
        (lambda: Plain(Text(5)), "expected an array of numbers, seen"),
        (lambda: Plain(Sequence(Box(0, 1))), "expected an array of numbers, seen"),
        (lambda: Plain(OneOf([Box(0, 1), Box(0, 2)])), "expected an array of numbers, seen OneOf"),
        (
            lambda: Plain(Dict({"a/b": Discrete(2), "a": Dict({"b": Discrete(2)})})),
            r"expected each once, seen \['a/b'\] twice",
        ),
        (lambda: stacked((3, 2), frame=4), NO_STACK + r"\[3, 2\]"),
        (lambda: stacked((2, 4), frame=4), NO_STACK + r"\[2, 4\]"),
        (lambda: stacked((), frame=4), NO_STACK + r"\[\]"),
        (lambda: stacked((1, 2), frame=1), "at least 2 frames"),
        (lambda: stacked((4, 2), image=4), r"expected names of \['frame'\], seen 'image'"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        Environment(make, 2)


WRONG_OBSERVATIONS = {
    "longer": (Box(0, 1, (3,)), np.zeros(4, np.float32), "float32[3]", "float32[4]"),
    "broadcasts": (Box(0, 1, (3,)), np.zeros(1, np.float32), "float32[3]", "float32[1]"),
    "one more axis": (Box(0, 1, (3,)), F3[None], "float32[3]", "float32[1, 3]"),
    "complex": (Box(0, 1, (3,)), F3.astype(complex), "float32[3]", "complex128[3]"),
    "None": (Box(0, 1, (3,)), None, "float32[3]", "object[]"),
    "float for uint8": (Box(0, 255, (3,), np.uint8), F3, "uint8[3]", "float32[3]"),
    "int for uint8": (Box(0, 255, (1,), np.uint8), np.zeros(1, int), "uint8[1]", "int64[1]"),
    "array for Discrete": (Discrete(3), np.zeros(1, np.int64), "int64[]", "int64[1]"),
    "dict for array": (Box(0, 1, (3,)), {"x": F3}, "['frame']", "['x']"),
    "missing key": (Dict(a=Box(0, 1, (3,)), b=Discrete(2)), {"a": F3}, "['a', 'b']", "['a']"),
    "further key": (Dict(a=Box(0, 1, (3,))), {"a": F3, "b": F3}, "['a']", "['a', 'b']"),
    "other key": (Dict(a=Dict(b=Box(0, 1, (3,)))), {"a": {"c": F3}}, "['a/b']", "['a/c']"),
    "array for dict": (Dict(a=Box(0, 1, (3,))), F3, "['a']", "['frame']"),
    "not in the set": (MultiDiscrete([4, 4]), np.array([1, 4]), "0 to 3", "4"),
    "large for uint8": (
        *(Box(0, 255, (1,), np.uint8), np.array([300], np.uint16)),
        *("finite numbers", "300, which uint8 cannot hold, in 1 of 1 places, first in env"),
    ),
    "large for float16": (
        *(Box(0, 1, (1,), np.float16), np.array([7e4])),
        *("finite numbers", "70000, which float16 cannot hold, in 1 of 1 places, first in env"),
    ),
}


@pytest.mark.parametrize("name", WRONG_OBSERVATIONS)
@pytest.mark.parametrize("late", [False, True], ids=["first", "later"])
def test_an_observation_that_differs_from_the_space_is_refused(name, late):
    space, observation, expected, seen = WRONG_OBSERVATIONS[name]
    first = space.sample() if late else observation
    plain = Plain(space, first=first, result=(observation, 0.0, False, False, {}))
    env = Environment(lambda: plain, 1)
    if late:
        env.initial(0)
    with pytest.raises(ValueError) as error:
        env.step(np.array([0])) if late else env.initial(0)
    assert f"expected {'keys ' * (expected[0] == '[')}{expected}" in str(error.value)
    assert f"seen {seen}" in str(error.value)


def test_the_environments_of_one_batch_have_one_action_space():
    spaces = iter([Discrete(2), Discrete(2), Discrete(2, start=1)])

    def make():
        plain = Plain()
        plain.action_space = next(spaces)
        return plain

    seen = r"Environment 2: expected Discrete\(2\), as the first, seen Discrete\(2, start=1\)"
    with pytest.raises(UserError, match=seen):
        Environment(make, 3).initial(0)


def test_an_observation_of_a_narrower_kind_is_taken_in_the_spaces_dtype():
    """Lists and doubles are common and lose nothing that float32 keeps."""
    for observation in ([0.5, 0, 1], np.array([0.5, 0, 1]), np.array([0.5, 0, 1], np.float16)):
        env = Environment(lambda o=observation: Plain(first=o), 1)
        frame = env.initial(0)["frame"]
        assert frame.dtype == np.float32 and frame.tolist() == [[0.5, 0, 1]]


REWARD = "Reward: expected a finite number, seen"


@pytest.mark.parametrize(
    "result, text",
    [((F3, reward, False, False, {}), REWARD) for reward in (np.nan, -np.inf, 1e39, "1")]
    + [
        ((np.array([0, number, 0], np.float32), 0.0, False, False, {}), "expected finite numbers")
        for number in (np.nan, np.inf)
    ]
    + [
        ((F3, 0.0, False, False, {}, {})[:count], f"returned {count} values, expected 5.*or 4")
        for count in (3, 6)
    ],
)
def test_a_step_that_is_none_is_refused(result, text):
    env = Environment(lambda: Plain(result=result), 1)
    env.initial(0)
    with pytest.raises(ValueError, match=text):
        env.step(np.array([0]))


NO_ENDS = ["False", [False], math.nan, None, 2]


@pytest.mark.parametrize("end", NO_ENDS, ids=repr)
@pytest.mark.parametrize("name", ["terminated", "truncated", "life_lost", "done"])
def test_an_end_that_is_no_bool_is_refused(name, end):
    ends = [end if name == other else False for other in ("terminated", "truncated")]
    info = {"torchbeast": {"life_lost": end}} if name == "life_lost" else {}
    result = (F3, 0.0, end, {}) if name == "done" else (F3, 0.0, *ends, info)
    env = Environment(lambda: Plain(result=result), 1)
    env.initial(0)
    seen = re.escape(repr(end))
    with pytest.raises(UserError, match=f"^{name}: expected a bool, seen {seen} .* environment 0$"):
        env.step(np.array([0]))


WRONG_FLAGS = [
    ({name: np.zeros(shape)}, f"{name}: expected 2 values, seen")
    for name in ("reward", "terminated", "truncated")
    for shape in ((), (1,), (3,), (2, 1))
]


@pytest.mark.parametrize(
    "replaced, text",
    [
        *WRONG_FLAGS,
        ({"reward": np.array([0, np.nan], np.float32)}, r"seen nan \(a float32\) from env.* 1"),
        ({"reward": np.array([0, np.inf], np.float16)}, r"seen inf \(a float16\) from env.* 1"),
        ({"reward": ["1", "2"]}, r"expected a finite number, seen '1' \(a str_\) from env.* 0"),
        ({"observation": [[0] * 3, [0, 0, np.nan]]}, "seen nan in 1 of 6 places, first in env.* 1"),
        *(
            ({name: [False, end]}, f"{name}: expected a bool, seen {re.escape(repr(end))} .* [01]")
            for name in ("terminated", "truncated")
            for end in NO_ENDS
            if end != [False]
        ),
        ({"observation": np.zeros((1, 3))}, r"expected float32\[2, 3\], seen float64\[1, 3\]"),
        ({"observation": np.zeros(3)}, r"expected float32\[2, 3\], seen float64\[3\]"),
        ({"observation": {"x": np.zeros((2, 3))}}, r"expected keys \['frame'\], seen \['x'\]"),
    ],
)
def test_a_step_of_a_vector_that_is_none_is_refused(replaced, text):
    """If a flag were broadcast, the end of one environment would end all of them."""
    env = Environment(lambda: PlainVector(replaced), 2)
    env.initial(0)
    with pytest.raises(ValueError, match=f"(?i){text}"):
        env.step(np.zeros(2, np.int64))


def test_a_vectors_arrays_may_lie_in_memory_as_they_like():
    """torch takes no negative strides, and warns of memory that cannot be written to."""
    for seen in (np.ones((2, 3), np.float32)[:, ::-1], np.zeros((2, 3), np.float32)):
        seen.flags.writeable = False
        env = Environment(lambda seen=seen: PlainVector({"observation": seen}), 2)
        env.initial(0)
        row = env.step(np.zeros(2, np.int64))["frame"]
        assert (torch.from_numpy(row[None]).numpy() == seen).all() and row.flags.writeable


@pytest.mark.filterwarnings("error")
def test_half_precision_is_read_without_a_warning():
    env = Environment(lambda: Plain(Box(-1, 1, (3,), np.float16), first=F3.astype(np.float16)), 1)
    assert env.initial(0)["frame"].dtype == np.float16


def test_a_reward_at_a_life_losss_reset_that_is_not_finite_is_refused():
    """The reward is in no row, but it would become part of the game's return."""
    env = separate([[NOTHING, (1.0, True, False, True), (np.nan, False, False, False)]])
    env.initial(0)
    env.step(np.array([0]))
    with pytest.raises(ValueError, match="Reward"):
        env.step(np.array([0]))


@pytest.mark.parametrize("make", [separate, vector])
@pytest.mark.parametrize(
    "actions, seen",
    [
        (np.array([0, 0, 0, A]), f"expected 0 to {A - 1}, seen"),
        (np.array([-1, 0, 0, 0]), f"expected 0 to {A - 1}, seen"),
        (np.zeros(N - 1, np.int64), rf"expected int64\[{N}\], seen int64"),
        (np.zeros((N, 1), np.int64), rf"expected int64\[{N}\], seen int64"),
        (np.zeros(1, np.int64), rf"expected int64\[{N}\], seen int64"),
        (np.zeros((), np.int64), rf"expected int64\[{N}\], seen int64"),
        (np.zeros(N), rf"expected int64\[{N}\], seen float64"),
        (np.zeros(N, bool), rf"expected int64\[{N}\], seen bool"),
    ],
    ids=["A", "-1", "N-1", "[N, 1]", "[1]", "[]", "float", "bool"],
)
def test_actions_out_of_range_or_shape_are_refused(make, actions, seen):
    """They must not reach an environment, because ale-py hangs on them."""
    ending = [NOTHING, (0.0, True, False, False), *[(0.0, False, False, False)] * 3]
    env = make([ending] * N)
    env.initial(0)
    for _ in range(3):
        with pytest.raises(ValueError, match=seen):
            env.step(actions)
        env.step(np.zeros(N, np.int64))


@pytest.mark.parametrize("sizes", [[3], [2, 3]])
def test_a_mask_that_forbids_all_is_an_error_unless_the_episode_ends(sizes):
    space = Dict({"x": Box(-1, 1, (2,)), "action_mask": MultiBinary(sum(sizes))})
    seen = {"x": np.zeros(2, np.float32), "action_mask": np.ones(sum(sizes), np.int8)}
    result = [seen, 0.0, True, False, {}]
    actions = Discrete(3) if len(sizes) == 1 else MultiDiscrete(sizes)
    env = Environment(lambda: Plain(space, actions, seen, result), 2)
    env.initial(0)
    seen["action_mask"][-3:] = 0  # all of one choice
    none = np.zeros((2, *env.spec.actions.shape), np.int64)
    env.step(none)
    seen["action_mask"][:] = 1
    env.step(none)  # a reset
    seen["action_mask"][-3:], result[2] = 0, False
    with pytest.raises(UserError, match="'action_mask' of environment 0: expected an allowed"):
        env.step(none)


def test_an_environment_that_is_returned_twice_is_refused():
    one = Plain()
    with pytest.raises(UserError, match="create_env returned an environment twice"):
        Environment(lambda: one, 2).initial(0)


def test_what_only_the_loss_sees_is_no_observation():
    space = Dict({"loss/count": Box(0, 1, (3,))})
    with pytest.raises(UserError, match="expected at least one number, seen the shapes \\[\\]"):
        Environment(lambda: Plain(space), 1)
