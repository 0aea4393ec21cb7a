# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network that fails in a run, after the check at its start, ends the run in one sentence."""

import re

import pytest

import monobeast
from libtorchbeast import models
from libtorchbeast.flags import UserError
from libtorchbeast.spec import Actions, Spec
from tests.support import polybeast as poly
from tests.support.actors import make_flags

pytestmark = pytest.mark.usefixtures("as_before")

RAISED = (
    r"Your network raised ValueError: too much of everything in forward "
    r"\(\S*wrong_networks_test.py:\d+\); its inputs are frame "
)


class LateError(monobeast.Net):
    """Fails from the sixth step of a game on. The rows of make_net's check begin games."""

    def forward(self, inputs, core_state=()):
        if self.must_fail(inputs):
            raise ValueError("too much\nof everything")
        return super().forward(inputs, core_state)

    def must_fail(self, inputs):
        return (inputs["episode_step"] > 5).any()


class LearnersError(LateError):
    def must_fail(self, inputs):
        return len(inputs["done"]) > 3


@pytest.mark.parametrize("net", ["LateError", "LearnersError"])
def test_in_polybeasts_threads(tmp_path, net):
    message = poly.refusal(tmp_path, *poly.FOREVER, "--net", f"{__name__}.{net}")
    assert re.search("^" + RAISED, message), message


BROKEN = {
    "missing": ("import nothing_there", r"raised ModuleNotFoundError: No module named .*py:1\)$"),
    "syntax": ("x = = 3", r"raised SyntaxError: invalid syntax \(broken_syntax.py, line 1\)$"),
    "error": ("\n1 / 0", r"raised ZeroDivisionError: division by zero \(\S*broken_error.py:2\)$"),
    "exit": ("import sys\nsys.exit(2)", r"raised SystemExit: 2 \(\S*broken_exit.py:2\)$"),
    "empty": ("", r"expected MODULE.CLASS, .* has no attribute 'Net'\)$"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_module_of_a_network_that_cannot_be_imported(tmp_path, monkeypatch, kind):
    code, said = BROKEN[kind]
    (tmp_path / f"broken_{kind}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    spec = Spec("some", 1, {"frame": ((4,), "float32")}, Actions("discrete", (3,)))
    with pytest.raises(UserError, match=f"^--net.*{said}"):
        models.make_net(monobeast.Net, spec, make_flags("--net", f"broken_{kind}.Net"))
