# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Several agents in one environment, in groups. Each group has a network of its own.

The environment is an ordinary one, whose observation has these parts for a group `taggers` of A
agents; their order in the observation is the order of the groups:

    taggers/reward    [A] float32: the rewards of its agents for the last step, 0 after a reset
    taggers/NAME      [A, ...]: the part NAME of what each of them observes

It may also have `done`, `terminated`, `truncated` or `episode_return` of each agent, [A]. Without
them, agents have those of the environment. An agent that has left before the others has `done`
in all further rows of the game, so that they are not real for the loss.

Its action is a MultiDiscrete or a Box, with the actions of all agents of the first group, then of
the second, and so on; each agent has equally many entries. Its reward is only logged. A group may
have a part `action_mask`, a mask for each agent. Of a network's outputs only the heads are used.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from libtorchbeast import models
from libtorchbeast.distributions import Distribution
from libtorchbeast.flags import Flags, UserError, replace, require
from libtorchbeast.models import CoreState
from libtorchbeast.rollouts import COLUMN_PREFIXES, Rollout, core_state_of
from libtorchbeast.spec import ROW_FIELDS, Actions, Spec, check_action_mask

# Keys of the environment's row that are copied into the rows of each agent that has none.
OF_ENVIRONMENT = (*ROW_FIELDS, "policy_version", "discount")


class Group(NamedTuple):
    name: str
    agents: int  # A
    spec: Spec  # of one agent
    numbers: slice  # where its actions are in the environment's action


def groups_of(spec: Spec) -> list[Group]:
    """The groups of agents, or [] in an environment of one agent. Raises UserError if a part of the
    observation belongs to no group, or its shape is not [A, ...]; a reward or an end is not as in a
    row; the actions cannot be shared out; or the agents of a group have different actions."""
    if not spec.groups:
        return []
    total = sum(spec.groups.values())
    sizes, kind = spec.actions.sizes, spec.actions.kind
    width = math.prod(sizes) if kind == "box" else len(sizes)
    if kind == "discrete" or width % total:
        said = f"expected the same number of actions for each of {total} agents"
        raise UserError(f"{spec.name}: {said}, seen {kind} {sizes}")
    begins = tuple(f"{name}/" for name in spec.groups)
    if strange := [k for k in spec.observations if not k.startswith(begins)]:
        names = ", ".join(spec.groups)
        said = f"expected each part of the observation in one of the groups {names}"
        raise UserError(f"{spec.name}: {said}, seen {strange[0]}")
    width, groups, first = width // total, [], 0
    for name, A in spec.groups.items():
        own = _of(name, spec.observations)
        if wrong := [k for k, (shape, _) in own.items() if shape[:1] != (A,)]:
            raise UserError(f"{spec.name}: expected {name}/{wrong[0]} [{A}, ...], for {A} agents")
        for k in ROW_FIELDS.keys() & own.keys():
            if own[k] != (expected := ((A,), ROW_FIELDS[k])):
                said = f"expected {name}/{k} {expected[1]}, seen {own[k][1]}{list(own[k][0])}"
                raise UserError(f"{spec.name}: {said}")
        parts = {k: (s[1:], dtype) for k, (s, dtype) in own.items() if k not in ROW_FIELDS}
        actions = Actions("box", (width,))
        numbers = slice(first, first + A * width)
        if kind != "box":
            each = sizes[first : first + width]
            if sizes[numbers] != each * A:
                said = f"expected the same actions for the {A} agents of {name}"
                raise UserError(f"{spec.name}: {said}, seen {sizes[numbers]}")
            actions = Actions("discrete", each) if width == 1 else Actions(kind, each)
        check_action_mask(parts, actions)
        one = dataclasses.replace(spec, name=name, observations=parts, actions=actions, stacks={})
        one = dataclasses.replace(one, sets=_of(name, spec.sets))
        groups.append(Group(name, A, one, numbers))
        first += A * width
    return groups


