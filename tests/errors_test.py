# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The line of a fork that raised an error."""

import json
import os
import traceback

import numpy as np

from libtorchbeast import environment, errors
from libtorchbeast.flags import UserError


def error_of(function):
    """What the function raises."""
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("expected an error")


def frames_of(function):
    return traceback.extract_tb(error_of(function).__traceback__)


def test_the_innermost_line_outside_of_packages_is_found():

    def forks_line():
        json.loads("{")

    frames = frames_of(forks_line)
    assert os.path.basename(frames[-1].filename) == "decoder.py"
    assert errors.own_frame(frames).name == "forks_line"
    for other in (
        lambda: np.linalg.inv(np.zeros((2, 3))),
        lambda: environment.Environment(None, 1),
    ):
        frame = errors.own_frame(frames_of(other))
        assert (frame.filename, frame.name) == (__file__, "<lambda>")
    for folder in ("venv/lib/python3.11/site", "usr/local/lib/python3.11/dist"):
        path = f"/{folder}-packages/gymnasium/core.py"
        frames.append(traceback.FrameSummary(path, 1, "step", line=""))
    assert errors.own_frame([f for f in frames if f.filename != __file__]) is None
    assert errors.own_frame([]) is None


def test_an_error_is_one_line_that_is_not_too_long():
    assert len(errors.described(ValueError(1000 * "lost "))) == 300
    lost = ValueError("lost its\n   connection")
    assert errors.described(lost) == "ValueError: lost its connection"


def test_a_report_ends_with_the_whole_error_in_one_line():
    """Its reader takes the last line for the cause."""

    def fails(error):
        raise error from KeyError("frame")

    for error, said in (
        (RuntimeError("no simulator\n\n on port 7\n"), "RuntimeError: no simulator on port 7"),
        (UserError("Your network is\nwrong"), "Your network is wrong"),
        (UserError(1000 * "long "), (1000 * "long ").strip()),
        (SystemExit(), "SystemExit"),
        (SyntaxError("invalid", ("x.py", 3, 1, "x = = 3")), "SyntaxError: invalid (x.py, line 3)"),
        (ExceptionGroup("two\nat once", [ValueError(), KeyError()]), "ExceptionGroup: two at once"),
    ):
        report = errors.report(error_of(lambda: fails(error)))  # noqa: B023
        assert "KeyError: 'frame'" in report and "in fails\n" in report and "Traceback" in report
        assert errors.cause(report).startswith(said), report
    assert errors.cause("") == ""
