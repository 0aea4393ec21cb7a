# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Fixtures that tests of several files use."""

import shutil
from collections import Counter

import pytest
import torch

from tests.support.monobeast import IN_ORDER, as_it_was, beast

# The files that take longest, in the order in which they start.
SLOWEST = (
    "core faults_signals faults_files several_learners r2d2 polybeast monobeast "
    "spaces parallel actors tls evaluate soak benchmarks device_training gpu linux"
).split()


def pytest_collection_modifyitems(items):
    """Sorts the files, so that none of the slow ones is left for one process at the end: first the
    slowest, then forks, then those with most tests."""
    file_of = lambda item: item.nodeid.partition("::")[0]
    tests = Counter(map(file_of, items))
    place = {f"tests/{name}_test.py": number for number, name in enumerate(SLOWEST)}
    default = lambda file: len(place) + (not file.startswith("tests/forks/"))
    order = lambda file: (place.get(file, default(file)), -tests[file])
    items.sort(key=lambda item: order(file_of(item)))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """torch computes with one thread: the tests' tensors are small, and two threads of a process
    that has to share the cores wait for each other most of the time."""
    torch.set_num_threads(1)


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path}/s"


@pytest.fixture
def as_before():
    with as_it_was():
        yield


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A folder with a run that was resumed once: it has a checkpoint and the one before it."""
    savedir = tmp_path_factory.mktemp("finished")
    beast(savedir, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 500)
    beast(savedir, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 1000)
    return savedir


@pytest.fixture
def savedir(finished_run, tmp_path):
    """A copy of `finished_run`."""
    return shutil.copytree(finished_run, tmp_path / "copy", symlinks=True)
