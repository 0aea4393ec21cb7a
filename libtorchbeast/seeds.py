# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Random seeds. Environment servers use this module, so it imports torch only where needed."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from libtorchbeast.flags import Flags

MAX_SEED = 2**31 - 1  # the largest that every environment takes
MOST_ACTORS = 1_000_000  # or streams, of a rank


def first_seed(seed: int, count: int) -> int:
    """Returns `seed`, or a smaller one if `count` seeds from there on would exceed MAX_SEED."""
    return seed % (MAX_SEED + 2 - count)


def derive_seed(*numbers: int) -> int:
    """Mixes numbers below 2**32 into one seed. Other numbers give another seed, but zeros at the
    end do not count: those of (5,) and (5, 0) are equal."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def seeded(
    create_env: Callable[[Flags], Any],
    flags: Flags,
    num_envs: int,
    seed: int | None = None,
    batch: int = 0,
) -> Callable[[], Any]:
    """Returns a function that calls `create_env` with two more flags. For environment i of
    `num_envs`, `env_seed` is `seed` (by default --seed) + i, in range, and `env_index` its number
    in the run, `batch` * `num_envs` + i.

    Args:
        batch: the number of these environments' actor or stream, which no other has.
    """
    seeds = itertools.count(first_seed(flags.seed if seed is None else seed, num_envs))
    indices = itertools.count(batch * num_envs)
    own = lambda: {"env_seed": next(seeds), "env_index": next(indices)}
    return lambda: create_env(Flags(**vars(flags) | own()))


def seed_everything(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and torch."""
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
