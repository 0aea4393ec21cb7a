# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The table of the log's columns: complete, in the order of version 0.5, and explained."""

import re

import libtorchbeast
from libtorchbeast.loggers import timing
from libtorchbeast.loggers.columns import COLUMNS, FIELDS, GROUPS, OF_LOSS
from libtorchbeast.loggers.trackers import HEADLINE
from tests.support.processes import ROOT

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
    assert len({*COLUMNS}) == len(COLUMNS)


def test_the_page_has_every_column_in_its_group_and_in_sentences():
    page = (ROOT / "docs/metrics.md").read_text()
    titles = re.findall("^## (.*)$", page, re.M)
    parts = [re.findall(r"^\| `(\w+)` \| (.*) \|$", part, re.M) for part in page.split("\n## ")[1:]]
    listed = zip(titles, (" ".join(name for name, _ in part) for part in parts), strict=True)
    assert [*listed] == [*GROUPS.items()]
    for name, meaning in (row for part in parts for row in part):
        assert re.fullmatch(r"[A-Z]\S*( \S+)+\.", meaning), name  # no double space either
        assert not re.search(r"[,.;:)][A-Za-z]", meaning), f"{name}: a space is missing"


def test_every_share_and_what_losses_and_trackers_name_have_a_column():
    names = {
        *timing.ACTOR_ACTIVITIES, *timing.INFERENCE_ACTIVITIES, *timing.LEARNER_ACTIVITIES,
        *libtorchbeast.ActorPool.ACTIVITIES,
    }  # fmt: skip
    shares = {name for name in FIELDS if name.startswith("share_")}
    assert shares == {f"share_{name}" for name in names}
    assert {*OF_LOSS, HEADLINE} <= {*FIELDS}
