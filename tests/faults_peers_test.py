# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""tests/faults/peers.py, made small."""

from tests.faults import peers
from tests.faults.harness import hold


def test_one_bad_environment_harms_only_itself():
    hold(peers.one_bad_environment(seconds=0.5, until_given_up=False))


def test_total_loss_ends_the_job():
    hold(peers.total_loss(server_timeout=3.0))


def test_learners_may_vanish():
    hold(peers.learners_may_vanish(times=2, first=1))


def test_faults_do_not_bias_learning():
    hold(
        peers.faults_do_not_bias_learning(
            seeds=1, kill_every=3.0, most_kills=2, step_s=0.002, clean=False
        )
    )
