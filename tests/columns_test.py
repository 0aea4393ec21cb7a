# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The table of the log's columns: complete, in the order of version 0.5, and explained."""

import libtorchbeast
from libtorchbeast.loggers import timing
from libtorchbeast.loggers.columns import COLUMNS, FIELDS, GROUPS, OF_LOSS
from libtorchbeast.loggers.trackers import HEADLINE

# Programs that read logs.csv by position go on.
VERSION_0_5 = (
    "step frame updates hours sps fps games mean_game_return mean_game_length eval_step "
    "mean_eval_return eval_cpu_s total_loss pg_loss baseline_loss entropy mean_value grad_norm "
    "learning_rate lag_mean lag_max clipped_rho_share share_environment share_transport "
    "share_batching share_inference share_actor_waiting share_learning share_learner_waiting "
    "share_answering share_answer_waiting inference_batch latency_p50_ms latency_p99_ms cpu_cores "
    "idle_cores actor_restarts streams stream_failures skipped_updates checkpoint_errors"
)

NEWER = (
    "mean_rho largest_reward td_error replay_ratio replay_steps all_reduce_share "
    "slowest_rank sps_min sps_max"
)


def test_the_order_is_that_of_version_0_5_and_newer_columns_follow():
    assert [*FIELDS] == VERSION_0_5.split() + NEWER.split()
    assert [*COLUMNS] == ["_tick", "_time", *FIELDS]
    assert all(GROUPS.values())  # a column is in one of them
    assert sum(map(len, GROUPS.values())) == len(COLUMNS)


def test_every_share_and_what_losses_and_trackers_name_have_a_column():
    names = {
        *timing.ACTOR_ACTIVITIES, *timing.INFERENCE_ACTIVITIES, *timing.LEARNER_ACTIVITIES,
        *libtorchbeast.ActorPool.ACTIVITIES,
    }  # fmt: skip
    shares = {name for name in FIELDS if name.startswith("share_")}
    assert shares == {f"share_{name}" for name in names}
    assert {*OF_LOSS, HEADLINE} <= {*FIELDS}
