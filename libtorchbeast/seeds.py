# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Random seeds. Environment servers use this module, so it imports torch only where needed."""

import random

import numpy as np

MAX_SEED = 2**31 - 1  # the largest that every environment takes


def first_seed(seed: int, count: int) -> int:
    """Returns `seed`, or a smaller one if `count` seeds from there on would exceed MAX_SEED."""
    return seed % (MAX_SEED + 2 - count)


def derive_seed(*numbers: int) -> int:
    """Mixes numbers into one seed: other numbers give another seed."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def seed_everything(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and torch."""
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
