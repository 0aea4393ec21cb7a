# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Groups of parameters: each with its rate and its clipping, and what is in none of them."""

import pytest
import torch
from torch import nn

import monobeast
from libtorchbeast.accelerator.devices import CPU
from libtorchbeast.flags import UserError
from libtorchbeast.models import add_for_loss, make_net
from libtorchbeast.optimizer import NAMED_AFTER, Optimizer
from tests.support.actors import make_actor, make_flags


class Grouped(monobeast.Net):
    """A network with an extra part for the learner, which has a rate, a clipping and a decay (that
    of AdamW) of its own."""

    def for_loss(self, spec, flags):
        return {"guess": nn.Linear(3, 1)}

    def parameter_groups(self, flags):
        own = dict(params=self.guess.parameters(), lr=0.1, grad_norm_clipping=2.0)
        decay = dict(weight_decay=0.5, decoupled_weight_decay=True)
        return [dict(params=self.parameters()), own | decay]


def grouped(net_class=Grouped):
    flags = make_flags("--learning_rate", "0.01", "--grad_norm_clipping", "0.5")
    spec = make_actor(monobeast.Net).env.spec
    net = make_net(net_class, spec, flags)
    add_for_loss(net, spec, flags)
    return net, flags


def optimizer_of(net, flags):
    one = Optimizer(net, flags, CPU, is_recorded=False)
    one.make_graphs(lambda: lambda: None)
    return one


def norm_of(tensors):
    return torch.cat([x.flatten() for x in tensors]).norm()


def test_each_group_is_clipped_and_moved_by_itself():
    net, flags = grouped()
    one = optimizer_of(net, flags)
    gradients = [torch.full_like(p, 10.0) for p in one.parameters]
    norm, clipped = one.clip([g.clone() for g in gradients])
    torch.testing.assert_close(norm, norm_of(gradients))
    sizes = len(list(net.parameters()))
    for part, limit in ((clipped[:sizes], 0.5), (clipped[sizes:], 2.0)):
        assert norm_of(part).item() == pytest.approx(limit, 1e-4)
    before = [p.detach().clone() for p in one.parameters]
    assert one.learning_rates(0.25) == pytest.approx([0.0075, 0.075])
    one.step(clipped, one.learning_rates(0.25))
    for number, (old, p) in enumerate(zip(before, one.parameters, strict=True)):
        rate, decay = (0.0075, 0.0) if number < sizes else (0.075, 0.5)
        # Adam's first step has the size of its rate
        torch.testing.assert_close(old - p, rate + rate * decay * old, rtol=0.05, atol=0.0)
    norm, _ = one.clip([*(torch.ones_like(g) for g in gradients[:sizes]), None, None])
    torch.testing.assert_close(norm, norm_of([torch.ones_like(g) for g in gradients[:sizes]]))


THREE = nn.Parameter(torch.ones(3))
GROUPS = {  # what `parameter_groups` returns, of the network and its right groups, and what is said
    "in none": (lambda net, _: [dict(params=net.parameters())],
                "The parameter guess.weight of .*Grouped is in 0 of its parameter_groups"),
    "twice": (lambda net, right: [*right, dict(params=net.parameters())],
              "The parameter trunk.1.weight of .*Grouped is in 2 of its parameter_groups"),
    "misspelt": (lambda _, right: [right[0], right[1] | {"learning_rate": 1.0}],
                 r"parameter_groups: expected params, lr, .* seen \['learning_rate'\]"),
    "None": (lambda net, _: None, "parameter_groups: expected a list of dicts with params"),
    "a dict": (lambda net, _: dict(params=[]), "expected a list of dicts with params"),
    "tensors": (lambda net, _: [THREE], "expected a list of dicts with params"),
    "no params": (lambda net, _: [{}], "expected a list of dicts with params"),
    "lr": (lambda _, right: [right[0], right[1] | {"lr": -1.0}],
           "parameter_groups: expected lr to be at least 0, seen -1.0"),
    "clipping": (lambda _, right: [right[0], right[1] | {"grad_norm_clipping": "1"}],
                 "expected grad_norm_clipping to be at least 0, seen '1'"),
    "others": (lambda _, right: [*right, dict(params=[THREE])],
               "expected parameters of the network, seen 1 other tensors"),
}  # fmt: skip


@pytest.mark.parametrize("what", GROUPS)
def test_wrong_groups_of_parameters_are_named(what):
    groups, said = GROUPS[what]
    net, flags = grouped()
    right = [one | {"params": list(one["params"])} for one in net.parameter_groups(flags)]
    net.parameter_groups = lambda flags: groups(net, right)
    with pytest.raises(UserError, match=said):
        optimizer_of(net, flags)


