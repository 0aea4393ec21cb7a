# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network that breaks its contract is refused before a run starts, with one sentence."""

import dataclasses

import pytest
import torch
from torch import nn

import monobeast
from libtorchbeast import models
from libtorchbeast.flags import UserError
from libtorchbeast.net_check import why_not_finite
from libtorchbeast.spec import Actions, Spec
from tests.support.actors import A, OnesNet, make_flags
from tests.support.monobeast import refusal

SPEC = Spec("some", 1, {"frame": ((4,), "float32")}, Actions("discrete", (A,)))


class Sound(nn.Module):
    """Keeps the contract. Its subclasses break it in one place each."""

    def __init__(self, spec, flags):
        super().__init__()
        self.linear = nn.Linear(4, A + 1)
        self.core = nn.GRU(A + 1, A + 1)

    def initial_state(self, batch_size):
        return (torch.zeros(1, batch_size, A + 1),)

    def forward(self, inputs, core_state):
        x, core_state = models.unroll(
            self.core, self.linear(inputs["frame"]), inputs["done"], core_state,
            self.initial_state(inputs["done"].shape[1]),
        )  # fmt: skip
        return self.result(dict(policy_logits=x[..., :A], baseline=x[..., A]), core_state)

    def result(self, outputs, core_state):
        return outputs, core_state


def made(net_class, spec=SPEC):
    return models.make_net(net_class, spec, make_flags())


def with_result(result):
    return type("Broken", (Sound,), {"result": lambda net, *returned: result(*returned)})


def with_state(initial_state):
    return type("Broken", (Sound,), {"initial_state": lambda net, B: initial_state(B)})


def with_module(module):
    def init(net, spec, flags):
        Sound.__init__(net, spec, flags)
        net.part = module()

    return type("Broken", (Sound,), {"__init__": init})


class WithoutZeros(Sound):
    """For observations from 1 on: it cannot look up a 0, or divides by it."""

    def forward(self, inputs, core_state):
        frame = inputs["frame"] - 1 if self.looks_up else inputs["frame"]
        rows = nn.functional.embedding(frame.long(), torch.ones(9, 4))[..., 0]
        rows = rows if self.looks_up else frame / frame.mean()
        return super().forward(inputs | {"frame": rows}, core_state)


@pytest.mark.parametrize("looks_up", [True, False])
def test_a_network_for_observations_without_zeros_is_taken(looks_up):
    made(type("OfOnes", (WithoutZeros,), {"looks_up": looks_up}))


RESULTS = {
    "no state": (lambda outputs, state: outputs, r"returned a dict; expected a pair: a dict of"),
    "three": (lambda outputs, state: (outputs, state, 0), r"returned \(a dict, .*, a int\); exp"),
    "no dict": (lambda outputs, state: (outputs["baseline"], state),
                r"returned \(float32\[3, 2\], \(float32\[1, 2, 4\]\)\); expected a pair"),
    "no baseline": (lambda outputs, state: (dict(policy_logits=outputs["policy_logits"]), state),
                    r"returned the outputs \['policy_logits'\]; expected \['baseline'\] among"),
    "width": (lambda outputs, state: (outputs | {"policy_logits": torch.zeros(3, 2, 9)}, state),
              r"returned policy_logits float32\[3, 2, 9\] for inputs \[3, 2, ...\]; expected "
              rf"float32\[3, 2, {A}\]"),
    "axes": (lambda outputs, state: ({k: v.transpose(0, 1) for k, v in outputs.items()}, state),
             rf"returned policy_logits float32\[2, 3, {A}\] .*; expected float32\[3, 2, {A}\]"),
    "dtype": (lambda outputs, state: (outputs | {"baseline": outputs["baseline"].double()}, state),
              r"returned baseline float64\[3, 2\] .*; expected float32\[3, 2\]"),
    "one axis": (lambda outputs, state: (outputs | {"baseline": torch.zeros(3, 2, 1)}, state),
                 r"returned baseline float32\[3, 2, 1\] .*; expected float32\[3, 2\]"),
    "action": (lambda outputs, state: (outputs | {"action": torch.zeros(3, 2)}, state),
               r"returned action float32\[3, 2\] .*; expected int64\[3, 2\]"),
    "a number": (lambda outputs, state: (outputs | {"loss": torch.tensor(0.5)}, state),
                 r"returned loss float32\[\] .*; expected a tensor \[3, 2, ...\]"),
    "a row's key": (lambda outputs, state: (outputs | {"reward": torch.zeros(3, 2)}, state),
                    r"returned outputs \['reward'\]; expected names that rows do not have"),
    **{f"a row's key, {name}": (
        lambda outputs, state, name=name: (outputs | {name: torch.zeros(3, 2)}, state),
        rf"returned outputs \['{name}'\]; expected names that rows do not have")
       for name in ("past", "policy_version", "column/x", "core_state/0", "game/x")},
    "NaN": (lambda outputs, state: (outputs | {"baseline": outputs["baseline"] / 0}, state),
            "returned NaN or infinity in baseline for observations of zeros and of ones; "),
    "last row": (lambda outputs, state: (outputs, (state[0][:, :, 0],)),
                 r"returned the core state \(float32\[1, 2\]\); expected \(float32\[1, 2, 4\]\)"),
    "no tuple": (lambda outputs, state: (outputs, state[0]),
                 r"returned the core state float32\[1, 2, 4\]; expected \(float32\[1, 2, 4\]\)"),
}  # fmt: skip
STATES = {
    "a tensor": (lambda B: torch.zeros(1, B, 4), r"float32\[1, 2, 4\]"),
    "integers": (lambda B: (torch.zeros(1, B, 4, dtype=torch.int64),), r"\(int64\[1, 2, 4\]\)"),
    "B first": (lambda B: (torch.zeros(B, 1, 4),), r"\(float32\[2, 1, 4\]\)"),
    "None": (lambda B: None, "a NoneType"),
}
MODULES = {
    "BatchNorm2d": lambda: nn.BatchNorm2d(3),
    "Dropout": lambda: nn.Sequential(nn.Dropout(0.1)),
    "LSTM": lambda: nn.LSTM(3, 3, 2, dropout=0.1),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2, dropout=0.1),
}


