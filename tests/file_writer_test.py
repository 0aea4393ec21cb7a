# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The writer of a run's files: failures, and a full disk."""

import logging
from logging.handlers import MemoryHandler

import pytest

from libtorchbeast.flags import UserError
from tests.support.run_files import column, file_size_limit, writer


def test_a_start_that_fails_frees_the_run(tmp_path):
    (tmp_path / "run" / "logs.csv").mkdir(parents=True)
    # The one that keeps the lines of a start has given them to out.log, if another test left one.
    handlers = [h for h in logging.getLogger().handlers if not isinstance(h, MemoryHandler)]
    with pytest.raises(UserError, match="the run's folder cannot be written: .*logs.csv"):
        writer(tmp_path)
    assert logging.getLogger().handlers == handlers
    (tmp_path / "run" / "logs.csv").rmdir()
    files = writer(tmp_path)
    files.close()
    files.close()  # twice is once


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's
def test_full_disk_costs_rows_and_nothing_else(tmp_path, caplog):
    """Values 1/3 make long lines; the limit then cuts one in half, as a full disk does."""
    with writer(tmp_path) as files:
        files.log({"step": 10, "loss": 1 / 3})
        size = (files.path / "logs.csv").stat().st_size
        with file_size_limit(size + 20):
            for step in (20, 30, 40):
                files.log({"step": step, "loss": 1 / 3})
        assert caplog.text.count("logs.csv misses a row") == 1
        files.log({"step": 50, "loss": 1 / 3})
    assert column(files.path / "logs.csv", "step") == ["10", "50"]
    assert (files.path / "logs.csv").read_text().count("\n") == 3
    assert "left out" not in caplog.text
