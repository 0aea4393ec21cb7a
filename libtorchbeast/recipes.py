# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The defaults that depend on the kind of environment, for all programs.

    atari     games of ale-py, known by their names, and (*) images of 36 x 36 or more and no floats
    vectors   (*) floats without an image; with several agents, only if each group tells its returns
    other     all other environments

    (*) unless --core, --use_lstm or --recipe is given

They were found by measurement (docs/results.md, results/README.md). What a flag says on the command
line, or in a run that is resumed, is never changed.

The name of an environment does not say what it observes. So the flags are completed twice: as if it
was "other", and again by `complete`, when the first environment is open.
"""

import argparse
import logging
from collections.abc import Callable
from typing import Any

from libtorchbeast.flags import Flags, Recipes
from libtorchbeast.spec import Spec, channels_first

logger = logging.getLogger(__name__)

# Steps of Atari are slow, so Atari gets many small updates. Fast environments get large batches.
# In Atari small things move on a background that stays, so each pixel has moments of its own.
# With vectors each task has its own scales, so observations and rewards are scaled by their running
# moments (moments.py). Steps are slow, so each batch is learned from ten times, with PPO's clip
# (vtrace.py). The batch is large, because the clip bounds the policy's change for each batch.
ATARI: dict[str, Any] = dict(
    total_steps=6_000_000, batch_size=4, unroll_length=20, passes=1, minibatches=1, ppo_clip=0.0,
    learning_rate=4e-4, entropy_cost=0.01, baseline_cost=0.5, discounting=0.99,
    vtrace_lambda=0.95, reward_clipping="abs_one", reward_scaling="none",
    observation_scaling="pixels", eval_every=1_000_000,
)  # fmt: skip
LEARNING: Recipes = {
    "atari": ATARI,
    "other": ATARI | dict(
        total_steps=10_000_000, batch_size=32, learning_rate=3e-3, entropy_cost=0.02,
        baseline_cost=0.25, discounting=0.995, vtrace_lambda=0.9, observation_scaling="none",
        eval_every=2_500_000,
    ),
    "vectors": ATARI | dict(
        total_steps=3_000_000, batch_size=64, unroll_length=32, passes=10, minibatches=8,
        ppo_clip=0.2, learning_rate=5e-4, entropy_cost=0.0, reward_clipping="none",
        reward_scaling="returns", observation_scaling="moments",
    ),
}  # fmt: skip
# The number of environments of an actor or a stream.
ENVIRONMENTS = {"atari": 16, "other": 64, "vectors": 16}


def with_environments(flag: str, learning: bool = True) -> Recipes:
    """The recipes of a program whose number of environments has the name `flag`."""
    kinds = ENVIRONMENTS.items()
    return {kind: {flag: count, **(LEARNING[kind] if learning else {})} for kind, count in kinds}


def kind_of(draft: argparse.Namespace, is_atari: bool, spec: Spec | None) -> str:
    """The environment's kind. Without a `spec`, what its name alone says."""
    if is_atari:
        return "atari"
    if spec is None or vars(draft).get("core"):  # a server's flags have no core
        return "other"
    lacks_returns = any(f"{group}/episode_return" not in spec.observations for group in spec.groups)
    spec = spec.of_one_agent
    if spec.has_large_images and not spec.scalable:
        return "atari"
    return "vectors" if spec.has_vectors and not lacks_returns else "other"


def apply(draft: argparse.Namespace, recipes: Recipes, kind: str) -> None:
    """Sets the flags that are None to the recipe's values, or those of --recipe. `draft.left_out`
    maps the name of each flag that was None to the kind."""
    kind = draft.recipe or kind
    left_out = [name for name, value in vars(draft).items() if value is None]
    draft.left_out = getattr(draft, "left_out", {}) | dict.fromkeys(left_out, kind)
    for name, value in recipes[kind].items():
        if getattr(draft, name) is None:
            setattr(draft, name, value)


def may_change(draft: argparse.Namespace, name: str, spec: Spec | None) -> bool:
    """Whether `complete` may give the flag another value. If so, it is too early to check it."""
    return spec is None and draft.left_out.get(name) == "other"


def complete(
    flags: Flags, check: Callable[[argparse.Namespace, Spec], Flags], spec: Spec, recipes: Recipes
) -> Flags:
    """Completes flags again, now that the environment's spec is known, and logs what was chosen.
    `check` is the program's `check_flags`, which has completed them without a spec before."""
    for name, (shape, dtype) in spec.of_one_agent.for_nets.observations.items():
        if channels_first(shape, dtype) != shape:
            said = "Observation %s is [H, W, C]; models.Parts gives it to the network as [C, H, W]"
            logger.info(said, name, extra={"on_terminal": True})
    given = dict(vars(flags))
    given |= dict.fromkeys(given.pop("left_out", ()))  # None: the flag was left out
    values = vars(check(argparse.Namespace(**given), spec))
    left_out = values.pop("left_out")
    for kind in sorted(set(left_out.values())):
        if words := [f"--{name} {values[name]}" for name in recipes[kind] if name in left_out]:
            logger.info("Recipe for %s: %s", kind, " ".join(words), extra={"on_terminal": True})
    return Flags(**values)