def test_a_sound_network_is_taken_as_it_is():
    """One with a GRU, whose state is one tensor."""
    assert type(made(Sound)) is Sound


@pytest.mark.parametrize("what", RESULTS)
def test_a_wrong_result_is_refused(what):
    result, text = RESULTS[what]
    with pytest.raises(UserError, match=f"^Your network {text}"):
        made(with_result(result))


def test_an_output_with_the_name_of_an_observation_for_the_loss_is_refused():
    """The loss would find one of the two under the name. The network does not get it."""
    spec = dataclasses.replace(SPEC, observations={**SPEC.observations, "loss/x": ((), "float32")})
    same = with_result(lambda outputs, state: (outputs | {"loss/x": outputs["baseline"]}, state))
    made(same)
    with pytest.raises(UserError, match=r"returned outputs \['loss/x'\]; expected names that obs"):
        made(same, spec)


@pytest.mark.parametrize("what", STATES)
def test_a_wrong_initial_state_is_refused(what):
    initial_state, seen = STATES[what]
    expected = r"expected a tuple of float tensors \[layers, 2, H\], or \(\)$"
    with pytest.raises(
        UserError, match=rf"^Your network gives {seen} as initial_state\(2\); {expected}"
    ):
        made(with_state(initial_state))


@pytest.mark.parametrize("kind", MODULES)
def test_parts_that_vary_from_call_to_call_are_refused_in_training_mode(kind):
    with pytest.raises(UserError, match=rf"^Your network has {kind} in training mode \(part"):
        made(with_module(MODULES[kind]))
    made(with_module(lambda: MODULES[kind]().eval()))  # a frozen part does not vary


def test_parts_that_do_not_vary_are_taken():
    for module in (lambda: nn.LayerNorm(3), lambda: nn.Dropout(0.0), lambda: nn.LSTM(3, 3)):
        made(with_module(module))


class Dropping(monobeast.Net):
    """Has no module for its dropout."""

    def see(self, image, vector):
        return nn.functional.dropout(super().see(image, vector), 0.1, training=self.training)


class Frozen(Dropping):
    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.eval()


