# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The plumbing under MonoBeast and PolyBeast, which a fork does not edit."""
