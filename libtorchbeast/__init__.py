# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What MonoBeast and PolyBeast share: everything that a fork does not need to edit.

The modules in this folder itself carry the data from the environments through the learner to the
checkpoints. docs/design.md lists the folders.

PolyBeast's C++ extension is loaded on the first use of one of its names: `ActorPool`, `Batch`,
`BatchingQueue`, `ClosedBatchingQueue`, `DynamicBatcher`, `StreamError` and `describe`.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libtorchbeast._C import (  # noqa: F401  (what __getattr__ finds)
        ActorPool,
        Batch,
        BatchingQueue,
        ClosedBatchingQueue,
        DynamicBatcher,
        StreamError,
        describe,
    )

# Turns off gRPC's support for forks, which must happen before gRPC is initialised. With it, a child
# that this process or an environment starts may crash before it executes its program
# (grpc/grpc#43055, grpcio >= 1.81). Nothing here uses gRPC in a forked process.
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
