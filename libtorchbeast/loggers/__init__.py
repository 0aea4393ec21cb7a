# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a run leaves on disk and shows on the terminal.

All of it runs in the learner's process, on its main thread; only `stats` also takes numbers from
other threads and processes. `run` and `evaluate` import these modules; they import each other and
the small modules of libtorchbeast (flags, rollouts, workers), and never the learner.
"""
