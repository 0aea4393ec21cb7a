# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Warns when the numbers of a run say that it cannot learn well, with what to try. Says why no game
return is shown yet."""

import logging
import math

from libtorchbeast.flags import Flags
from libtorchbeast.spec import Spec

logger = logging.getLogger(__name__)

LEAST_RHO = 0.3  # below this mean importance weight, little is learned
STANDARD_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # of a Gaussian with a deviation of 1
ENTROPY_MARGIN = 0.1  # nats for each dimension, so that chance alone does not warn
PATIENCE_H = 1 / 60  # hours after which the lack of a game return is explained
NO_RETURN = (
    "No game return is shown until the first game of every environment has ended: the first games "
    "to end are the short ones, whose mean would mislead (docs/metrics.md, mean_game_return)."
)


class Health:
    """Warns once for each cause. Only one thread may use it.

    Args:
        spec: of the environments. The entropy is checked only if the actions are a Box: a softmax
            begins with about the largest entropy that it can have.
    """

    def __init__(self, flags: Flags, spec: Spec):
        self._flags, self._told = flags, set[str]()
        self._begun: float | None = None  # hours of the first row
        agents = max(1, sum(spec.groups.values()))  # equally many numbers for each
        width = spec.actions.sizes[0] // agents if spec.actions.kind == "box" else 0
        self._most_entropy = width * (STANDARD_ENTROPY + ENTROPY_MARGIN) if width else math.inf
        self._against_large_inputs = ""
        if spec.of_one_agent.scalable and flags.observation_scaling == "none":
            self._against_large_inputs = ", or --observation_scaling moments"
        if spec.codes:
            self._against_large_inputs += (
                f". The integers of {', '.join(spec.codes)} are never scaled: unless Net embeds "
                f"them, make small floats of them in create_env (docs/fork.md)"
            )

    def check(self, row: dict[str, float]) -> None:
        """Looks at a row of the log, which may have no numbers of updates."""
        hours = row.get("hours", 0.0)
        self._begun = hours if self._begun is None else self._begun
        if "mean_game_return" not in row and hours - self._begun > PATIENCE_H:
            self._explain("no return", NO_RETURN, logging.INFO)
        if "mean_rho" not in row:  # no update yet, or another algorithm
            return
        gamma, largest = self._flags.discounting, max(1.0, row["largest_reward"])
        most = largest / (1 - gamma) if gamma < 1 else math.inf
        if abs(row.get("mean_value", 0.0)) > most:  # lacking if it was never finite
            self._explain(
                "values",
                f"The values diverge: mean_value is {row['mean_value']:.3g}, but with rewards of "
                f"at most {largest:.3g} and --discounting {gamma:g} no value can exceed {most:.3g} "
                f"(a bonus that `targets` adds does not count). Try a smaller --learning_rate"
                f"{self._against_large_inputs}.",
            )
        if row["mean_rho"] < LEAST_RHO:
            self._explain(
                "weights",
                f"Little is learned: the mean importance weight is {row['mean_rho']:.2f}, because "
                f"the policy that learns is far from the one that acted (policy lag: "
                f"{row['lag_mean']:.1f} updates). Try a smaller --learning_rate or fewer "
                f"environments.",
            )
        if row.get("entropy", -math.inf) > self._most_entropy:  # a fork may not tell it
            cost = self._flags.entropy_cost
            tried = f"--entropy_cost 0 (it is {cost:g})" if cost else "a smaller --learning_rate"
            self._explain(
                "entropy",
                f"The policy has become more random than at the start: its entropy is "
                f"{row['entropy']:.2f}. Try {tried}.",
            )

    def _explain(self, cause: str, text: str, level: int = logging.WARNING) -> None:
        if cause not in self._told:
            self._told.add(cause)
            logger.log(level, "%s", text, extra={"on_terminal": True})
