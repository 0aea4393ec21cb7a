# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Finds the line of a fork that raised an error. Needs neither torch nor gymnasium."""

import os
import sysconfig
from traceback import FrameSummary

_FOREIGN = (sysconfig.get_path("stdlib"), os.path.dirname(__file__) + os.sep, "<")


def own_frame(frames: list[FrameSummary]) -> FrameSummary | None:
    """Returns the innermost of `frames`, outermost first, that is neither in this package nor in an
    installed one. None if there is none."""
    is_own = lambda f: not f.filename.startswith(_FOREIGN) and "site-packages" not in f.filename
    return next(filter(is_own, reversed(frames)), None)


def described(error: Exception) -> str:
    """Returns the error as "KIND: TEXT" in one line of at most 300 characters."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= 300 else text[:297] + "..."
