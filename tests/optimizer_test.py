# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Groups of parameters: each with its rate and its clipping, and what is in none of them."""

import copy

import pytest
import torch
from torch import nn

import monobeast
from libtorchbeast.accelerator.devices import CPU
from libtorchbeast.flags import UserError
from libtorchbeast.models import add_for_loss, make_net
from libtorchbeast.optimizer import NAMED_AFTER, Optimizer
from tests.support.actors import Counting, make_actor, make_flags, make_learner, make_rollouts

FLAGS = ("--learning_rate", "0.01", "--grad_norm_clipping", "0.5")
ONCE = ("--passes", "1", "--minibatches", "1", "--ppo_clip", "0")


class Grouped(monobeast.Net):
    """A network with an extra part for the learner, which has a rate and a clipping of its own."""

    def for_loss(self, spec, flags):
        return {"guess": nn.Linear(3, 1)}

    def parameter_groups(self, flags):
        own = dict(params=self.guess.parameters(), lr=0.1, grad_norm_clipping=2.0)
        return [dict(params=self.parameters()), own]


def grouped(net_class=Grouped, *argv):
    flags = make_flags(*FLAGS, *ONCE, *argv)
    spec = make_actor(monobeast.Net).env.spec
    net = make_net(net_class, spec, flags)
    add_for_loss(net, spec, flags)
    return net, flags


def optimizer_of(net, flags):
    one = Optimizer(net, flags, CPU, is_recorded=False)
    one.make_graphs(lambda: lambda: None)
    return one


def test_each_group_is_clipped_and_moved_by_itself():
    net, flags = grouped()
    one = optimizer_of(net, flags)
    gradients = [torch.full_like(p, 10.0) for p in one.parameters]
    norm, clipped = one.clip([g.clone() for g in gradients])
    whole = torch.cat([g.flatten() for g in gradients]).norm()
    torch.testing.assert_close(norm, whole)
    sizes = len(list(net.parameters()))
    for part, limit in ((clipped[:sizes], 0.5), (clipped[sizes:], 2.0)):
        assert torch.cat([g.flatten() for g in part]).norm().item() == pytest.approx(limit, 1e-4)
    before = [p.detach().clone() for p in one.parameters]
    assert one.learning_rates(0.25) == pytest.approx([0.0075, 0.075])
    one.step(clipped, one.learning_rates(0.25))
    for number, (old, p) in enumerate(zip(before, one.parameters, strict=True)):
        rate = 0.0075 if number < sizes else 0.075  # Adam's first step has the size of its rate
        torch.testing.assert_close(old - p, torch.full_like(p, rate), rtol=0.05, atol=0.0)


@pytest.mark.parametrize("seen, groups", [
    (0, lambda net: [dict(params=net.parameters())]),
    (2, lambda net: [dict(params=[*net.parameters(), *net.guess.parameters()])] * 2),
])  # fmt: skip
def test_a_parameter_that_is_not_in_exactly_one_group_is_refused(seen, groups):
    class Wrong(Grouped):
        def parameter_groups(self, flags):
            return groups(self)

    name = "guess.weight" if not seen else "trunk.1.weight"
    said = f"The parameter {name} of .*Wrong is in {seen} of its parameter_groups; expected it in "
    with pytest.raises(UserError, match=said):
        optimizer_of(*grouped(Wrong))


def test_a_misspelt_key_of_a_group_is_refused():
    class Wrong(Grouped):
        def parameter_groups(self, flags):
            first, second = super().parameter_groups(flags)
            return [first, second | {"learning_rate": 1.0}]

    said = r"Wrong.parameter_groups: expected params, lr, .* seen \['learning_rate'\]"
    with pytest.raises(UserError, match=said):
        optimizer_of(*grouped(Wrong))


def test_what_is_frozen_is_neither_trained_nor_published():
    class Frozen(Grouped):
        def __init__(self, spec, flags):
            super().__init__(spec, flags)
            self.fc.requires_grad_(False)

    class Ungrouped(Frozen):
        parameter_groups = None

    net, flags = grouped(Ungrouped)
    one = optimizer_of(net, flags)
    frozen = {id(p) for p in net.fc.parameters()}
    assert frozen and not frozen & {id(p) for p in one.parameters}
    assert one.published().keys() == net.state_dict().keys() - {"fc.0.weight", "fc.0.bias"}
    assert {id(p) for p in net.guess.parameters()} <= {id(p) for p in one.parameters}


