# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Checking flags, once, before anything starts."""

import argparse
import datetime
import json
import math
import os
import shlex
import sys
from typing import Any

# Flags of both beasts that are numbers: name -> (lowest, highest), both allowed.
POSITIVE = 1e-300  # the lowest value of a range that excludes 0
MAX_COUNT = 2**31 - 1
LONGEST_S = 1e9  # more would overflow nanoseconds since the start in 64 bits
RANGES = {
    "total_steps": (1, 2**62),
    "batch_size": (1, MAX_COUNT),
    "unroll_length": (1, MAX_COUNT),
    "num_learner_threads": (1, 64),
    "envs_per_actor": (1, MAX_COUNT),
    "num_actors": (0, MAX_COUNT),
    "envs_per_server": (1, MAX_COUNT),
    "num_servers": (1, MAX_COUNT),
    "max_streams": (1, MAX_COUNT),
    "num_inference_threads": (1, 64),
    "torch_threads": (1, 1024),
    "min_inference_batch_size": (1, MAX_COUNT),
    "max_inference_batch_size": (1, MAX_COUNT),
    "max_learner_queue_size": (1, MAX_COUNT),
    "inference_timeout_ms": (0, 1000 * LONGEST_S),
    "server_timeout": (0.1, LONGEST_S),
    "entropy_cost": (0, math.inf),
    "baseline_cost": (0, math.inf),
    "discounting": (0, 1),
    "vtrace_lambda": (0, 1),
    "clip_rho_threshold": (POSITIVE, math.inf),
    "clip_pg_rho_threshold": (POSITIVE, math.inf),
    # Within these no finite gradient makes a weight infinite in float32, or NaN.
    "learning_rate": (POSITIVE, 1000),
    "alpha": (0, 1),
    "momentum": (0, 1),
    "epsilon": (1e-12, math.inf),
    "grad_norm_clipping": (POSITIVE, 1e12),
    "autotune": (0.1, LONGEST_S),
    "log_every": (0.1, math.inf),
    "checkpoint_every": (1, math.inf),
    "eval_every": (0, 2**62),
    "barrier_updates": (1, MAX_COUNT),
    "num_episodes": (1, MAX_COUNT),
    "max_episode_steps": (1, MAX_COUNT),
    "max_actor_restarts": (0, MAX_COUNT),
    "step_timeout": (0.1, LONGEST_S),
    "seed": (0, 2**31 - 1),
}


class UserError(ValueError):
    """A mistake that one sentence explains better than a traceback does."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Ends a flag's help with its default, unless that says it itself."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.default is None or action.nargs == 0 or "Default:" in text:
            return text
        return f"{text} Default: %(default)s."


def require(flags: Any, name: str, holds: bool, expected: str) -> None:
    """Raises UserError naming flag, value and what was expected of it, unless `holds`."""
    if not holds:
        raise UserError(f"--{name} {getattr(flags, name)}: expected {expected}")


def check_ranges(flags: Any) -> None:
    for name, (low, high) in RANGES.items():
        value = getattr(flags, name, None)
        if value is None:
            continue
        lowest = "more than 0" if low == POSITIVE else f"at least {low:g}"
        highest = f"{high:,.0f}" if high > 1e6 else f"{high:g}"
        expected = lowest if high == math.inf else f"{lowest} and at most {highest}"
        is_finite = math.isfinite(value)
        expected = expected if is_finite else f"a finite number, {expected}"
        require(flags, name, is_finite and low <= value <= high, expected)


def apply_recipe(flags: Any, recipe: dict[str, Any]) -> None:
    """Gives the flags that were not given the recipe's values."""
    for name, value in recipe.items():
        if getattr(flags, name) is None:
            setattr(flags, name, value)


def choose_xpid(flags: Any) -> None:
    """--xpid, where it was not given, and its check."""
    if flags.xpid is None:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        flags.xpid = f"torchbeast-{now}" if flags.mode == "train" else "latest"
    plain = flags.xpid == os.path.basename(flags.xpid) and flags.xpid not in ("", ".", "..")
    require(flags, "xpid", plain, "a plain folder name")
    if flags.mode == "train":
        require(flags, "xpid", flags.xpid != "latest", "another name: latest links to the newest")


def as_plain(flags: dict[str, Any]) -> dict[str, Any]:
    """As files have them: what a fork adds may be a Path, say, which becomes a string."""
    return json.loads(json.dumps(flags, default=str))


def run_path(flags: Any) -> str:
    """The run's folder."""
    return os.path.join(os.path.expanduser(flags.savedir), flags.xpid)


def shell_line(module: str, words: list[str]) -> str:
    """`python -m MODULE ...` as it is to be typed here, with this very Python."""
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    return shlex.join([python, "-m", module, *words])


def given_names(parser: argparse.ArgumentParser, argv: list[str]) -> set[str]:
    """The flags that stand on the command line, whatever their value. Uses the parser up."""
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    return set(vars(parser.parse_args(argv)))
