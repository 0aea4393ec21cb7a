# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import libtorchbeast  # noqa: F401  # says how gRPC treats forks, before a test imports it
