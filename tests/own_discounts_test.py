# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A transition's own discount: from the environment to the targets."""

import copy
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import r2d2
import vtrace
from libtorchbeast import models, moments, transitions
from libtorchbeast.environment import Environment
from libtorchbeast.flags import Flags, UserError
from tests.support.turns import Nim

ENV = ("--env", "tests.support.turns:Nim-v0")
NAN = math.nan


def play(create_env, actions, num_envs=1):
    """The rows [T, ...] of the first environment. An action may stand for all of an array."""
    env = Environment(create_env, num_envs)
    shape = (num_envs, *env.spec.actions.shape)
    played = [copy.deepcopy(env.initial(seed=0))]
    played += [copy.deepcopy(env.step(np.resize(a, shape))) for a in actions]
    return {k: np.array([row[k][0] for row in played]) for k in played[0]}


def test_rows_have_the_discount_the_first_players_return_and_at_its_end_what_a_game_tells():
    """In the first game the second player wins, in the next one the first."""
    row = play(Nim, [1, 0, 0, 0, 0, 1, 0, 1])
    for name in ("discount", "reward", "game/first_wins", "game/moves"):
        assert row[name].dtype == np.float32
    assert np.array_equal(row["game/first_wins"], [NAN] * 4 + [0] + [NAN] * 3 + [1], True)
    assert np.array_equal(row["game/moves"], [NAN] * 8 + [3], True)
    assert row["discount"].tolist() == [1, -1, -1, -1, -1, 1, -1, -1, -1]
    assert row["reward"].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert row["episode_return"].tolist() == [0, 0, 0, 0, -1, 0, 0, 0, 1]


@pytest.mark.parametrize("wrong", [1.5, math.nan, "x", None, [1.0], -2])
def test_a_discount_that_is_wrong_or_not_declared_is_refused(wrong):
    seen = f"expected a number from -1 to 1, seen {wrong!r} (a {type(wrong).__name__})"
    with pytest.raises(UserError, match=re.escape(seen)):
        play(type("Wrong", (Nim,), {"discount": wrong}), [0])
    undeclared = r'tells discount: expected metadata\["own_discounts"\] = True, seen none'
    with pytest.raises(UserError, match=undeclared):
        play(type("Undeclared", (Nim,), {"metadata": {}}), [0])


# ===================================================================================== the laws
def random_rows(T, seed=0):
    """A sequence of one column in which the turn passes at each step. Row T ends the game."""
    generator = torch.Generator().manual_seed(seed)
    never = torch.zeros(T + 1, 1, dtype=torch.bool)
    rewards, values = torch.randn(2, T + 1, 1, generator=generator)
    log_rho = 0.5 * torch.randn(T, 1, generator=generator)
    ends = never.clone()
    ends[-1] = True
    discount = torch.full((T + 1, 1), -1.0)
    row = dict(reward=rewards, done=never, terminated=ends, discount=discount)
    return row, values, log_rho


def of_first(row, values):
    """The same game without turns, all in the first player's eyes: the opponent moves at odd rows,
    and row t+1 has the reward of the move at row t."""
    sign = torch.ones(len(values), 1)
    sign[1::2] = -1
    moved = torch.cat([sign[:1], sign[:-1]])
    return row | {"reward": moved * row["reward"], "discount": sign.abs()}, sign * values, sign


def vtrace_targets(row, values, log_rho, discounting=0.9):
    batch = transitions.Transitions(None, Flags(discounting=discounting), row, {}, (), {}, {}, 0.0)
    return vtrace.from_importance_weights(
        log_rho, batch.discount, row["reward"][1:], values[:-1], values[-1]
    ).vs


def r2d2_targets(row, values, n_steps):
    """If there is one action only, and the target network is the network itself."""
    q, flags = {"policy_logits": values.unsqueeze(-1)}, Flags(discounting=0.9, n_steps=n_steps)
    own = dict(flags=flags, net=SimpleNamespace(target=None), core_state=())
    batch = SimpleNamespace(rows=row, outputs=q, forward=lambda net, core_state: q, **own)
    return r2d2.targets(batch)["q"]


def test_alternating_turns_give_the_negated_opponents_targets():
    """tests/forks/turns_test.py trains with them."""
    row, values, log_rho = random_rows(7)
    plain, signed_values, sign = of_first(row, values)
    own, others = (vtrace_targets(*x, log_rho) for x in ((row, values), (plain, signed_values)))
    assert torch.allclose(own, sign[:-1] * others, atol=1e-6)
    for n in (1, 3, 9):
        own, others = r2d2_targets(row, values, n), r2d2_targets(plain, signed_values, n)
        assert torch.allclose(own, sign[:-1] * others, atol=1e-5)


def test_an_option_of_several_steps_is_these_steps():
    row, values, _ = random_rows(9)
    gamma, starts = 0.9, [0, 2, 3, 6, 9]  # options of 2, 1, 3 and 3 steps
    row["discount"] = torch.ones(10, 1)
    option = {k: x[starts].clone() for k, x in row.items()}
    for i, (start, end) in enumerate(zip(starts, starts[1:], strict=False), 1):
        powers = gamma ** torch.arange(end - start)[:, None]
        option["reward"][i] = (powers * row["reward"][start + 1 : end + 1]).sum(0)
        option["discount"][i] = gamma ** (end - start - 1)
    for targets in (
        lambda row, values: vtrace_targets(row, values, torch.zeros(len(values) - 1, 1)),
        lambda row, values: r2d2_targets(row, values, len(values) - 1),
    ):
        steps = targets(row, values)[starts[:-1]]
        assert torch.allclose(targets(option, values[starts]), steps, atol=1e-6)


def test_running_returns_use_the_size():
    row, _, _ = random_rows(5)
    row |= dict(episode_step=torch.zeros(6, 1, dtype=torch.int32), episode_return=row["reward"] * 0)
    plain = {k: x for k, x in row.items() if k != "discount"}
    returns = moments.discounted_returns(row, 0.9)
    assert torch.equal(returns, moments.discounted_returns(plain, 0.9))
    row["discount"] = torch.full((6, 1), -0.5)
    assert torch.equal(
        moments.discounted_returns(row, 0.9), moments.discounted_returns(plain, 0.45)
    )


def test_networks_do_not_see_it():
    rows = {"frame": 1, "discount": 2, "game/win": 3, "loss/x": 4, "discounts": 5}
    assert models.seen_by_nets(rows) == {"frame": 1, "discounts": 5}
