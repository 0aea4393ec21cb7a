# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import pytest

from tests.support.forks import Fork


@pytest.fixture(scope="module")
def fork(request, tmp_path_factory):
    """The fork NAME.diff of the file NAME_test.py, which has trained as the file's TRAIN says, the
    arguments of `Fork.train`. `fork.said` is what that has returned."""
    name = request.module.__name__.rpartition(".")[2].removesuffix("_test")
    fork = Fork(name, tmp_path_factory.mktemp(name))
    fork.said = fork.train(*request.module.TRAIN)
    return fork
