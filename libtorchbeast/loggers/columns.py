# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The columns of logs.csv: their names, their order and their meanings.

A cell is empty where there was nothing to measure, for example where no game had ended yet.
"""

RECENT_GAMES = 100  # mean_game_return and mean_game_length are means over this many games

# For each group of columns, from left to right: the name of a column and its meaning.
GROUPS: dict[str, dict[str, str]] = {
    "Progress": {
        "_tick": "The number of the row, counted from 0.",
        "_time": "The time at which the row was written, in seconds since 1970 (Unix time).",
        "step": "The number of agent steps (transitions) that the learner has learned from. In "
        "R2D2 it is that of new steps, learned from or not, once the buffer has --replay_start.",
        "frame": "Steps times the environment's `frames_per_step`, which is 4 on Atari.",
        "updates": "The number of updates that the optimizer has made.",
        "hours": "Hours of training. Pauses between a stop and a resume do not count.",
        "sps": "Steps per second since the previous row.",
        "fps": "Frames per second since the previous row.",
    },
    "Games": {
        "games": "The number of whole games that have ended since the run began. With "
        "--num_actors 0 those that began after a barrier was due do not count.",
        "mean_game_return": f"The mean return of the last {RECENT_GAMES} games, with unclipped "
        "rewards. When training starts, all environments begin a game at once, and the short games "
        "end first, so their mean would mislead. Therefore the cell stays empty (after a resume: "
        "unchanged) until the first game of every environment has ended. That is taken to be so "
        "when the environments have made, on average, --unroll_length more steps than the longest "
        f"game so far, or, since a game may never end, when {RECENT_GAMES} games per environment "
        "have ended. The first value is the mean of as many of the newest games as there are "
        "environments; later games count as they end. Two errors remain. Long games that are so "
        "rare that none is among the first games count only when they end. Games of equal length "
        "that began together also end together, so the value can be far too high and far too low "
        "in turns until the environments are out of step.",
        "mean_game_length": "The mean length of the same games, in agent steps. A number NAME that "
        "the environment tells of its games has the columns game_NAME, the mean over those of the "
        "same games that told it, and eval_game_NAME, of an evaluation's games, at the end of the "
        "table.",
        "eval_step": "The step of the weights that played the evaluation that has just ended.",
        "mean_eval_return": "The mean return of the games of that evaluation. With --eval_env, the "
        "column mean_eval_return/ENV at the end of the table has the mean return in each "
        "environment ENV that it names.",
        "eval_cpu_s": "The CPU seconds that this evaluation took.",
    },
    "Loss": {
        "total_loss": "The loss that the optimizer minimizes. This and the other columns of this "
        "group are means over the updates since the previous row; only lag_max is a maximum.",
        "pg_loss": "The policy gradient loss.",
        "baseline_loss": "The baseline loss, before it is multiplied by --baseline_cost.",
        "entropy": "The mean entropy of the policy, in nats.",
        "mean_value": "The mean value that the baseline predicts, in the unit of the rewards in "
        "the loss, which are clipped (--reward_clipping) or scaled (--reward_scaling). In R2D2 it "
        "is the mean Q-value of the best actions, of unclipped rewards.",
        "grad_norm": "The norm of the gradient over all weights, before clipping.",
        "learning_rate": "The learning rate. If a fork has groups of parameters, it is that of the "
        "first.",
        "lag_mean": "The mean policy lag: the number of updates between the weights that chose an "
        "action and those before the first update from its batch.",
        "lag_max": "The largest policy lag since the previous row.",
        "clipped_rho_share": "The share of transitions whose importance weight (the probability of "
        "the action under the learner's policy divided by its probability under the actor's) was "
        "above --clip_rho_threshold.",
    },
    "Time": {
        "share_environment": "The share of the actors' time in which environments made their "
        "steps. An actor is a process in MonoBeast and a stream in PolyBeast. The shares of one "
        "kind of worker add up to 1.",
        "share_transport": "PolyBeast: the share of the streams' time spent on messages to and "
        "from the servers.",
        "share_batching": "PolyBeast: the share of the streams' time in which a row waited for an "
        "inference thread to take it into a batch.",
        "share_inference": "The share of the actors' time in which the network chose actions.",
        "share_actor_waiting": "The share of the actors' time in which they waited for the "
        "learner, because all rollout buffers (PolyBeast: the learner's queue) were full.",
        "share_learning": "The share of the learner threads' time in which they trained the "
        "network.",
        "share_learner_waiting": "The share of the learner threads' time in which they waited for "
        "a batch. If it is large, the actors are too slow for the learner.",
        "share_answering": "PolyBeast: the share of the inference threads' time in which they "
        "computed actions.",
        "share_answer_waiting": "PolyBeast: the share of the inference threads' time in which they "
        "waited for a batch.",
        "inference_batch": "PolyBeast: the mean number of environments in an inference batch.",
        "latency_p50_ms": "The median time from an observation to its action, in milliseconds.",
        "latency_p99_ms": "The 99th percentile of the same time.",
        "cpu_cores": "The number of CPU cores that the program and its child processes kept busy. "
        "1000 * cpu_cores / sps is the CPU seconds per thousand steps.",
        "idle_cores": "The number of CPU cores, of those that this program may use, that no "
        "program on the machine used.",
    },
    "Health": {
        "actor_restarts": "MonoBeast: how many actors were replaced since the start or resume.",
        "streams": "PolyBeast: the number of streams that are connected.",
        "stream_failures": "PolyBeast: how many times a stream failed since the start or resume.",
        "skipped_updates": "How many updates were skipped because the loss or a gradient was not "
        "finite.",
        "checkpoint_errors": "How many checkpoints could not be written since the start or resume.",
        "mean_rho": "The mean of the importance weights, each clipped at 1. It is 1 without policy "
        "lag and with one update from each batch, and near 0 where the learner's policy has moved "
        "far away from the actors', so that almost nothing is learned.",
        "largest_reward": "The largest absolute reward since the run began, as it is in the loss: "
        "clipped or scaled. No value can be larger than this / (1 - --discounting).",
    },
    "Replay": {
        "td_error": "R2D2: the mean absolute TD error of the rescaled values.",
        "replay_ratio": "R2D2: how many steps were trained on per new environment step, since "
        "learning began in this process (with --save_replay: in the run) or the flag changed.",
        "replay_steps": "R2D2: the number of steps in the replay buffer.",
    },
    "Ranks": {
        "all_reduce_share": "Under torchrun: the share of the time in which a rank waited for the "
        "others or for the sum of the gradients. It is the mean over the ranks, as all shares are "
        "then; counts and cores are sums.",
        "slowest_rank": "Under torchrun: the rank that could make the fewest steps per second.",
        "sps_min": "Under torchrun: how many steps per second that rank could make if it waited "
        "for no other.",
        "sps_max": "Under torchrun: the same for the fastest rank.",
    },
}

COLUMNS = {name: meaning for group in GROUPS.values() for name, meaning in group.items()}

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
    *SUMS_OF_RANKS, *MAXIMA_OF_RANKS, *GROUPS["Time"], *GROUPS["Ranks"], "lag_mean",
    "replay_ratio", "replay_steps",
}  # fmt: skip
