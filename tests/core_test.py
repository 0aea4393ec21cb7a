# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The C++ core's own tests, under each sanitizer."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(900)  # compiling takes a minute or two
@pytest.mark.parametrize("sanitizer", ["tsan", "asan"])
def test_core(sanitizer):
    run = subprocess.run(["make", sanitizer], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout + run.stderr)[-20_000:]
    assert "Status: SUCCESS!" in run.stdout  # doctest ran
