# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The tree's sums are right after any changes, and leaves are drawn as often as they should be."""

import numpy as np
import pytest

from libtorchbeast.q_learning.sum_tree import SumTree


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100])
def test_the_share_of_a_leaf_is_that_of_the_sum_before_it(size):
    rng = np.random.default_rng(size)
    tree, numbers = SumTree(size), np.zeros(size)
    for _ in range(20):
        leaves = rng.choice(size, rng.integers(1, size + 1), replace=False)
        numbers[leaves] = rng.integers(0, 4, len(leaves))  # zeros among them
        tree.set(leaves, numbers[leaves])
        assert tree.total == numbers.sum() and (tree.leaves == numbers).all()
        if numbers.any():
            shares = rng.random(50)
            ends = numbers.cumsum() / numbers.sum()
            assert (tree.draw(shares) == np.searchsorted(ends, shares, side="right")).all()


def test_a_leaf_with_0_is_never_drawn_whatever_is_rounded():
    rng = np.random.default_rng(0)
    numbers = rng.random(1000) * 10.0 ** rng.integers(-12, 12, 1000)
    numbers[rng.random(1000) < 0.5] = 0
    tree = SumTree(1000)
    tree.set(np.arange(1000), numbers)
    nearly_1 = np.nextafter(1, 0)
    drawn = tree.draw(np.array([0.0, nearly_1, *(1 - 1e-15 * np.arange(100)), *rng.random(10_000)]))
    assert (numbers[drawn] > 0).all()
