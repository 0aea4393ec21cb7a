# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Forks, each a patch of monobeast.py (`NAME.diff`, made with `git diff -U1`) and its test, which
trains the patched copy. They are the worked examples of docs/fork.md."""