class Agents(nn.Module):
    """The networks of all groups as one network, whose actions are those of the environment.

    Args:
        own: the class of each group's network, unless --net names another.
    """

    def __init__(self, own: type[nn.Module], spec: Spec, flags: Flags):
        super().__init__()
        self.groups, self._precision = groups_of(spec), flags.precision
        self.nets = nn.ModuleDict()
        for group in self.groups:
            key = group.name
            while hasattr(self.nets, key):  # a ModuleDict has `train`, for example
                key += "_"
            self.nets[key] = models.make_net(own, group.spec, flags)

    def members(self) -> list[tuple[Group, Any]]:
        return [*zip(self.groups, self.nets.values(), strict=True)]

    def initial_state(self, batch_size: int) -> CoreState:
        states: CoreState = ()
        for group, net in self.members():
            state = net.initial_state(batch_size * group.agents)
            states += tuple(x.unflatten(1, (batch_size, group.agents)) for x in state)
        return states

    def forward(self, inputs: dict[str, Tensor], core_state: CoreState):
        logits, values, actions, next_state = [], [], [], ()
        for group, net, rows, state in self.rows_of_groups(inputs, core_state):
            with models.autocast(net, self._precision, rows["reward"].device):
                outputs, state = models.forward(net, rows, state)
            T, B = inputs["reward"].shape
            logits.append(outputs["policy_logits"].reshape(T, B, -1))
            values.append(outputs["baseline"].view(T, B, -1))
            actions += [outputs["action"].reshape(T, B, -1)] if "action" in outputs else []
            next_state += tuple(x.unflatten(1, (B, group.agents)) for x in state)
        joined = dict(policy_logits=torch.cat(logits, -1))
        joined["baseline"] = values[0].mean(-1)  # of the first group, whose return is logged
        if len(actions) == len(self.groups):
            joined["action"] = torch.cat(actions, -1)
        return joined, next_state

    def rows_of_groups(self, rows: dict[str, Tensor], core_state: CoreState):
        """Yields for each group: the group, its network, its rows [T, B * A, ...], and core state.
        Among the rows are the action and the behaviour policy's logits, if `rows` has them."""
        used, first, agent = 0, 0, 0
        for group, net in self.members():
            A, width = group.agents, net.distribution.num_logits * group.agents
            own = {k: x.flatten(1, 2) for k, x in _of(group.name, rows).items()}
            ends = own.pop("done", None)
            for name in OF_ENVIRONMENT:
                if name in rows and name not in own:
                    own[name] = rows[name].unsqueeze(2).expand(-1, -1, A).flatten(1, 2)
            if ends is not None:  # the game's own begins one for each agent
                own["done"] = own["done"] | ends
            elif begins := getattr(rows["done"], "begins", None):  # see models.remember_beginnings
                own["done"].begins = begins
            for name in {"action", "last_action"} & rows.keys():
                numbers = rows[name][..., group.numbers].unflatten(-1, (A, -1)).flatten(1, 2)
                if name == "last_action" and ends is not None:  # an absent agent chose none
                    numbers = numbers.masked_fill(ends.unsqueeze(-1), 0)
                own[name] = numbers.view(*numbers.shape[:2], *net.distribution.action_shape)
            if "policy_logits" in rows:
                logits = rows["policy_logits"][..., first : first + width]
                own["policy_logits"] = logits.unflatten(-1, (A, -1)).flatten(1, 2)
            if "past" in rows:
                own["past"] = rows["past"][..., agent : agent + A].flatten(1, 2)
            count = len(net.initial_state(1))
            state = tuple(x.flatten(1, 2) for x in core_state[used : used + count])
            yield group, net, own, state
            used, first, agent = used + count, first + width, agent + A

    def batches(
        self, batch: Rollout, given: dict[str, Tensor] | None = None
    ) -> Iterator[tuple[nn.Module, Rollout, dict[str, Tensor] | None]]:
        """Yields for each group its network, and its shares of a batch and of what `joined` has
        returned. Their columns are agents."""
        rows = {name: x for name, x in batch.items() if not name.startswith(COLUMN_PREFIXES)}
        columns = {name: x for name, x in batch.items() if name.startswith("column/")}
        shares = self.rows_of_groups(rows, core_state_of(batch))
        for number, (group, net, own, state) in enumerate(shares):
            own |= {name: x.repeat_interleave(group.agents, 1) for name, x in columns.items()}
            goal = given and {k: x.flatten(1, 2) for k, x in _of(number, given).items()}
            state *= 1 + ("past" in own)  # `core_state_of` leaves out the half of an opponent
            yield net, own | {f"core_state/{i}": x for i, x in enumerate(state)}, goal

    def joined(self, each: list[tuple[dict[str, Tensor], dict[str, Tensor]]]):
        """The targets of all groups as one dict [T, B, A, ...], and their statistics as another.
        The names begin with the number of the group."""
        targets: dict[str, Tensor] = {}
        sums: dict[str, Tensor] = {}
        for number, (group, (found, own)) in enumerate(zip(self.groups, each, strict=True)):
            A = group.agents
            targets |= {f"{number}/{k}": x.unflatten(1, (-1, A)) for k, x in found.items()}
            sums |= {f"{number}/{k}": x for k, x in own.items()}
        return targets, sums

    # What the networks of groups may have (docs/fork.md): each network is asked for its own.
    def for_loss(self, spec: Spec, flags: Flags) -> dict[str, nn.Module]:
        made: dict[str, nn.Module] = {}
        for group, net in self.members():
            if len(modules := models.add_for_loss(net, group.spec, flags)):
                made[f"of_{group.name}"] = modules
        return made

    def parameter_groups(self, flags: Flags) -> list[dict[str, Any]]:
        """One group of all parameters, unless a network has groups of its own. Then each network
        has at least one."""
        if not any(hasattr(net, "parameter_groups") for net in self.nets.values()):
            return [dict(params=models.trained(self))]
        each: list[dict[str, Any]] = []
        for _, net in self.members():
            own = getattr(net, "parameter_groups", None)
            each += own(flags) if own else [dict(params=models.trained(net))]
        return each

    def after_step(self, updates: int) -> None:
        for _, net in self.members():
            if (after_step := getattr(net, "after_step", None)) is not None:
                after_step(updates)

    def take_statistics(self, sums: dict[str, Tensor]) -> None:
        """Takes the sums of all groups, whose names begin with the number of the group."""
        for number, (_, net) in enumerate(self.members()):
            if own := _of(number, sums):
                net.take_statistics(own)


