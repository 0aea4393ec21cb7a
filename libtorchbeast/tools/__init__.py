# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a person runs: `python -m libtorchbeast.tools.sweep`, `report`, `plot`, `certificates`,
`fork_diff`. The module `study` serves the first two.

A tool may import anything here; nothing else imports a tool.
"""
