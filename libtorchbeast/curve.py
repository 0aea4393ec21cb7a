# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A small curve over steps for a terminal, in braille characters, each of which has 2 x 4 dots."""

import numpy as np

WIDTH, HEIGHT = 48, 4  # in characters
POINTS = 4 * WIDTH  # kept for good, two for each column of dots
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # Unicode's numbers


class Curve:
    """Points in the order of their steps. However many are added, at most 2 x `POINTS` are kept:
    of more, `POINTS` stay that lie evenly between the first and the last."""

    def __init__(self):
        self._points: list[tuple[float, float]] = []

    def add(self, step: float, value: float) -> None:
        """A point that is not beyond the last one is not taken."""
        if self._points and step <= self._points[-1][0]:
            return
        self._points.append((step, value))
        if len(self._points) > 2 * POINTS:
            steps = [step for step, _ in self._points]
            even = np.linspace(steps[0], steps[-1], POINTS)
            self._points = [self._points[i] for i in np.unique(np.searchsorted(steps, even))]

    def lines(self, caption: str) -> list[str]:
        """The curve, `HEIGHT` lines with the highest and the lowest value at their left, and one
        with the caption between the first and the last step. Nothing while it has no length."""
        if len(self._points) < 2:
            return []
        steps, values = zip(*self._points, strict=True)
        names = [f"{max(values):,.2f}", *[""] * (HEIGHT - 2), f"{min(values):,.2f}"]
        first, last = f"{steps[0]:,.0f}", f"{steps[-1]:,.0f}"
        axis = first + caption.center(WIDTH - len(first) - len(last)) + last
        margin = max(map(len, names))
        rows = zip([*names, ""], [*draw(steps, values), axis], strict=True)
        return [f"{name:>{margin}} {row}" for name, row in rows]


def draw(steps: tuple[float, ...], values: tuple[float, ...]) -> list[str]:
    """`HEIGHT` lines of `WIDTH` braille characters, from the lowest to the highest value."""
    columns = np.interp(np.linspace(steps[0], steps[-1], 2 * WIDTH), steps, values)
    low, high = min(values), max(values)
    levels = np.rint((high - columns) / ((high - low) or 1) * (4 * HEIGHT - 1)).astype(int)
    before = np.concatenate([levels[:1], levels[:-1]])
    level = np.arange(4 * HEIGHT)[:, None]  # from the top
    # Each column reaches from its level to that of the column before it.
    dots = (np.minimum(before, levels) <= level) & (level <= np.maximum(before, levels))
    cells = dots.reshape(HEIGHT, 4, WIDTH, 2) * _DOTS[:, None]
    return ["".join(map(chr, row)) for row in 0x2800 + cells.sum(axis=(1, 3))]
