# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What the log's numbers warn of, once each."""

import logging
import re

import pytest

from libtorchbeast.loggers.health import Health
from libtorchbeast.spec import Actions, Spec
from tests.support.monobeast import parse

GOOD = dict(mean_value=3.0, largest_reward=2.0, mean_rho=0.9, lag_mean=2.0, entropy=4.25)
FLOATS = {"frame": ((7,), "float64")}
BOX = Actions("box", (3,))


def health(actions=BOX, *flags, seen=FLOATS):
    return Health(parse("--env", "Some-v0", *flags), Spec("Some-v0", 1, seen, actions))


def test_good_numbers_and_rows_without_updates_warn_of_nothing(caplog):
    checked = health()
    lacks_the_value = {name: x for name, x in GOOD.items() if name != "mean_value"}
    quiet = ({}, {"games": 3}, GOOD, GOOD | {"mean_value": -199.0}, GOOD | {"entropy": -9.0})
    for row in (*quiet, lacks_the_value):
        checked.check(row)
    health(Actions("discrete", (3,))).check(GOOD | {"entropy": 99.0})  # never more than at first
    health(BOX, "--discounting", 1).check(GOOD | {"mean_value": 1e9})
    assert not caplog.records


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (
            {"mean_value": 2103.0, "largest_reward": 0.5},
            "The values diverge: mean_value is 2.1e+03, but with rewards of at most 1 and "
            "--discounting 0.995 no value can exceed 200",
        ),
        (
            {"mean_rho": 0.02, "lag_mean": 9.0},
            "Little is learned: the mean importance weight is 0.02, because the policy that learns "
            "is far from the one that acted (policy lag: 9.0 updates). Try",
        ),
        (
            {"entropy": 5.0},
            "The policy has become more random than at the start: its entropy is 5.00. Try "
            "--entropy_cost 0 (it is 0.02).",
        ),
    ],
)
def test_each_warning_is_one_line_and_comes_once(bad, said, caplog):
    checked = health()
    for _ in range(3):
        checked.check(GOOD | bad)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.getMessage().startswith(said)
    assert "\n" not in record.getMessage()


def test_the_entropy_of_several_agents_is_that_of_one(caplog):
    parts = {"team/reward": ((4,), "float32"), "team/x": ((4, 2), "float32")}
    health(Actions("box", (12,)), seen=parts).check(GOOD | {"entropy": 5.0})
    assert "more random" in caplog.text


def test_that_no_return_is_shown_yet_is_explained_once_after_a_minute(caplog):
    caplog.set_level(logging.INFO)
    checked = health()
    for row in ({}, {"hours": 0.016}, {"hours": 0.02, "mean_game_return": 3.0}):
        checked.check(row)
    resumed = health()
    for hours in (5.0, 5.016):
        resumed.check({"hours": hours})
    assert not caplog.records
    for hours in (0.02, 0.03):
        checked.check({"hours": hours, "games": 7})
    (said,) = caplog.records
    assert said.levelname == "INFO" and said.on_terminal
    assert said.getMessage().startswith("No game return is shown until the first game of every")


IMAGE = {"screen": ((4, 84, 84), "uint8"), "action_mask": ((9,), "int64")}
CODES = {"glyphs": ((21, 79), "int16"), "loss/count": ((), "int64"), "stats": ((27,), "int64")}
EMBED = r"\. The integers of glyphs, stats are never scaled: .* \(docs/fork.md\)\."
MOMENTS = ("--observation_scaling", "moments")
AGENTS = {
    "a/tile": ((2,), "int64"),
    "a/action_mask": ((2, 3), "int64"),
    "a/reward": ((2,), "float32"),
}


@pytest.mark.parametrize(
    ("seen", "flags", "advice"),
    [
        (FLOATS, (), r", or --observation_scaling moments\."),
        (FLOATS, MOMENTS, r"\."),
        (IMAGE, (), r"\."),
        (CODES, (), EMBED),
        (CODES | FLOATS, (), f", or --observation_scaling moments{EMBED}"),
        (CODES | FLOATS, MOMENTS, EMBED),
    ],
)
def test_scaling_is_recommended_only_where_it_would_scale(seen, flags, advice, caplog):
    health(BOX, *flags, seen=seen).check(GOOD | {"mean_value": 2103.0})
    assert re.search(f"Try a smaller --learning_rate{advice}$", caplog.messages[0])


def test_what_is_said_of_several_agents_leaves_out_their_rewards_and_masks(caplog):
    actions = Actions("multi_discrete", (3, 3))
    health(actions, seen=AGENTS).check(GOOD | {"mean_value": 2103.0})
    advice = r"\. The integers of a/tile are never scaled: .* \(docs/fork.md\)\."
    assert re.search(f"Try a smaller --learning_rate{advice}$", caplog.messages[0])
