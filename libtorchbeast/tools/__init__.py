# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What a person runs: `python -m libtorchbeast.tools.sweep`, `report`, `plot`, `certificates`,
`consistency`, `from_torchbeast`. The module `study` serves the first two.

`autotune` is called by the beasts' --autotune. Each tool is a process of its own, or the beast's
before training begins. A tool may import anything here; nothing but the beasts imports a tool.
"""
