# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Says an error in one line, and finds the line of a fork that raised it. Needs neither torch nor
gymnasium."""

import os
import sysconfig
import traceback
from traceback import FrameSummary

_FOREIGN = (sysconfig.get_path("stdlib"), os.path.dirname(__file__) + os.sep, "<")


def own_frame(frames: list[FrameSummary]) -> FrameSummary | None:
    """Returns the innermost of `frames`, outermost first, that is neither in this package nor in an
    installed one. None if there is none."""
    is_own = lambda f: not f.filename.startswith(_FOREIGN) and "site-packages" not in f.filename
    return next(filter(is_own, reversed(frames)), None)


def described(error: BaseException) -> str:
    """Returns the error as "KIND: TEXT" in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def report(error: BaseException) -> str:
    """Returns the error's traceback. Its last line is the whole error, as `described` says it, even
    if the error's text has several lines."""
    frames = traceback.format_exception(error)[: -len(traceback.format_exception_only(error))]
    return "".join([*frames, described(error)])


def cause(report: str) -> str:
    """Returns the last line of a `report`. Of a UserError it is the text alone."""
    return (report.splitlines() or [""])[-1].removeprefix("UserError: ")
