# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A network that breaks its contract is refused before a run starts, with one sentence."""

import dataclasses
import math
from unittest import mock

import pytest
import torch
from torch import nn

import monobeast
from libtorchbeast import models
from libtorchbeast.flags import UserError
from libtorchbeast.net_check import in_words, why_not_finite
from libtorchbeast.spec import Actions, Spec
from tests.support.actors import A, OnesNet, make_flags
from tests.support.monobeast import IN_ORDER, refusal

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


def sound_but(**methods):
    """A network that keeps the contract but for these methods."""
    return type("Broken", (Sound,), methods)


def with_outputs(**changes):
    """A network that returns something else as some of its outputs: functions of all of them."""
    changed = lambda outputs: outputs | {name: f(outputs) for name, f in changes.items()}
    return sound_but(result=lambda net, outputs, state: (changed(outputs), state))


def with_module(module):
    def init(net, spec, flags):
        Sound.__init__(net, spec, flags)
        net.part = module()

    return sound_but(__init__=init)


def given(change, net_class=monobeast.Net):
    """A network that gets what `change(inputs)` returns instead of these inputs."""

    def forward(net, inputs, core_state=()):
        return net_class.forward(net, inputs | change(inputs), core_state)

    return type("Given", (net_class,), {"forward": forward})


TAKEN = {
    "observations from 1 on are looked up":
        given(lambda inputs: {"frame": torch.ones(9)[inputs["frame"].long() - 1]}, Sound),
    "observations that are not all 0 divide":
        given(lambda inputs: {"frame": inputs["frame"] / inputs["frame"].mean()}, Sound),
    "its parts do not vary":
        with_module(lambda: nn.Sequential(nn.LayerNorm(3), nn.Dropout(0.0), nn.LSTM(3, 3))),
    "it chooses its own actions":
        with_outputs(action=lambda outputs: torch.randint(A, outputs["baseline"].shape)),
    "random numbers change no head":
        with_outputs(noise=lambda outputs: torch.rand_like(outputs["baseline"])),
    "its state is in bfloat16":
        sound_but(result=lambda net, outputs, state: (outputs, (state[0].bfloat16(),))),
}  # fmt: skip


@pytest.mark.parametrize("why", TAKEN)
def test_a_sound_network_is_taken_as_it_is(why):
    """Rollouts keep a state in float32."""
    assert type(made(TAKEN[why])) is TAKEN[why]


def returned(said, result):
    return f"returned {said}", sound_but(result=lambda net, *returned: result(*returned))


def gives(said, initial_state):
    expected = "expected a tuple of float tensors [layers, 2, H], or"
    made_so = sound_but(initial_state=lambda net, B: initial_state(B))
    return f"gives {said} as initial_state(2); {expected}", made_so


def output(name, x, expected):
    said = f"returned {name} {in_words(x)} for inputs [3, 2, ...]; expected {expected}"
    return said, with_outputs(**{name: lambda outputs: x})


def squeezed(name, seen):
    """Actors call the network with one row, and a test mode may have one environment."""
    said = f"returned {name} {seen} for inputs [1, 1, ...]; expected "
    return said, with_outputs(**{name: lambda outputs: outputs[name].squeeze()})


STATELESS = type("Stateless", (nn.Module,), {"__init__": lambda net, *_: nn.Module.__init__(net)})
REFUSED = [  # what is said of a network, and the network
    output("policy_logits", torch.zeros(3, 2, 9), f"float32[3, 2, {A}]"),
    output("policy_logits", torch.zeros(2, 3, A), f"float32[3, 2, {A}]"),
    output("baseline", torch.zeros(3, 2).double(), "float32[3, 2]"),
    output("action", torch.zeros(3, 2), "int64[3, 2]"),
    output("loss", torch.tensor(0.5), "a tensor [3, 2, ...]"),
    squeezed("baseline", "float32[]"),
    squeezed("policy_logits", f"float32[{A}]"),
    ("returned `baseline` in bfloat16; expected float32: compute the heads inside torch.autocast(",
     with_outputs(baseline=lambda outputs: outputs["baseline"].bfloat16())),
    ("returned NaN or infinity in baseline for observations of zeros and of ones; ",
     with_outputs(baseline=lambda outputs: outputs["baseline"] / 0)),
    *((f"returned outputs ['{name}']; expected names that rows do not have",
       with_outputs(**{name: lambda outputs: outputs["baseline"]}))
      for name in ("reward", "past", "policy_version", "column/x", "core_state/0", "game/x")),
    returned("a dict; expected a pair: a dict of", lambda outputs, state: outputs),
    returned("(a dict, (float32[1, 2, 4]), a int);", lambda *pair: (*pair, 0)),
    returned("(float32[1, 2, 4], (float32[1, 2, 4]))", lambda outputs, state: (state[0], state)),
    returned("the outputs ['policy_logits']; expected ['baseline'] among",
             lambda outputs, state: (dict(policy_logits=outputs["policy_logits"]), state)),
    returned("the core state (float32[1, 2]); expected (float32[1, 2, 4])",
             lambda outputs, state: (outputs, (state[0][:, :, 0],))),
    returned("the core state float32[1, 2, 4]; expected (float32[1, 2, 4])",
             lambda outputs, state: (outputs, state[0])),
    gives("float32[1, 2, 4]", lambda B: torch.zeros(1, B, 4)),
    gives("(int64[1, 2, 4])", lambda B: (torch.zeros(1, B, 4, dtype=torch.int64),)),
    gives("(float32[2, 1, 4])", lambda B: (torch.zeros(B, 1, 4),)),
    gives("a NoneType", lambda B: None),
    ("has no method initial_state; expected one", STATELESS),
    ("raised SystemExit: 3 in forw", sound_but(forward=mock.Mock(side_effect=SystemExit(3)))),
]  # fmt: skip
MODULES = {
    "BatchNorm2d": lambda: nn.BatchNorm2d(3),
    "Dropout": lambda: nn.Sequential(nn.Dropout(0.1)),
    "LSTM": lambda: nn.LSTM(3, 3, 2, dropout=0.1),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2, dropout=0.1),
}


