# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Several learners that train one network, each a process that torchrun has started.

They meet in `ranks`, add up their gradients in `gradients`, and notice in `pulse` who is lost. They
import each other and modules of libtorchbeast (flags, linux, loggers.columns, seeds, workers).
"""
