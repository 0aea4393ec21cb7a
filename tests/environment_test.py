# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The adapter on scripted environments of every kind, against rows written by hand."""

import contextlib
import math
import re
import sys
from functools import partial
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, OneOf, Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.spec import Actions, Spec
from tests.support import scripted
from tests.support.scripted import NOTHING, STEPS, A, N, Scripted, make_scripts, separate, vector


def leaves(kind, observation):
    if kind == "dict":
        inner = observation["a"]
        return {"a/b": inner["b"], "a/c": inner["c"], "flags": observation["flags"]}
    return {"0": observation[0], "1": observation[1]} if kind == "tuple" else {"frame": observation}


def oracle(scripts, actions, kind="array"):
    """The rows of the design page's table, one environment and one row after the other."""
    show = scripted.OBSERVATIONS[kind][1]
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
            over = scripted.is_over(terminated, truncated, life_lost)
            column.append(
                leaves(kind, show(i, t, -1 if done else action))
                | dict(
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
    cells_of_rows = zip(*columns, strict=True)
    return [{k: np.stack([cell[k] for cell in cells]) for k in cells[0]} for cells in cells_of_rows]


def assert_same_row(seen, expected, t):
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        assert seen[name].dtype == value.dtype, (t, name)
        np.testing.assert_array_equal(seen[name], value, f"{name} of row {t}", strict=True)


def random_actions(seed):
    return np.random.default_rng(seed).integers(A, size=(STEPS, N))


ALL = [*scripted.OBSERVATIONS]
CASES = [  # name, maker of the adapter, arguments of make_scripts, kinds of observations
    ("gymnasium", separate, {}, ALL),
    ("old Gym", partial(separate, env_class=scripted.OldGym), dict(life=False, both=False), ALL),
    ("one buffer of all", partial(separate, env_class=scripted.OneBuffer), {}, ["array"]),
    ("vector", vector, {}, ["array", "image", "discrete"]),
    # Lives are lost in it, and the resets after that have rewards and ends.
    ("gymnasium's vector", scripted.sync_vector, {}, ALL),
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
    """Also if it starts all over again, in the middle of a game or right after the end of one."""
    scripts, actions = make_scripts(seed=1, **of_scripts), random_actions(0)
    env, expected = make(scripts, kind), oracle(scripts, actions, kind)
    for length in (1, 7, 30, STEPS):
        assert_same_row(env.initial(0), expected[0], 0)
        for t in range(length):
            assert_same_row(env.step(actions[t]), expected[t + 1], t + 1)
    env.close()


def test_a_vector_that_would_lose_the_reset_after_a_lost_life_is_refused():
    life = [NOTHING, (0.0, True, False, True), (9.0, False, False, False)]
    vector = SyncVectorEnv([lambda: Scripted(life, 0)], autoreset_mode=AutoresetMode.NEXT_STEP)
    env = Environment(lambda: gymnasium.wrappers.vector.RecordEpisodeStatistics(vector), 1)
    env.initial(0)
    env.step(np.array([0]))
    with pytest.raises(ValueError, match="Vector environment: after a lost life"):
        env.step(np.array([0]))


@pytest.mark.parametrize("make", [separate, vector, scripted.sync_vector])
def test_a_row_stays_valid_until_the_next_step(make):
    """It does, even if the caller changes the actions or steps another adapter."""
    scripts = make_scripts(seed=7, life=False)
    env, other = make(scripts), make(scripts)
    row, _ = env.initial(0), other.initial(0)
    copied = lambda: {k: v.copy() for k, v in row.items()}
    for actions in random_actions(7)[:50]:
        before = copied()
        other.step((actions + 1) % A)
        assert_same_row(row, before, None)
        row = env.step(actions)
        before = copied()
        actions[:] = 0
        assert_same_row(row, before, None)


@pytest.mark.parametrize("env_class", [Scripted, scripted.OldGym])
def test_environment_i_gets_seed_plus_i_and_all_are_closed(env_class):
    """They are, too, if one cannot be closed."""
    env = separate(make_scripts(seed=8), env_class=env_class)
    env.initial(40)
    first, *others = (getattr(part, "_new", part) for part in env._source._envs)
    assert [each.seeds for each in (first, *others)] == [[40], [41], [42], [43]]
    first.close = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        env.close()
    assert all(each.closed for each in others)


def test_create_env_is_called_once_per_environment_or_once_for_a_vector():
    """Single ones are opened and reset one after the other, and only the first for the spec."""
    scripts, calls = make_scripts(seed=8), []
    one_vector = scripted.ScriptedVector(scripts)
    single = Environment(lambda: calls.append("one") or Scripted(scripts[0], 0), N)
    vector = Environment(lambda: calls.append("vector") or one_vector, N)
    assert calls == ["one", "vector"]
    single.initial(0, calls.append)
    vector.initial(40, calls.append)
    assert calls[2:] == [1, "one", 2, "one", 3, "one", 4, N] and one_vector.seeds == [40]
    single.initial(0)
    assert calls[10:] == []  # all are open


def test_spec_says_what_the_rows_hold():
    expected = Spec("scripted", N, {"frame": ((1, 2, 2), "uint8")}, Actions("discrete", (A,)))
    for make in (separate, vector):
        assert make(make_scripts(seed=8), "image").spec == expected


def test_frames_per_step_and_stacks_come_from_the_metadata():
    metadata = dict(frame_stacks={"frame": 3}, frames_per_step=4)
    make = lambda **metadata: Environment(lambda: Plain(Box(0, 1, (3, 2)), **metadata), 1)
    spec = make(**metadata).spec
    assert spec.stacks == {"frame": 3} and spec.frames_per_step == 4
    assert spec.signature() == make().spec.signature()


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
    """Returns and declares the values that the test sets."""

    def __init__(self, space=None, action_space=None, first=F3, result=None, **metadata):
        self.observation_space = space or Box(0, 1, (3,))
        self.action_space = action_space or Discrete(A)
        self._first, self._result, self.metadata = first, result, metadata

    def reset(self, *, seed=None, options=None):
        return self._first, {}

    def step(self, action):
        return self._result


def first_step(make, num_envs=1):
    env = Environment(make, num_envs)
    env.initial(0)
    return env.step(np.zeros(num_envs, np.int64))


class PlainVector(scripted.ScriptedVector):
    """Two environments; replaces parts of what `step` returns."""

    def __init__(self, replaced):
        super().__init__([[NOTHING] * 9] * 2)
        self._replaced = replaced

    def step(self, actions):
        names = ("observation", "reward", "terminated", "truncated", "info")
        result = dict(zip(names, super().step(actions), strict=True))
        return tuple((result | self._replaced).values())


def stacked(shape, **stacks):
    return Plain(Box(0, 1, shape), frame_stacks=stacks)


def resetting(mode):
    env = scripted.ScriptedVector(make_scripts(seed=0)[:2])
    env.metadata = {"autoreset_mode": mode} if mode else {}
    return env


NO_STACK = r"metadata.\"frame_stacks\"..*expected 'frame' \[4, \.\.\.\], .* seen "
TWICE = Dict({"a/b": Discrete(2), "a": Dict({"b": Discrete(2)})})
UNSEEN = Dict({"loss/count": Box(0, 1, (3,))})  # which only the loss sees


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: resetting(AutoresetMode.SAME_STEP), "expected.*NEXT_STEP.*seen.*SAME_STEP"),
        (lambda: resetting(None), "expected.*NEXT_STEP.*seen None"),
        (lambda: scripted.ScriptedVector(make_scripts(seed=0)[:3]), "expected num_envs 2.*seen 3"),
        (lambda: Plain(action_space=Box(-1, 1, (2,), np.int8)), "Discrete.* Box of floats.* seen"),
        (lambda: Plain(action_space=Box(-1, 1, (0,))), "Box of floats .at least one., seen Box"),
        (lambda: Plain(Text(5)), "expected an array of numbers, seen"),
        (lambda: Plain(object()), "'frame': expected an array of numbers, seen <object"),
        (lambda: Plain(Box(-1, 1, (4,), np.longdouble)), "numbers of at most 64 bits, seen "),
        (lambda: Plain(Box(-1, 1, (0,))), r"at least one number, seen the shapes \[\(0,\)\]"),
        (lambda: Plain(OneOf([Box(0, 1), Box(0, 2)])), "expected an array of numbers, seen OneOf"),
        (lambda: Plain(TWICE), r"expected each once, seen \['a/b'\] twice"),
        (lambda: Plain(frames_per_step=0), "frames_per_step.*whole number of at least 1, seen 0"),
        (lambda: Plain(frames_per_step="4"), "expected a whole number of at least 1, seen '4'"),
        (lambda: stacked((2, 4), frame=4), NO_STACK + r"\[2, 4\]"),
        (lambda: stacked((), frame=4), NO_STACK + r"\[\]"),
        (lambda: stacked((1, 2), frame=1), "at least 2 frames"),
        (lambda: stacked((4, 2), frame="4"), NO_STACK + r"\[4, 2\]"),
        (lambda: Plain(frame_stacks=4), "frame_stacks.*expected {NAME: number of frames}, seen 4"),
        (lambda: stacked((4, 2), image=4), r"expected names of \['frame'\], seen 'image'"),
        (lambda: Plain(UNSEEN), r"expected at least one number, seen the shapes \[\]"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        Environment(make, 2)


WRONG_OBSERVATIONS = {
    "broadcasts": (Box(0, 1, (3,)), np.zeros(1, np.float32), "float32[3]", "float32[1]"),
    "one more axis": (Box(0, 1, (3,)), F3[None], "float32[3]", "float32[1, 3]"),
    "None": (Box(0, 1, (3,)), None, "float32[3]", "object[]"),
    "float for uint8": (Box(0, 255, (3,), np.uint8), F3, "uint8[3]", "float32[3]"),
    "dict for array": (Box(0, 1, (3,)), {"x": F3}, "['frame']", "['x']"),
    "missing key": (Dict(a=Box(0, 1, (3,)), b=Discrete(2)), {"a": F3}, "['a', 'b']", "['a']"),
    "further key": (Dict(a=Box(0, 1, (3,))), {"a": F3, "b": F3}, "['a']", "['a', 'b']"),
    "array for a part": (Dict(frame=Box(0, 1, (3,)), x=Discrete(2)), F3, "['frame', 'x']", "['fr"),
    "array for dict": (Dict(a=Box(0, 1, (3,))), F3, "['a']", "['frame']"),
    "not in the set": (MultiDiscrete([4, 4]), np.array([1, 4]), "0 to 3", "4"),
}
for dtype, large, said in (
    (np.uint8, np.array([300], np.uint16), "300, which uint8"),
    (np.float16, np.array([7e4]), "70000, which float16"),
    (np.float64, np.array([-1e300]), "-1e+300, which float32"),  # as networks compute in it
):
    seen = f"{said} cannot hold, in 1 of 1 places, first in env"
    WRONG_OBSERVATIONS[said] = (Box(0, 1, (1,), dtype), large, "finite numbers", seen)


@pytest.mark.parametrize("name", WRONG_OBSERVATIONS)
@pytest.mark.parametrize("late", [False, True], ids=["first", "later"])
def test_an_observation_that_differs_from_the_space_is_refused(name, late):
    space, observation, expected, seen = WRONG_OBSERVATIONS[name]
    first = space.sample() if late else observation
    later = observation if late else space.sample()
    plain = Plain(space, first=first, result=(later, 0.0, False, False, {}))
    with pytest.raises(ValueError) as error:
        first_step(lambda: plain)
    assert f"expected {'the parts ' * (expected[0] == '[')}{expected}" in str(error.value)
    assert f"seen {seen}" in str(error.value)


def test_the_environments_of_one_batch_are_several_with_one_action_space():
    twice, other = [Plain()] * 2, [Plain(), Plain(action_space=Discrete(A, start=1))]
    with pytest.raises(UserError, match="create_env returned an environment twice"):
        Environment(iter(twice).__next__, 2).initial(0)
    said = r"Environment 1: expected Discrete\(5\), as the first, seen Discrete\(5, start=1\)"
    with pytest.raises(UserError, match=said):
        Environment(iter(other).__next__, 2).initial(0)


@pytest.mark.filterwarnings("error")
def test_an_observation_of_a_narrower_kind_is_taken_in_the_spaces_dtype():
    """Lists and doubles are common and lose nothing that float32 keeps."""
    seen, half = np.array([0.5, 0, 1]), Box(0, 1, (3,), np.float16)
    given = [(None, [0.5, 0, 1]), (None, seen), (None, seen.astype(np.float16)), (half, seen)]
    for space, observation in given:
        env = Environment(lambda s=space, o=observation: Plain(s, first=o), 1)
        frame = env.initial(0)["frame"]
        assert frame.dtype == (np.float16 if space else np.float32)
        assert frame.tolist() == [[0.5, 0, 1]]


@pytest.mark.parametrize(
    "result, text",
    [
        *(
            ((F3, reward, False, False, {}), "Reward: expected a finite number, seen")
            for reward in (np.nan, 1e39, "1", np.ones(1))
        ),
        ((F3 + np.nan, 0.0, False, False, {}), "expected finite numbers"),
        ((F3, 0.0, {}), "returned 3 values, expected 5.*or 4"),
        ((F3, 0.0, False, False, {}, {}), "returned 6 values, expected 5.*or 4"),
    ],
)
def test_a_step_that_is_none_is_refused(result, text):
    with pytest.raises(ValueError, match=text):
        first_step(lambda: Plain(result=result))


@pytest.mark.parametrize("result", [(F3, 1.0, True, None), (F3, 1.0, True, False, None)])
def test_an_environment_may_tell_nothing(result):
    assert first_step(lambda: Plain(result=result))["terminated"].tolist() == [True]


@pytest.mark.parametrize("told", [{"reward": 0.0}, {"truncated": True}, {"truncated": False}, {}])
def test_a_reset_with_a_seed_that_makes_a_step_is_refused(told):
    """After a lost life a reset is a step, but an evaluation begins with whole games."""
    plain = Plain()
    plain.reset = lambda **seed: (F3, {"torchbeast": told})
    said = rf"Environment 0: expected a new game of reset\(seed\), seen {re.escape(repr(told))}"
    is_step = "reward" in told or any(told.values())
    with pytest.raises(UserError, match=said) if is_step else contextlib.nullcontext():
        Environment(lambda: plain, 1).initial(0)


@pytest.mark.parametrize("end", ["False", [False], math.nan, None, 2], ids=repr)
@pytest.mark.parametrize("name", ["terminated", "truncated", "life_lost", "done"])
def test_an_end_that_is_no_bool_is_refused(name, end):
    ends = [end if name == other else False for other in ("terminated", "truncated")]
    info = {"torchbeast": {"life_lost": end}} if name == "life_lost" else {}
    result = (F3, 0.0, end, {}) if name == "done" else (F3, 0.0, *ends, info)
    seen = re.escape(repr(end))
    with pytest.raises(UserError, match=f"^{name}: expected a bool, seen {seen} .* environment 0$"):
        first_step(lambda: Plain(result=result))


@pytest.mark.parametrize("own", [{"lifelost": True}, {"_discount": 0.9}, True, None], ids=repr)
def test_what_no_environment_tells_is_refused(own):
    expected = rf"^info.*: expected a dict with keys among \['disc.*, seen {re.escape(repr(own))}"
    with pytest.raises(UserError, match=expected):
        first_step(lambda: Plain(result=(F3, 0.0, False, False, {"torchbeast": own})))
    with pytest.raises(UserError, match=expected):
        first_step(lambda: PlainVector({"info": {"torchbeast": own}}), 2)


@pytest.mark.parametrize(
    "replaced, text",
    [
        *(
            ({name: np.zeros(shape)}, f"{name}: expected 2 values, seen")
            for name in ("reward", "terminated", "truncated")
            for shape in ((), (1,), (2, 1))
        ),
        ({"reward": np.array([0, np.inf], np.float16)}, r"seen inf \(a float16\) from env.* 1"),
        ({"reward": ["1", "2"]}, r"expected a finite number, seen '1' \(a str_\) from env.* 0"),
        ({"observation": [[0] * 3, [0, 0, np.nan]]}, "seen nan in 1 of 6 places, first in env.* 1"),
        ({"truncated": ["False", "True"]}, "truncated: expected a bool, seen 'False' .* 0"),
        ({"a sixth": 0}, r"step\(\) returned 6 values, expected 5 values"),
        ({"observation": np.zeros((1, 3))}, r"expected float32\[2, 3\], seen float64\[1, 3\]"),
        ({"observation": {"x": np.zeros((2, 3))}}, r"expected the parts \['frame'\], seen \['x'\]"),
    ],
)
def test_a_step_of_a_vector_that_is_none_is_refused(replaced, text):
    """If a flag were broadcast, the end of one environment would end all of them."""
    with pytest.raises(ValueError, match=f"(?i){text}"):
        first_step(lambda: PlainVector(replaced), 2)


def test_a_vectors_arrays_may_lie_in_memory_as_they_like():
    """torch takes no negative strides, and warns of memory that cannot be written to."""
    for seen in (np.ones((2, 3), np.float32)[:, ::-1], np.zeros((2, 3), np.float32)):
        seen.flags.writeable = False
        row = first_step(lambda seen=seen: PlainVector({"observation": seen}), 2)["frame"]
        assert (torch.from_numpy(row[None]).numpy() == seen).all() and row.flags.writeable


@pytest.mark.parametrize(
    "actions, seen",
    [
        (np.array([0, 0, 0, A]), f"expected 0 to {A - 1}, seen {A} for environment 3"),
        (np.array([-1, 0, 0, 0]), f"expected 0 to {A - 1}, seen -1 for environment 0"),
        (np.zeros((N, 1), np.int64), rf"expected int64\[{N}\], seen int64"),
        (np.zeros(N, bool), rf"expected int64\[{N}\], seen bool"),
    ],
)
def test_actions_out_of_range_or_shape_are_refused(actions, seen):
    """They must not reach an environment, because ale-py hangs on them."""
    ending = [NOTHING, (0.0, True, False, False), *[(0.0, False, False, False)] * 3]
    env = separate([ending] * N)
    env.initial(0)
    for _ in range(3):
        with pytest.raises(ValueError, match=seen):
            env.step(actions)
        env.step(np.zeros(N, np.int64))


class Thinking(Plain):
    """Its reward is what a network of its own says."""

    def step(self, action):
        reward = torch.nn.functional.linear(torch.ones(1), torch.full((1, 1), 100.1))
        return F3, float(reward.numpy()[0]), False, False, {}


@torch.no_grad()
def test_a_network_of_the_environments_own_is_not_run_in_bf16():
    with torch.autocast("cpu", torch.bfloat16):
        reward = first_step(Thinking, 2)["reward"]
        assert torch.is_autocast_enabled("cpu")
    assert reward.tolist() == [pytest.approx(100.1)] * 2


def test_another_thread_may_be_importing_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # which has no parts so far
    first_step(lambda: Plain(result=(F3, 0.0, False, False, {})), 2)


@pytest.mark.parametrize("discount", [0.5, -0.5])
def test_only_a_discount_that_passes_the_turn_tells_of_several_players(discount):
    result = (F3, 1.0, False, False, {"torchbeast": {"discount": discount}})
    env = Environment(lambda: Plain(result=result, own_discounts=True), 1)
    env.initial(0)
    env.step(np.zeros(1, np.int64))
    assert env.has_players == (discount < 0)


@pytest.mark.parametrize("sizes", [[3], [2, 3]])
def test_a_mask_that_forbids_all_is_an_error_unless_the_episode_ends(sizes):
    """An observation may have the name of an end, which is none."""
    space = Dict({"life_lost": Box(-1, 1, (2,)), "action_mask": MultiBinary(sum(sizes))})
    seen = {"life_lost": np.ones(2, np.float32), "action_mask": np.ones(sum(sizes), np.int8)}
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


class Seeded(Plain):
    """Its simulator has no argument `seed`."""

    def reset(self, *, seed=None, options=None):
        simulate = lambda: None
        simulate(seed=seed)


class OldWrapper(scripted.OldGym):
    """gym.Wrapper, around an environment of old Gym, whose own reset has no argument `seed`."""

    def reset(self, **kwargs):
        return super().reset(**kwargs)


def test_a_wrong_argument_deep_inside_is_no_environment_of_old_gym():
    with pytest.raises(TypeError, match="unexpected keyword argument 'seed'"):
        Environment(Seeded, 1).initial(7)
    env = separate([[NOTHING]], env_class=OldWrapper)
    env.initial(7)
    assert env.first._new.seeds == [7]
