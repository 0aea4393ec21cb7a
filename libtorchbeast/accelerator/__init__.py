# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What runs on a GPU, or any other device of torch, beside the CPU.

`devices` chooses them, and copies tensors there and back in streams that wait for each other.
`graphs` turns calls of a network and the parts of an update into graphs, and `lending` lends
page-locked memory to the C++ core. They import each other and modules of libtorchbeast
(distributed.ranks, flags, models, net_check, rollouts, shared_memory).
"""
