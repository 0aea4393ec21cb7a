# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Random seeds. Imports no torch: environment servers have none."""

import random

import numpy as np


def derive_seed(*numbers: int) -> int:
    """A seed that differs wherever one of the numbers does."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def seed_everything(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's generators."""
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
