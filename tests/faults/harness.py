# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Promises about faults, each kept by breaking something real and measuring what follows.

A promise is a function that breaks things and returns Figures; its keyword arguments say how often
and for how long, and their defaults are the full form, which `make faults` runs. `make test` calls
the same functions with smaller arguments and `hold`s what they return, with SLACK.
"""

import importlib
import pkgutil
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

SLACK = 5.0  # of a test on a machine that is busy with other things; counts have none


class Figure(NamedTuple):
    """Something measured, and what was promised of it: at most or at least so much, or neither."""

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
    """Makes a promise of the function below: a row of the report."""

    def add(keep: Callable[..., list[Figure]]) -> Callable[..., list[Figure]]:
        PROMISES.append(Promise(name, broken_by, keep))
        return keep

    return add


def hold(figures: Sequence[Figure], slack: float = SLACK) -> None:
    """Raises AssertionError, naming all of them, unless every figure is held."""
    assert figures, "nothing was measured"
    broken = [figure for figure in figures if not figure.is_held(slack)]
    assert not broken, "\n".join(map(str, broken))


def median_and_p99(what: str, seconds: Sequence[float], at_most: float) -> list[Figure]:
    """The two Figures of times that were measured more than once; the promise is about both."""
    assert seconds, f"{what}: never measured"
    p99 = sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    return [
        Figure(f"{what}, median of {len(seconds)}", statistics.median(seconds), "s", at_most),
        Figure(f"{what}, 99th percentile", p99, "s", at_most),
    ]


def all_promises() -> list[Promise]:
    """Of all modules beside this one, in the modules' order."""
    package = importlib.import_module("tests.faults")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"tests.faults.{module.name}")
    return PROMISES
