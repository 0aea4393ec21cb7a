# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network that fails in a run, after the check at its start, ends the run in one sentence."""

import re

import pytest
import torch
from torch import nn

import monobeast
from libtorchbeast import models
from libtorchbeast.flags import UserError
from libtorchbeast.spec import Actions, Spec
from tests.support import monobeast as mono
from tests.support import polybeast as poly
from tests.support.actors import make_flags

pytestmark = pytest.mark.usefixtures("as_before")

LONG = 1_000_000
SPEC = Spec("some", 1, {"frame": ((4,), "float32")}, Actions("discrete", (3,)))
NAN = (
    r"Your network returned NaN or infinity in {} for frame from \S+ to \S+; expected finite "
    r"numbers \(forward is \S*wrong_networks_test.py:\d+\)"
)
RAISED = (
    r"Your network raised ValueError: too much of everything in forward "
    r"\(\S*wrong_networks_test.py:\d+\); its inputs are frame "
)


class LateNet(monobeast.Net):
    """Fails from the sixth step of a game on. The rows of make_net's check begin games."""

    def forward(self, inputs, core_state=()):
        outputs, core_state = super().forward(inputs, core_state)
        return (self.fail(outputs) if self.must_fail(inputs) else outputs), core_state

    def must_fail(self, inputs):
        return (inputs["episode_step"] > 5).any()


class LateNaN(LateNet):
    def fail(self, outputs):
        return {k: v / 0 for k, v in outputs.items()}


class LateError(LateNet):
    def fail(self, outputs):
        raise ValueError("too much\nof everything")


class LearnersNaN(LateNaN):
    def must_fail(self, inputs):
        return len(inputs["done"]) > 3


class LearnersError(LateError):
    must_fail = LearnersNaN.must_fail


def name(net):
    return ["--net", f"{__name__}.{net.__name__}"]


@pytest.mark.parametrize("net, said", [
    (LearnersNaN, "20 updates in a row had .*" + NAN.format("policy_logits and baseline")),
    (LateNaN, NAN.format("policy_logits")),
])  # fmt: skip
def test_in_turns_with_the_learner(tmp_path, net, said):
    message = mono.refusal(tmp_path, *mono.IN_ORDER, *name(net), "--total_steps", LONG)
    assert re.search(f"^monobeast: error: {said}$", message), message


@pytest.mark.parametrize("net", [LateError, LearnersError])
def test_in_polybeasts_threads(tmp_path, net):
    message = poly.refusal(tmp_path, *poly.FOREVER, *name(net))
    assert re.search("^" + RAISED, message), message


def test_a_very_large_observation_is_blamed_and_not_the_network():
    net = models.make_net(monobeast.Net, SPEC, make_flags("--net", "monobeast.Net"))
    for weight in net.trunk.parameters():
        nn.init.ones_(weight)
    zeros = torch.zeros(1, 2)
    row = {"frame": torch.full((1, 2, 4), 3e38), "reward": zeros, "last_action": zeros.long()}
    row["done"] = zeros.bool()
    said = r"^Observation 'frame' has numbers as large as 3e\+38, with"
    with pytest.raises(UserError, match=said):
        models.act_on(net, row, ())


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
    flags = make_flags("--net", f"broken_{kind}.Net")
    with pytest.raises(UserError, match=f"^--net.*{said}"):
        models.make_net(monobeast.Net, SPEC, flags)