def test_neither_what_is_frozen_nor_what_the_loss_needs_is_published():
    net, flags = grouped()
    assert optimizer_of(net, flags).published().keys() == net.state_dict().keys()
    assert not any("guess" in name for name in net.state_dict())
    net, flags = grouped(Frozen)
    net.parameter_groups = None
    one = optimizer_of(net, flags)
    trained = {id(p) for p in one.parameters}
    assert not trained & {id(p) for p in net.fc.parameters()}
    assert one.published().keys() == net.state_dict().keys() - {"fc.0.weight", "fc.0.bias"}
    assert {id(p) for p in net.guess.parameters()} <= trained


class Moved(Grouped):
    """The same parameters: the policy and the baseline are made in the other order."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.policy = self._modules.pop("policy")


class Swapped(Grouped):
    def parameter_groups(self, flags):
        return super().parameter_groups(flags)[::-1]


class Frozen(Grouped):
    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        self.fc.requires_grad_(False)

    def parameter_groups(self, flags):
        trained = [p for p in self.parameters() if p.requires_grad]
        return [dict(params=trained), super().parameter_groups(flags)[1]]


def stepped():
    """The state of an optimizer after a step whose gradients are the parameters' numbers."""
    net, flags = grouped()
    one = optimizer_of(net, flags)
    numbers = {name: float(i) for i, name in enumerate(one._names)}
    named = zip(numbers, one.parameters, strict=True)
    one.step([torch.full_like(p, numbers[name]) for name, p in named], [0, 0])
    return one.state_dict(0.0), numbers


def test_a_parameter_gets_its_own_averages_where_layers_have_changed_places():
    state, numbers = stepped()
    one = optimizer_of(*grouped(Moved))
    assert one._names != list(numbers) and sorted(one._names) == sorted(numbers)
    one.load_state_dict(state)
    for name, p in zip(one._names, one.parameters, strict=True):
        average = one._own.state[p]["exp_avg"]
        torch.testing.assert_close(average, torch.full_like(p, 0.1 * numbers[name]))


class Plain(monobeast.Net):
    """Without for_vectors, which a subclass does not inherit."""


SIZES = {Swapped: r"\[2, 8\]", Frozen: r"\[6, 2\]", Plain: r"\[8\]"}


@pytest.mark.parametrize("other, sizes", SIZES.items())
def test_averages_of_other_groups_are_refused(other, sizes):
    said = rf"checkpoint has \[8, 2\] parameters in its parameter groups, the network now {sizes}"
    with pytest.raises(UserError, match=said):
        optimizer_of(*grouped(other)).load_state_dict(stepped()[0])


def test_groups_of_equal_sizes_in_another_order_are_refused():
    def halves(first, second):
        net, flags = grouped(monobeast.Net)
        parts = [getattr(net, name) for name in (first, second)]
        net.requires_grad_(False)
        groups = [dict(params=list(part.requires_grad_().parameters())) for part in parts]
        net.parameter_groups = lambda flags: groups
        return optimizer_of(net, flags)

    state = halves("policy", "baseline").state_dict(0.0)
    halves("policy", "baseline").load_state_dict(state)
    with pytest.raises(UserError, match=r"\(the difference: their order\)"):
        halves("baseline", "policy").load_state_dict(state)


def test_averages_of_version_0_7_must_have_the_shapes_of_the_parameters():
    """It saved no names."""
    state, _ = stepped()
    del state["optimizer_groups"]
    optimizer_of(*grouped()).load_state_dict(state)
    with pytest.raises(UserError, match=r"averages of a parameter \[.*\], the network now \["):
        optimizer_of(*grouped(Moved)).load_state_dict(state)


@pytest.mark.parametrize("made, said", [
    (lambda net: None, "NoneType.* in for_loss"),
    (lambda net: {"x": nn.Parameter(torch.ones(()))}, "is not a Module subclass in for_loss"),
    (lambda net: {"a.b": nn.Linear(1, 1)}, "in for_loss"),
    (lambda net: {"policy": nn.Linear(1, 1)}, "expected new names, seen policy"),
    (lambda net: {"own": nn.Sequential(net.policy)}, "seen own, which has parameters of the"),
])  # fmt: skip
def test_what_for_loss_must_not_return_is_named(made, said):
    net, flags = grouped(monobeast.Net)
    net.for_loss = lambda spec, flags: made(net)
    with pytest.raises(UserError, match=said) as error:
        add_for_loss(net, None, flags)
    assert "\n" not in str(error.value)


def test_a_parameter_without_a_gradient_is_named_once(caplog):
    one = optimizer_of(*grouped())
    for _ in range(2 * NAMED_AFTER):
        one.take([*(torch.zeros_like(p) for p in one.parameters[:-1]), None])
    text = "Parameters without a gradient since this start: guess.bias"
    assert caplog.text.count(text) == caplog.text.count("without a gradient") == 1
