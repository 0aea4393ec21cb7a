# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A tree of sums, with which a replay draws sequences by their priorities."""

from typing import Any

import numpy as np


class SumTree:
    """Numbers >= 0, one for each of `size` leaves, from which a leaf is drawn in O(log size) with a
    probability in proportion to its number."""

    def __init__(self, size: int):
        self._leaf0 = 1 << (size - 1).bit_length()
        self._sums = np.zeros(2 * self._leaf0)  # node i is the sum of nodes 2 i and 2 i + 1
        self.leaves = self._sums[self._leaf0 : self._leaf0 + size]

    @property
    def total(self) -> float:
        return float(self._sums[1])

    def set(self, leaves: np.ndarray, values: Any) -> None:
        """Gives leaves [n] their numbers [n], or all of them the same."""
        nodes = leaves + self._leaf0
        self._sums[nodes] = values
        while len(nodes) and nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def draw(self, shares: np.ndarray) -> np.ndarray:
        """The leaves [B], none of them with 0, that `shares` [B] of the total in [0, 1) fall on."""
        rest, nodes = shares * self.total, np.ones(len(shares), np.int64)
        while nodes[0] < self._leaf0:
            left, right = self._sums[2 * nodes], self._sums[2 * nodes + 1]
            # Never an empty half: sums are rounded, so a share may lie beyond the last leaf.
            is_right = (rest >= left) & (right > 0) | (left == 0)
            rest = np.where(is_right, rest - left, rest)
            nodes = 2 * nodes + is_right
        return nodes - self._leaf0
