# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What `r2d2.py` adds to the plumbing of the beasts: Q-learning with a recurrent network, and a
replay buffer. Only `r2d2.py` imports these modules.
"""