def _of(group: str | int, named: dict[str, Any]) -> dict[str, Any]:
    """What belongs to a group, whose names begin with its own name or its number."""
    return {k.removeprefix(f"{group}/"): x for k, x in named.items() if k.startswith(f"{group}/")}


def batches_of_groups(net: nn.Module, batch: Rollout) -> list[tuple[Any, Rollout]]:
    """Each network with its share of a batch, {} if there is none: a network alone with all."""
    if not isinstance(net, Agents):
        return [(net, batch)]
    if not batch:
        return [(own, {}) for _, own in net.members()]
    return [(own, rows) for own, rows, _ in net.batches(batch)]


def make_net(own: type[nn.Module], spec: Spec, flags: Flags) -> nn.Module:
    """Builds what `models.make_net` builds, or `Agents` if the environment has groups of agents."""
    if not (groups := groups_of(spec)):
        return models.make_net(own, spec, flags)
    has_returns = all(f"{group.name}/episode_return" in spec.observations for group in groups)
    expected = "none, unless each group of agents has a part episode_return"
    require(flags, "reward_scaling", flags.reward_scaling == "none" or has_returns, expected)
    plain = replace(flags, net=None, observation_scaling="none", reward_scaling="none")
    made: Any = lambda spec, _: Agents(own, spec, flags)  # scaling is each network's own
    net: Any = models.make_net(made, spec, plain)
    net.distribution = Joint(net)
    each = [f"{g.agents} {g.name}: {models.name_of(x)}{x.chosen}" for g, x in net.members()]
    net.chosen = f" ({'; '.join(each)})"
    return net


def added(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of a loss (`transitions.learn_from`) in all groups as one. Raises UserError if it
    returned a vector: the groups have unequal numbers of columns."""
    if vectors := sorted(name for group in groups for name in group["vectors"]):
        raise UserError(f"loss() returned vectors {vectors}; expected none with groups of agents")
    each = enumerate(group["sums"] for group in groups)
    sums = {f"{number}/{k}": x for number, own in each for k, x in own.items()}
    results: dict[str, Any] = {"vectors": {}, "sums": sums}
    for name in ("total_loss", "real_transitions"):
        results[name] = torch.stack([group[name] for group in groups]).sum()
    for kind in ("scalars", "means"):
        results[kind] = names = dict.fromkeys(k for group in groups for k in group[kind])
        for name in names:
            own = [group for group in groups if name in group[kind]]
            counts = torch.stack([group["real_transitions"] for group in own]).float()
            weights = counts / counts.sum().clamp(min=1.0) if kind == "means" else torch.ones(())
            names[name] = (weights * torch.stack([group[kind][name] for group in own])).sum()
    results["largest_reward"] = torch.stack([group["largest_reward"] for group in groups]).max()
    return results


class Joint:
    """What acting needs of the distribution of all agents' actions: unlike the one that `make_net`
    sets, it does not loop over the agents. The logits [..., L] are those of agent after agent,
    group after group."""

    def __init__(self, agents: Agents):
        self._parts = [(group.agents, net.distribution) for group, net in agents.members()]
        self._logits = [A * d.num_logits for A, d in self._parts]
        self.num_logits = sum(self._logits)
        self.action_shape = (sum(A * math.prod(d.action_shape) for A, d in self._parts),)
        self.action_dtype = self._parts[0][1].action_dtype

    def sample(self, policy_logits: Tensor) -> Tensor:
        return self._chosen(lambda own, logits: own.sample(logits), policy_logits)

    def mode(self, policy_logits: Tensor) -> Tensor:
        return self._chosen(lambda own, logits: own.mode(logits), policy_logits)

    def _chosen(self, choose: Callable[[Distribution, Tensor], Tensor], logits: Tensor) -> Tensor:
        each = zip(self._parts, logits.split(self._logits, -1), strict=True)
        actions = [choose(own, x.unflatten(-1, (A, -1))) for (A, own), x in each]
        return torch.cat([x.reshape(*logits.shape[:-1], -1) for x in actions], -1)