def refused(net_class, spec=SPEC):
    with pytest.raises(UserError) as error:
        made(net_class, spec)
    return str(error.value)


@pytest.mark.parametrize("said, net_class", REFUSED, ids=[said for said, _ in REFUSED])
def test_a_network_that_breaks_the_contract_is_refused(said, net_class):
    assert refused(net_class).startswith(f"Your network {said}")


def test_a_network_may_refuse_what_it_cannot_play():
    refusal = mock.Mock(side_effect=UserError("Not for this game"))
    assert refused(sound_but(__init__=refusal)) == "Not for this game"


def test_an_output_with_the_name_of_an_observation_for_the_loss_is_refused():
    """The loss would find one of the two under the name. The network does not get it."""
    spec = dataclasses.replace(SPEC, observations={**SPEC.observations, "loss/x": ((), "float32")})
    same = with_outputs(**{"loss/x": lambda outputs: outputs["baseline"]})
    made(same)
    assert "returned outputs ['loss/x']; expected names that obs" in refused(same, spec)


@pytest.mark.parametrize("kind", MODULES)
def test_parts_that_vary_from_call_to_call_are_refused_in_training_mode(kind):
    with pytest.raises(UserError, match=rf"^Your network has {kind} in training mode \(part"):
        made(with_module(MODULES[kind]))
    made(with_module(lambda: MODULES[kind]().eval()))  # a frozen part does not vary


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
    said = "two different policy_logits for the same inputs, in training mode, .* no F.dropout"
    with pytest.raises(UserError, match=f"^Your network returned {said}"):
        models.make_net(Dropping, spec, flags)


