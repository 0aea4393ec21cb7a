# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Describes an error of a fork's environment or network in one line, with the place that raised it.
Needs neither torch nor gymnasium."""

import contextlib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from traceback import FrameSummary

from libtorchbeast.flags import UserError

_PACKAGES = re.compile("/(site|dist)-packages/")  # dist-packages: those of Debian's own Python
_FOREIGN = (sysconfig.get_path("stdlib"), os.path.dirname(__file__) + os.sep, "<")
_NAMES = ("environment.py", "parallel.py", "tensors.py", "seeds.py")  # they call create_env
_ADAPTERS = tuple(os.path.join(os.path.dirname(__file__), name) for name in _NAMES)


def own_frame(frames: list[FrameSummary]) -> FrameSummary | None:
    """Returns the innermost of `frames`, outermost first, that is neither in this package nor in an
    installed one. None if there is none."""
    is_own = lambda f: not f.filename.startswith(_FOREIGN) and not _PACKAGES.search(f.filename)
    return next(filter(is_own, reversed(frames)), None)


def place_of(error: BaseException) -> str:
    """Returns " (FILE:LINE)" of the fork's line that raised the error, or "" if it has none. The
    function that caught the error does not count."""
    frame = own_frame(traceback.extract_tb(error.__traceback__)[1:])
    return f" ({frame.filename}:{frame.lineno})" if frame else ""


def described(error: BaseException) -> str:
    """Returns the error as "KIND: TEXT" in one line of at most 300 characters."""
    text = _in_one_line(error)
    return text if len(text) <= 300 else text[:297] + "..."


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def report(error: BaseException) -> str:
    """Returns the error's traceback. Its last line is the whole error, even if the error's text has
    several lines, and its place in the environment's code, if it comes from there."""
    place = "" if isinstance(error, UserError) else _place_in_environment(error)
    frames = traceback.format_exception(error)[: -len(traceback.format_exception_only(error))]
    return "".join([*frames, _in_one_line(error), f" ({place})" if place else ""])


def cause(report: str) -> str:
    """Returns the last line of a `report`. For a UserError this is its text alone."""
    return (report.splitlines() or [""])[-1].removeprefix("UserError: ")


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
    """A context in which what the code of the environment `name` raises becomes a UserError: one
    sentence with the error and the line that raised it. Other errors stay as they are."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error.__cause__, StopIteration):  # a generator has made another error of it
            error = error.__cause__
        if place := _place_in_environment(error):
            raise UserError(f"--env {name}: {_sentence(name, error, place)}") from error
        raise


def _sentence(name: str, error: BaseException, place: str) -> str:
    kind, _, text = _in_one_line(error).partition(": ")
    if kind in ("NameNotFound", "NamespaceNotFound") and ":" not in name:
        return f"{text} If a module registers it, name the module too: MODULE:{name}"
    if text == "Empty module name":
        return "expected ID or MODULE:ID, seen no module before the colon"
    kinds = {parent.__module__ for parent in type(error).__mro__}
    if isinstance(error, ModuleNotFoundError) or "gymnasium.error" in kinds:
        return text
    expected = ""
    if re.search(r"\breset\(\) got an unexpected keyword argument '(seed|options)'", text):
        expected = "; reset must accept them: def reset(self, *, seed=None, options=None)"
    elif isinstance(error, SystemExit):
        expected = "; expected an exception, because an environment may not end the program"
    return f"{described(error)} ({place}){expected}"


def _place_in_environment(error: BaseException) -> str:
    """Returns "FILE:LINE, in FUNCTION" if code that the adapter called raised the error, else "".
    Lines of installed packages are named only if there are no others."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without `errors_of` itself
    calls = lambda f: f.filename in _ADAPTERS and f.name != "seed_everything"
    here = [i for i, frame in enumerate(frames) if calls(frame)]
    if not here:
        return ""
    called = frames[here[0] + 1 :] or frames[-1:]
    frame = own_frame(called) or called[-1]
    return f"{frame.filename}:{frame.lineno}, in {frame.name}"
