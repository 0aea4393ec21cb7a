# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What several tests share, and what their processes import; no test is in here."""