class RestartingItself(Sound):
    """Restarts without models.unroll, from an initial state that it learns."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.start = nn.Parameter(torch.rand(1, 1, A + 1))

    def initial_state(self, batch_size):
        return (self.start.expand(-1, batch_size, -1),)

    def forward(self, inputs, core_state):
        (state,), outputs = core_state, []
        rows = self.linear(inputs["frame"])
        for row, done in zip(rows, inputs["done"].float()[..., None], strict=True):
            output, state = self.core(row[None], state + done * (self.start - state))  # rounds
            outputs.append(output)
        x = torch.cat(outputs)
        return dict(policy_logits=x[..., :A], baseline=x[..., A]), (state,)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_core_state_that_ignores_done_is_refused(precision):
    text = "^Your network does not restart its core state where `done` is true; pass .*fork.md"
    flags = make_flags("--use_lstm", "--precision", precision)
    remembering = given(lambda inputs: {"done": torch.zeros_like(inputs["done"])})
    with pytest.raises(UserError, match=text):
        models.make_net(remembering, SPEC, flags)
    for net_class in (monobeast.Net, OnesNet, RestartingItself):
        models.make_net(net_class, SPEC, flags)


def mixes_times(inputs):
    return {"frame": inputs["frame"] + inputs["frame"].cumsum(0)}


def restarts_before_the_first_row_alone(inputs):
    return {"done": inputs["done"] & (torch.arange(len(inputs["done"])) == 0)[:, None]}


def centres_times(inputs):
    return {"frame": inputs["frame"] - inputs["frame"].mean(0, keepdim=True)}


def centres_columns(inputs):
    return {"frame": inputs["frame"] - inputs["frame"].mean(1, keepdim=True)}


def sees_the_row_before(inputs):
    return {"frame": inputs["frame"] + inputs["frame"].roll(1, 0)}


CHANGES = [mixes_times, centres_times, centres_columns, sees_the_row_before]


@pytest.mark.parametrize("change", [*CHANGES, restarts_before_the_first_row_alone])
def test_a_network_that_treats_many_rows_otherwise_than_each_is_refused(change):
    text = "^Your network returned other policy_logits for 3 rows at once than for one after"
    for seed in range(10):  # a policy's first logits may be very small
        torch.manual_seed(seed)
        with pytest.raises(UserError, match=text):
            models.make_net(given(change), SPEC, make_flags("--use_lstm"))
        if change in CHANGES:
            with pytest.raises(UserError, match=text):
                models.make_net(given(change, models.VectorNet), SPEC, make_flags())
        models.make_net(models.VectorNet, SPEC, make_flags())
        models.make_net(monobeast.Net, SPEC, make_flags("--use_lstm"))


class ForgettingState(monobeast.Net):
    def forward(self, inputs, core_state=()):
        for x in core_state:
            x.zero_()
        return super().forward(inputs, core_state)


class ForgettingLater(ForgettingState):
    def forward(self, inputs, core_state=()):
        later = inputs["done"][1:].any()
        return super().forward(inputs, core_state if later else tuple(x + 0 for x in core_state))


class BuiltInInference(monobeast.Net):
    @torch.inference_mode()
    def initial_state(self, batch_size):
        return super().initial_state(batch_size)


@pytest.mark.parametrize(
    "net_class, name",
    [
        # These two change neither zeros nor ones.
        (given(lambda inputs: {"reward": inputs["reward"].clamp_(-1, 1)}), "'reward'"),
        (given(lambda inputs: {"frame": inputs["frame"].clamp_(-1, 1)}), "'frame'"),
        (ForgettingState, "0, 1"),
        (ForgettingLater, "0, 1"),
    ],
)
def test_a_network_that_changes_its_inputs_is_refused(net_class, name):
    with pytest.raises(UserError, match=rf"^Your network changed its inputs \[{name}\] in place"):
        models.make_net(net_class, SPEC, make_flags("--use_lstm"))
    models.make_net(BuiltInInference, SPEC, make_flags("--use_lstm"))


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


def test_the_check_leaves_no_trace():
    """In a buffer, in random numbers, or in a layer without sizes, which gets them."""

    class Counting(Sound):
        def __init__(self, spec, flags):
            super().__init__(spec, flags)
            self.linear = nn.LazyLinear(A + 1)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, inputs, core_state):
            self.calls += 1 + torch.rand(())
            self.mean = 0.9 * self.mean + 0.1 * inputs["frame"].mean((0, 1))  # a new tensor
            return super().forward(inputs, core_state)

    torch.manual_seed(0)
    net = made(Counting)
    after = torch.rand(())
    assert net.calls == 0 and not net.mean.any() and net.linear.in_features == 4
    torch.manual_seed(0)
    Counting(SPEC, make_flags())
    assert torch.rand(()) == after


@pytest.mark.parametrize("part", ["__init__", "initial_state", "forward"])
def test_an_error_of_the_network_is_one_sentence_with_its_line(part):
    def fails(*_):
        raise KeyError("frame")

    with pytest.raises(UserError) as refused:
        made(sound_but(**{part: fails}))
    place = f"{__file__}:{fails.__code__.co_firstlineno + 1}"
    said = f"Your network raised KeyError: 'frame' in {part} ({place})"
    inputs = (
        "; its inputs are frame float32[3, 2, 4], last_action int64[3, 2], and [3, 2] each: "
        "reward, done, terminated, truncated, episode_over, episode_step, episode_return"
    )
    assert str(refused.value) == said + inputs * (part == "forward")
    assert type(refused.value.__cause__) is KeyError


def test_a_run_is_refused_before_it_writes_anything(tmp_path):
    message = refusal(tmp_path, *IN_ORDER, "--net", f"{__name__}.Dropping")
    assert "Your network returned two different policy_logits" in message
    assert not list(tmp_path.iterdir())


def test_logits_that_become_nan_later_are_named():
    """Large numbers of columns, such as R2D2's of each sequence, are no observations."""
    net = made(Sound)
    for number, text in (
        (math.nan, "Your network returned NaN or infinity in policy_logits for frame from nan to"),
        (-math.inf, "Observation 'frame' has numbers as large as inf, with"),
    ):
        row = {"frame": torch.full((1, 2, 4), number), "done": torch.zeros(1, 2).bool()}
        with pytest.raises(UserError, match=f"^{text}"):
            models.act_on(net, row, models.initial_state(net, 2))
    rows = {"frame": torch.zeros(3, 2, 4), "column/serial": torch.full((1, 2), 2_000_000)}
    said = why_not_finite(net, rows, ["policy_logits"])
    assert "column/" not in said and "policy_logits for frame from 0 to 0; expected" in said
