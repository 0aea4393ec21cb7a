# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
from pathlib import Path


def test_each_patch_has_its_test_which_also_checks_what_it_changes():
    for patch in Path(__file__).parent.glob("*.diff"):
        assert patch.with_name(f"{patch.stem}_test.py").exists()
