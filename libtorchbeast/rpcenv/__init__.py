# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Everything between a learner and its environment servers.

The package is named after its protocol, rpcenv.proto. It runs in two kinds of process. `server`,
`stream`, `watchdog`, `wire` and `supervisor` run on the machines of the environments;
`client` and `local_servers` run in the learner. `addresses`, `sockets` and `tls` serve both.

No module here imports torch, because a machine that only runs environments has none. They import
each other and torch-free modules of libtorchbeast (spec, environment, flags, errors, seeds,
workers).
"""