@pytest.mark.parametrize("frame", [((4,), "float32"), ((4, 40, 40), "uint8")], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_dropout_function_is_refused_in_training_mode(frame, precision):
    spec = Spec("some", 1, {"frame": frame}, Actions("discrete", (A,)))
    flags = make_flags("--precision", precision)
    models.make_net(Frozen, spec, flags)
    with pytest.raises(UserError) as refused:
        models.make_net(Dropping, spec, flags)
    assert str(refused.value) == (
        "Your network returned two different policy_logits for the same inputs, in training mode, "
        "with which actors and learner would compute different policies; expected the same, for "
        "example without F.dropout(..., training=self.training)"
    )


def test_random_numbers_that_change_no_head_are_allowed():
    """For example those of a network that chooses its own actions."""
    draw = lambda outputs: torch.randint(A, outputs["baseline"].shape)
    for name in ("action", "noise"):
        made(with_result(lambda outputs, s, name=name: (outputs | {name: draw(outputs)}, s)))


@pytest.mark.parametrize("lost", ["baseline", "policy_logits"])
def test_an_axis_of_length_1_that_is_lost_is_found(lost):
    """Actors call the network with one row, and a test mode may have one environment."""
    with pytest.raises(UserError, match=rf"returned {lost} .* for inputs \[1, 1, ...\]; expected"):
        made(with_result(lambda outputs, s: (outputs | {lost: outputs[lost].squeeze()}, s)))


class RestartingItself(Sound):
    """Restarts without models.unroll, from an initial state that it learns."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.start = nn.Parameter(torch.rand(1, 1, A + 1))

    def initial_state(self, batch_size):
        return (self.start.expand(-1, batch_size, -1),)

    def forward(self, inputs, core_state):
        x, outputs = self.linear(inputs["frame"]), []
        for row, done in zip(x, inputs["done"].float()[..., None], strict=True):
            core_state = core_state[0] + done * (self.start - core_state[0])  # rounds
            output, core_state = self.core(row[None], core_state)
            outputs.append(output)
            core_state = (core_state,)
        x = torch.cat(outputs)
        return dict(policy_logits=x[..., :A], baseline=x[..., A]), core_state


class Remembering(Sound):
    def forward(self, inputs, core_state):
        x, state = self.core(self.linear(inputs["frame"]), core_state[0])
        return dict(policy_logits=x[..., :A], baseline=x[..., A]), (state,)


class RememberingLSTM(monobeast.Net):
    """Has forgotten to take the episodes' ends from its inputs."""

    def forward(self, inputs, core_state=()):
        return super().forward(inputs | {"done": torch.zeros_like(inputs["done"])}, core_state)


def test_a_core_state_that_ignores_done_is_refused():
    text = "^Your network does not restart its core state where `done` is true; pass .*fork.md"
    with pytest.raises(UserError, match=text):
        made(Remembering)
    for precision in ("fp32", "bf16"):
        flags = make_flags("--use_lstm", "--precision", precision)
        with pytest.raises(UserError, match=text):
            models.make_net(RememberingLSTM, SPEC, flags)
        models.make_net(monobeast.Net, SPEC, flags)
        models.make_net(OnesNet, SPEC, flags)
        models.make_net(RestartingItself, SPEC, make_flags("--precision", precision))


class HeadsInAutocast(Sound):
    def forward(self, inputs, core_state):
        x = self.linear(inputs["frame"])
        return dict(policy_logits=x[..., :A].float(), baseline=x[..., A]), ()

    def initial_state(self, batch_size):
        return ()


def test_heads_in_the_precision_of_autocast_are_refused():
    made(HeadsInAutocast)  # in float32
    with pytest.raises(UserError) as refused:
        models.make_net(HeadsInAutocast, SPEC, make_flags("--precision", "bf16"))
    assert str(refused.value) == (
        "Your network returned `baseline` in bfloat16; expected float32: compute the heads inside "
        "torch.autocast(..., enabled=False), as monobeast.Net does"
    )


def test_a_core_state_in_bfloat16_is_taken():
    """It is float32 in rollouts, like that of an LSTM on a CPU that has instructions for it."""

    def result(outputs, state):
        return {k: v.float() for k, v in outputs.items()}, (state[0].bfloat16(),)

    models.make_net(with_result(result), SPEC, make_flags("--precision", "bf16"))


def test_the_check_leaves_no_casts_of_weights_behind():
    """A cast in autocast's cache would be taken after the weights have changed."""
    flags = make_flags("--precision", "bf16")
    net, row = models.make_net(monobeast.Net, SPEC, flags), {"reward": torch.zeros(1, 1)}
    row |= {"frame": torch.ones(1, 1, 4), "last_action": torch.zeros(1, 1, dtype=torch.int64)}
    with torch.no_grad():
        for weight in net.parameters():
            weight.zero_()
        with models.autocast(net, flags.precision, torch.device("cpu")):
            assert net(row)[0]["baseline"].eq(0).all()


class Counting(Sound):
    """Has a buffer and a layer without sizes, and draws random numbers."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.linear = nn.LazyLinear(A + 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs, core_state):
        self.calls += 1 + torch.rand(())
        return super().forward(inputs, core_state)


def test_the_check_leaves_no_trace():
    torch.manual_seed(0)
    net = made(Counting)
    after = torch.rand(())
    assert net.calls == 0 and net.linear.in_features == 4
    torch.manual_seed(0)
    Counting(SPEC, make_flags())
    assert torch.rand(()) == after


@pytest.mark.parametrize(
    "observations, actions",
    [
        ({"a/b": ((2, 3, 3), "uint8"), "c": ((), "int64")}, Actions("multi_discrete", (2, 3))),
        ({"frame": ((3, 40, 40), "bool")}, Actions("box", (2,))),
        ({"frame": ((3,), "float64"), "action_mask": ((2,), "int8")}, Actions("discrete", (2,))),
    ],
)
@pytest.mark.parametrize("lstm", [[], ["--use_lstm"]])
def test_every_kind_of_spec_can_be_checked(observations, actions, lstm):
    models.make_net(monobeast.Net, Spec("some", 1, observations, actions), make_flags(*lstm))


def fails(*_):
    raise KeyError("frame")


@pytest.mark.parametrize("part", ["__init__", "initial_state", "forward"])
def test_an_error_of_the_network_is_one_sentence_with_its_line(part):
    with pytest.raises(UserError) as refused:
        made(type("Broken", (Sound,), {part: fails}))
    place = f"{__file__}:{fails.__code__.co_firstlineno + 1}"
    said = f"Your network raised KeyError: 'frame' in {part} ({place})"
    inputs = (
        "; its inputs are frame float32[3, 2, 4], last_action int64[3, 2], and [3, 2] each: "
        "reward, done, terminated, truncated, episode_over, episode_step, episode_return"
    )
    assert str(refused.value) == said + inputs * (part == "forward")
    assert type(refused.value.__cause__) is KeyError


class Narrow(Sound):
    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.core = nn.GRU(A, A + 1)


def test_an_error_inside_this_package_or_torch_names_the_networks_own_line():
    """Here the GRU gets inputs of a wrong width, in models.unroll."""
    with pytest.raises(UserError, match=rf"RuntimeError: .* in forward \({__file__}:\d+\); its"):
        made(Narrow)


def test_a_network_that_ends_the_program_is_told_so():
    def leave(*_):
        raise SystemExit(3)

    with pytest.raises(UserError, match="^Your network raised SystemExit: 3 in forward"):
        made(type("Broken", (Sound,), {"forward": leave}))


def test_a_users_error_of_the_network_stays_as_it_is():
    def refuse(*_):
        raise UserError("Not for this game")

    with pytest.raises(UserError, match="^Not for this game$"):
        made(type("Broken", (Sound,), {"__init__": refuse}))


def test_a_network_without_initial_state_is_refused():
    net_class = type(
        "Stateless", (nn.Module,), {"__init__": lambda net, *_: nn.Module.__init__(net)}
    )
    with pytest.raises(UserError, match="^Your network has no method initial_state; expected one"):
        made(net_class)


class Wide(Sound):
    def result(self, outputs, core_state):
        return {k: torch.cat([v, v], dim=-1) for k, v in outputs.items()}, core_state


def test_a_run_is_refused_before_it_writes_anything(tmp_path):
    flags = ["--env", "CartPole-v1", "--net", f"{__name__}.Wide"]
    assert "Your network returned policy_logits" in refusal(tmp_path, *flags)
    assert not list(tmp_path.iterdir())


def test_logits_that_become_nan_later_are_named():
    net = made(with_result(lambda outputs, state: (outputs, state)))
    row = {"frame": torch.full((1, 2, 4), float("nan")), "done": torch.zeros(1, 2).bool()}
    text = "^Your network returned NaN or infinity in policy_logits for frame from nan to nan; exp"
    with pytest.raises(UserError, match=text):
        models.act_on(net, row, models.initial_state(net, 2))


def test_large_numbers_of_columns_are_no_observations():
    """R2D2's batches have the number of each sequence, for example."""
    rows = {"frame": torch.zeros(3, 2, 4), "column/serial": torch.full((1, 2), 2_000_000)}
    said = why_not_finite(made(Sound), rows, ["policy_logits"])
    assert "column/" not in said and "policy_logits for frame from 0 to 0; expected" in said


class CountingNet(Sound):
    """Puts a new tensor where its buffer was, in each call."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs, core_state):
        self.mean = 0.9 * self.mean + 0.1 * inputs["frame"].mean((0, 1))
        rows = inputs | {"frame": inputs["frame"] - self.mean}
        return super().forward(rows, core_state)


def test_a_network_that_replaces_its_buffers_is_taken_and_keeps_them():
    assert not made(CountingNet).mean.any()
