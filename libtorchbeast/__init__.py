# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The plumbing under MonoBeast and PolyBeast, which a fork does not edit.

PolyBeast's extension is loaded when the first of its names is asked for: `BatchingQueue`,
`DynamicBatcher`, `ActorPool`, `ClosedBatchingQueue`, `StreamError`, `describe`.
"""

import importlib
import os
from typing import Any

# Before anything initialises gRPC. With its support for forks, a child that this process, or an
# environment, starts may crash before it executes its program (grpc/grpc#43055, grpcio >= 1.81);
# nothing here uses gRPC in a process that was merely forked.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_EXTENSION = frozenset(
    "ActorPool Batch BatchingQueue ClosedBatchingQueue DynamicBatcher StreamError describe".split()
)


def __getattr__(name: str) -> Any:
    if name not in _EXTENSION:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        extension = importlib.import_module("libtorchbeast._C")
    except ImportError as error:
        from libtorchbeast.flags import UserError

        raise UserError(
            f"PolyBeast needs its C++ extension; build it with `make build` or "
            f"`python setup.py build_ext --inplace` ({error})"
        ) from error
    return getattr(extension, name)
