# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The promises of tests/faults/environments.py, scaled to seconds."""

import pytest
import torch

from tests.faults import environments
from tests.faults.harness import hold
from tests.support.network import NoNamespaces


def rollout(life, count):
    """A rollout of one environment with these numbers in its rows."""
    column = lambda numbers: torch.tensor(numbers).view(-1, 1, 1).view(torch.uint8)
    zeros = torch.zeros(len(life), 1, dtype=torch.long)
    return {
        **dict(life=column(life), count=column(count), process=column([0] * len(life))),
        **dict(done=zeros.bool(), action=zeros, last_action=zeros),
        "core_state/0": torch.tensor([[[float(count[0])]]]),
    }


@pytest.mark.parametrize(
    "second, state, mixed",
    [
        (dict(life=[7, 7, 7], count=[2, 3, 4]), 2, 0),
        (dict(life=[8, 8, 8], count=[0, 1, 2]), 0, 0),  # what was lost was no whole rollout
        (dict(life=[7, 8, 8], count=[2, 3, 4]), 2, 1),
        (dict(life=[7, 7, 7], count=[2, 3, 5]), 2, 1),
        (dict(life=[7, 7, 7], count=[4, 5, 6]), 4, 1),  # a rollout of its life was lost
        (dict(life=[8, 8, 8], count=[0, 1, 2]), 2, 1),  # the recurrent state of another life
    ],
)
def test_what_is_a_mixed_rollout(second, state, mixed):
    second = rollout(**second) | {"core_state/0": torch.tensor([[[float(state)]]])}
    rollouts = [rollout([7, 7, 7], [0, 1, 2]), second]
    reader = environments.Reader((each, lambda: None) for each in rollouts)
    reader.end()
    assert (reader.rollouts, reader.mixed) == (2, mixed)


def test_losing_servers_never_stops_training():
    hold(environments.servers_are_lost(kill_s=9.0, every_s=3.0, clean_s=3.0))


def test_no_rollout_mixes_two_lives():
    hold(environments.lives_do_not_mix(rollouts=500, seconds=6.0, every_s=1.5))


def test_no_rollout_of_monobeast_mixes_two_lives():
    sizes = dict(rollouts=100, seconds=2.0, every_s=1.0, num_actors=2)
    hold(environments.lives_do_not_mix_in_monobeast(**sizes))


def test_a_failure_is_never_silent():
    hold(environments.failures_are_told(times=1))


def test_a_failure_of_an_actor_is_never_silent():
    hold(environments.actors_failures_are_told(times=1))


def test_a_hung_environment_is_found():
    hold(environments.hung_servers_are_found(step_timeout=2.5, times=1))


def test_a_hung_environment_of_monobeast_is_found():
    hold(environments.hung_actors_are_found(step_timeout=2.5, times=1))


def test_a_partition_is_survived():
    try:
        figures = environments.partition_is_survived(
            down_s=5.0, step_timeout=2.0, times=1, found_s=3.0
        )
    except NoNamespaces as error:
        pytest.skip(str(error))
    hold(figures)
