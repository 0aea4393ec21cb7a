# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a run leaves on disk and shows on the terminal.

These modules run in the learner's process, on its main thread. Only `stats` and `timing` also take
numbers from other threads and processes. The two programs, `run`, `evaluate` and the tools import
them. They import each other and small modules of libtorchbeast (environment, flags, linux,
rollouts, shared_memory, spec, workers), and never the learner.
"""
