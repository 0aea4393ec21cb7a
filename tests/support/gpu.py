# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The parameter of tests that need a GPU. `make gpu` runs only these, and `make test` skips them
where there is none."""

import pytest
import torch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = pytest.param(torch.device("cuda"), id="cuda", marks=[pytest.mark.gpu, needs_gpu])
