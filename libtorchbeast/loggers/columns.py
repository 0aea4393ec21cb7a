# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The columns of logs.csv: their names and their order.

A cell is empty where there was nothing to measure, for example where no game had ended yet.
"""

RECENT_GAMES = 100  # mean_game_return and mean_game_length are means over this many games

# For each group of columns, from left to right: their names. docs/metrics.md says what they mean.
GROUPS = {
    "Progress": "_tick _time step frame updates hours sps fps",
    "Games": "games mean_game_return mean_game_length eval_step mean_eval_return eval_cpu_s",
    "Loss": (
        "total_loss pg_loss baseline_loss entropy mean_value grad_norm learning_rate lag_mean "
        "lag_max clipped_rho_share"
    ),
    "Time": (
        "share_environment share_transport share_batching share_inference share_actor_waiting "
        "share_learning share_learner_waiting share_answering share_answer_waiting "
        "inference_batch latency_p50_ms latency_p99_ms cpu_cores idle_cores"
    ),
    "Health": (
        "actor_restarts streams stream_failures skipped_updates checkpoint_errors mean_rho "
        "largest_reward"
    ),
    "Replay": "td_error replay_ratio replay_steps",
    "Ranks": "all_reduce_share slowest_rank sps_min sps_max",
}

COLUMNS = tuple(" ".join(GROUPS.values()).split())

# The columns that a run fills. The writer of the file fills _tick and _time.
FIELDS = tuple(name for name in COLUMNS if not name.startswith("_"))

# The columns that the losses of the programs return by themselves.
OF_LOSS = frozenset("total_loss pg_loss baseline_loss entropy td_error".split())

# How `ranks.merged` makes one row from those of all ranks. The numbers of an update are sums or
# means over all ranks already, so that they are rank 0's; so are a fork's own columns. Of
# OF_EACH_RANK those that are neither sums nor maxima are means.
SUMS_OF_RANKS = frozenset("cpu_cores actor_restarts streams stream_failures".split())
MAXIMA_OF_RANKS = frozenset("lag_max latency_p99_ms largest_reward".split())
OF_EACH_RANK = {
    *SUMS_OF_RANKS, *MAXIMA_OF_RANKS, *GROUPS["Time"].split(), *GROUPS["Ranks"].split(), "lag_mean",
    "replay_ratio", "replay_steps",
}  # fmt: skip