def test_a_resume_with_other_groups_is_one_sentence():
    net, flags = grouped()
    state = optimizer_of(net, flags).state_dict(0.0)

    class Plain(monobeast.Net):
        """Without for_vectors, which a subclass does not inherit."""

    plain, _ = grouped(Plain)
    with pytest.raises(UserError, match=r"The checkpoint has \[8, 2\] parameters in its .*\[8\]"):
        optimizer_of(plain, flags).load_state_dict(state)


class Moved(Grouped):
    """The same parameters: the policy and the baseline are made in the other order."""

    def _initialize(self):
        self.policy = self._modules.pop("policy")
        super()._initialize()


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


@pytest.mark.parametrize("other", [Swapped, Frozen])
def test_averages_of_other_groups_are_refused(other):
    with pytest.raises(UserError, match="The checkpoint has .* parameters in its parameter groups"):
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


@pytest.mark.parametrize("groups", [None, dict(params=[]), [nn.Parameter(torch.ones(1))], [{}]])
def test_what_is_no_list_of_groups_is_named(groups):
    net, flags = grouped()
    net.parameter_groups = lambda flags: groups
    with pytest.raises(UserError, match="parameter_groups: expected a list of dicts with params"):
        optimizer_of(net, flags)


@pytest.mark.parametrize("wrong, said", [
    (dict(lr=-1.0), "lr to be at least 0, seen -1.0"),
    (dict(grad_norm_clipping="1"), "grad_norm_clipping to be at least 0, seen '1'"),
    (dict(params=[nn.Parameter(torch.ones(1))]), "parameters of the network, seen 1 other tensors"),
])  # fmt: skip
def test_what_a_group_must_not_hold_is_named(wrong, said):
    net, flags = grouped()
    first, second = net.parameter_groups(flags)
    net.parameter_groups = lambda flags: [first, second | wrong]
    with pytest.raises(UserError, match=f"parameter_groups: expected {said}"):
        optimizer_of(net, flags)


def test_a_group_without_a_gradient_has_the_norm_0():
    net, flags = grouped()
    one = optimizer_of(net, flags)
    gradients = [torch.ones_like(p) for p in one.parameters[:-2]]
    norm, _ = one.clip([*(g.clone() for g in gradients), None, None])
    torch.testing.assert_close(norm, torch.cat([g.flatten() for g in gradients]).norm())


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
    net, flags = grouped()
    one = optimizer_of(net, flags)
    for _ in range(2 * NAMED_AFTER):
        gradients = [torch.zeros_like(p) for p in one.parameters]
        one.take([*gradients[:-1], None])
    text = "Parameters without a gradient since the run began: guess.bias"
    assert caplog.text.count(text) == caplog.text.count("without a gradient") == 1


def guessing_loss(batch):
    guess = batch.net.guess(batch.next["frame"]).squeeze(-1)
    found = monobeast.loss(batch)
    return found | dict(
        total_loss=found["total_loss"] + batch.mean((guess - batch.reward) ** 2), guess=guess
    )


@pytest.mark.parametrize("passes", [(), ("--passes", "2", "--minibatches", "2")])
def test_what_the_loss_needs_is_trained_saved_and_kept_from_the_actors(passes):
    actor = make_actor(monobeast.Net, *FLAGS, create_env=Counting)
    net, flags = grouped(Grouped, *passes)
    one = make_learner(net, flags)
    one.updater._loss = guessing_loss
    before, published = copy.deepcopy(net.guess.state_dict()), []
    for rollout in make_rollouts(actor, 2):
        numbers = one.update(rollout, lambda state, version: published.append(dict(state)))
    assert "guess" in numbers
    assert not torch.equal(before["weight"], net.guess.weight)
    assert not any("guess" in name for state in published for name in state)
    state = one.state_dict()
    assert state["loss"].keys() == {"guess.weight", "guess.bias"}
    other = make_learner(grouped(Grouped, *passes)[0], flags)
    other.load_state_dict(state)
    assert torch.equal(other.net.guess.weight, net.guess.weight)
    with pytest.raises(UserError, match="The checkpoint has other parts for the loss than"):
        other.load_state_dict(state | {"loss": {}})
