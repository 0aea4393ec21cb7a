# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Warns when the numbers of a run say that it cannot learn well, with what to try."""

import logging
import math

from libtorchbeast.flags import Flags

logger = logging.getLogger(__name__)

LEAST_RHO = 0.3  # below this mean importance weight, little is learned
STANDARD_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # of a Gaussian with a deviation of 1
ENTROPY_MARGIN = 0.1  # nats for each dimension, so that chance alone does not warn


class Health:
    """Warns once for each cause. Only one thread may use it.

    Args:
        flags: those of the run.
        width: the number of an action's dimensions if the actions are a Box, else 0: a softmax
            begins with about the largest entropy that it can have, and is not checked.
    """

    def __init__(self, flags: Flags, width: int):
        self._flags, self._told = flags, set[str]()
        self._most_entropy = width * (STANDARD_ENTROPY + ENTROPY_MARGIN) if width else math.inf

    def check(self, row: dict[str, float]) -> None:
        """Looks at a row of the log, which may have no numbers of updates."""
        for cause, text in self._findings(row).items():
            if text and cause not in self._told:
                self._told.add(cause)
                logger.warning("%s", text)

    def _findings(self, row: dict[str, float]) -> dict[str, str]:
        """For each cause the warning, or ""."""
        if "mean_rho" not in row:  # no update yet, or another algorithm
            return {}
        return {
            "values": self._of_values(row["mean_value"], row["largest_reward"]),
            "weights": self._of_weights(row["mean_rho"], row["lag_mean"]),
            "entropy": self._of_entropy(row.get("entropy", -math.inf)),  # a fork may not tell it
        }

    def _of_values(self, mean_value: float, largest_reward: float) -> str:
        gamma = self._flags.discounting
        most = max(1.0, largest_reward) / (1 - gamma) if gamma < 1 else math.inf
        if abs(mean_value) <= most:
            return ""
        return (
            f"The values diverge: mean_value is {mean_value:.3g}, but with rewards of at most "
            f"{max(1.0, largest_reward):.3g} and --discounting {gamma:g} no value can exceed "
            f"{most:.3g} (a bonus that `targets` adds does not count). Try a smaller "
            f"--learning_rate, or --observation_scaling moments."
        )

    def _of_weights(self, mean_rho: float, lag: float) -> str:
        if mean_rho >= LEAST_RHO:
            return ""
        return (
            f"Little is learned: the mean importance weight is {mean_rho:.2f}, because the policy "
            f"that learns is far from the one that acted (policy lag: {lag:.1f} updates). Try a "
            f"smaller --learning_rate, fewer environments for each actor or stream, or --max_lag."
        )

    def _of_entropy(self, entropy: float) -> str:
        if entropy <= self._most_entropy:
            return ""
        cost = self._flags.entropy_cost
        tried = f"--entropy_cost 0 (it is {cost:g})" if cost else "a smaller --learning_rate"
        return (
            f"The policy has become more random than at the start: its entropy is {entropy:.2f}. "
            f"Try {tried}."
        )
