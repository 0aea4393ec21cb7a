# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Latencies and busy cores, against what was put in."""

import multiprocessing
import time

import numpy as np
import pytest

from libtorchbeast import workers
from libtorchbeast.loggers.timing import Clock, busy_seconds, cpu_cores, latency_percentiles


@pytest.mark.parametrize("scale", [1e-5, 1.0])
def test_latency_percentiles_are_those_of_numpy_within_a_bucket(scale):
    clock = Clock([])
    columns = latency_percentiles(lambda: clock.latencies)
    assert columns() == {}
    for seed in range(2):  # the second time only what came since the first
        seconds = np.random.default_rng(seed).lognormal(seed, 1.0, 10_000) * scale
        for s in seconds:
            clock.count_latency(s)
        row = columns()
        expected = 1000 * np.percentile(seconds, [50, 99])
        assert [row["latency_p50_ms"], row["latency_p99_ms"]] == pytest.approx(expected, rel=0.07)
    assert columns() == {}
    before = clock.latencies.copy()
    for s in (0.0, 1e-9, 1e9):  # these have a bucket, too
        clock.count_latency(s)
    more = clock.latencies - before
    assert (more[0], more[-1], more.sum()) == (2, 1, 3)


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_busy_cores_are_those_of_this_process_and_its_children():
    cores, start, before = cpu_cores(), time.monotonic(), busy_seconds()
    child = multiprocessing.get_context("spawn").Process(target=burn, args=(1000.0,), daemon=True)
    child.start()
    try:
        while busy_seconds() < 1.5 + before:
            burn(0.1)
        spent, row = busy_seconds() - before, cores()
        seen = row["cpu_cores"]
        assert 0 <= row["idle_cores"] < workers.available_cores()
        assert seen == pytest.approx(spent / (time.monotonic() - start), rel=0.2)
        before = busy_seconds()
        burn(0.5)  # so does the child, and then it ends
    finally:
        child.kill()
    child.join()
    assert cores()["cpu_cores"] > 0  # its last seconds count
    assert busy_seconds() - before > 0.75
    time.sleep(0.3)
    assert cores()["cpu_cores"] < 0.5  # and they count once


@pytest.mark.parametrize("ours", [{0}, {0, 9999}, {9999}])
def test_numbers_of_cores_may_have_gaps(monkeypatch, ours):
    """Where some are offline, or in a container, the system's list is shorter than its numbers."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: ours)
    assert cpu_cores()()["idle_cores"] >= 0
