# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about faults. Each is checked by breaking something real and measuring what happens.

A promise is a function that breaks something and returns Figures. Its keyword arguments say how
often and for how long. `make faults` calls it with the defaults. `make test` calls most of them
with smaller arguments and checks what they return with `hold`, which allows some SLACK.
"""

import importlib
import pkgutil
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

SLACK = 5.0  # tests may miss a bound by this factor, because the machine may be busy


class Figure(NamedTuple):
    """A measured value and its promised bounds, if it has any."""

    what: str
    measured: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    def is_held(self, slack: float = 1.0) -> bool:
        if self.at_most is not None and self.measured > self.at_most * slack:
            return False
        return self.at_least is None or self.measured >= self.at_least / slack


class Promise(NamedTuple):
    name: str
    broken_by: str
    keep: Callable[..., list[Figure]]


PROMISES: list[Promise] = []


def promise(name: str, broken_by: str) -> Callable:
    """Decorates a function that checks what `name` promises, which becomes a row of the report."""

    def add(keep: Callable[..., list[Figure]]) -> Callable[..., list[Figure]]:
        PROMISES.append(Promise(name, broken_by, keep))
        return keep

    return add


def hold(figures: Sequence[Figure], slack: float = SLACK) -> None:
    """Raises AssertionError, with all figures that miss their bounds, if there are any."""
    assert figures, "nothing was measured"
    broken = [figure for figure in figures if not figure.is_held(slack)]
    assert not broken, "\n".join(map(str, broken))


def median_and_p99(what: str, seconds: Sequence[float], at_most: float) -> list[Figure]:
    """Returns the median and the 99th percentile of measured times, both with the bound."""
    assert seconds, f"{what}: never measured"
    p99 = sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    return [
        Figure(f"{what}, median of {len(seconds)}", statistics.median(seconds), "s", at_most),
        Figure(f"{what}, 99th percentile", p99, "s", at_most),
    ]


def promised(figure: Figure) -> str:
    """The bounds of a figure in words, for a report."""
    limits = [("at most", figure.at_most), ("at least", figure.at_least)]
    return ", ".join(f"{word} {x:g} {figure.unit}".strip() for word, x in limits if x is not None)


def line(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def all_promises() -> list[Promise]:
    """The promises of all modules in this folder, in the order of the modules."""
    package = importlib.import_module("tests.faults")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"tests.faults.{module.name}")
    return PROMISES
