# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Several agents in one environment, in groups. Each group has a network of its own.

The environment is an ordinary one, whose observation has these parts for a group `taggers` of A
agents; their order in the observation is the order of the groups:

    taggers/reward    [A] float32: the rewards of its agents for the last step, 0 after a reset
    taggers/NAME      [A, ...]: the part NAME of what each of them observes

Its action is a MultiDiscrete or a Box, with the actions of all agents of the first group, then of
the second, and so on; each agent has equally many entries. Its reward is only logged. A group may
have a part `action_mask`, a mask for each agent. Of a network's outputs only the heads are used.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from libtorchbeast import models
from libtorchbeast.distributions import Distribution
from libtorchbeast.flags import Flags, UserError
from libtorchbeast.models import CoreState
from libtorchbeast.rollouts import OF_COLUMNS, Rollout, core_state_of
from libtorchbeast.spec import Actions, Spec, check_action_mask

# Keys of the environment's row that are copied into the rows of each agent.
OF_ENVIRONMENT = (
    "done", "terminated", "truncated", "episode_over", "episode_step", "episode_return",
    "policy_version", "discount",
)  # fmt: skip


class Group(NamedTuple):
    name: str
    agents: int  # A
    spec: Spec  # of one agent
    numbers: slice  # where its actions are in the environment's action


def groups_of(spec: Spec) -> list[Group]:
    """The groups of agents, or [] in an environment of one agent.

    Raises:
        UserError: a part of the observation belongs to no group, or its shape is not [A, ...]; a
            reward is not float32; the actions cannot be shared out; or the agents of a group have
            different actions.
    """
    rewards = {k.removesuffix("/reward"): shape for k, (shape, _) in spec.observations.items()
               if k.endswith("/reward") and len(shape) == 1}  # fmt: skip
    if not rewards:
        return []
    for name in rewards:
        if (dtype := spec.observations[f"{name}/reward"][1]) != "float32":
            raise UserError(f"{spec.name}: expected {name}/reward float32, seen {dtype}")
    total = sum(shape[0] for shape in rewards.values())
    sizes, kind = spec.actions.sizes, spec.actions.kind
    width = math.prod(sizes) if kind == "box" else len(sizes)
    if kind == "discrete" or width % total:
        said = (
            f"expected the same number of actions for each of {total} agents, seen {kind} {sizes}"
        )
        raise UserError(f"{spec.name}: {said}")
    if strange := [k for k in spec.observations if k.rpartition("/")[0] not in rewards]:
        said = f"expected each part of the observation in one of the groups {', '.join(rewards)}"
        raise UserError(f"{spec.name}: {said}, seen {strange[0]}")
    width, groups, first = width // total, [], 0
    for name, (A,) in rewards.items():
        own = {
            k.removeprefix(f"{name}/"): v
            for k, v in spec.observations.items()
            if k.startswith(f"{name}/")
        }
        if wrong := [k for k, (shape, _) in own.items() if shape[:1] != (A,)]:
            raise UserError(f"{spec.name}: expected {name}/{wrong[0]} [{A}, ...], for {A} agents")
        parts = {k: (shape[1:], dtype) for k, (shape, dtype) in own.items() if k != "reward"}
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
            self.nets[group.name] = models.make_net(own, group.spec, flags)

    def members(self) -> list[tuple[Group, Any]]:
        return [(group, self.nets[group.name]) for group in self.groups]

    def initial_state(self, batch_size: int) -> CoreState:
        states: CoreState = ()
        for group, net in self.members():
            state = net.initial_state(batch_size * group.agents)
            states += tuple(x.unflatten(1, (batch_size, group.agents)) for x in state)
        return states

    def forward(self, inputs: dict[str, Tensor], core_state: CoreState):
        logits, values, next_state = [], [], ()
        for group, net, rows, state in self.shares(inputs, core_state):
            with models.autocast(net, self._precision, rows["reward"].device):
                outputs, state = models.forward(net, rows, state)
            T, B = inputs["reward"].shape
            logits.append(outputs["policy_logits"].reshape(T, B, -1))
            values.append(outputs["baseline"].view(T, B, -1))
            next_state += tuple(x.unflatten(1, (B, group.agents)) for x in state)
        baseline = values[0].mean(-1)  # of the first group, whose return is logged
        return dict(policy_logits=torch.cat(logits, -1), baseline=baseline), next_state

    def shares(self, rows: dict[str, Tensor], core_state: CoreState):
        """Yields for each group: the group, its network, its rows [T, B * A, ...], and core state.
        Among the rows are the action and the behaviour policy's logits, if `rows` has them."""
        used, first = 0, 0
        for group, net in self.members():
            A, width = group.agents, net.distribution.num_logits * group.agents
            own = {
                k.removeprefix(f"{group.name}/"): x.flatten(1, 2)
                for k, x in rows.items() if k.startswith(f"{group.name}/")
            }  # fmt: skip
            for name in OF_ENVIRONMENT:
                if name in rows:
                    own[name] = rows[name].unsqueeze(2).expand(-1, -1, A).flatten(1, 2)
            if begins := getattr(rows["done"], "begins", None):  # see models.remember_beginnings
                own["done"].begins = begins  # type: ignore[attr-defined]
            for name in {"action", "last_action"} & rows.keys():
                numbers = rows[name][..., group.numbers].unflatten(-1, (A, -1)).flatten(1, 2)
                own[name] = numbers.view(*numbers.shape[:2], *net.distribution.action_shape)
            if "policy_logits" in rows:
                logits = rows["policy_logits"][..., first : first + width]
                own["policy_logits"] = logits.unflatten(-1, (A, -1)).flatten(1, 2)
            count = len(net.initial_state(1))
            state = tuple(x.flatten(1, 2) for x in core_state[used : used + count])
            yield group, net, own, state
            used, first = used + count, first + width

    def batches(self, batch: Rollout) -> Iterator[tuple[nn.Module, Rollout]]:
        """Yields for each group its network and its share of a batch, whose columns are agents."""
        rows = {name: x for name, x in batch.items() if not name.startswith(OF_COLUMNS)}
        columns = {name: x for name, x in batch.items() if name.startswith("column/")}
        for group, net, own, state in self.shares(rows, core_state_of(batch)):
            own |= {name: x.repeat_interleave(group.agents, 1) for name, x in columns.items()}
            yield net, own | {f"core_state/{i}": x for i, x in enumerate(state)}

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
            begin = f"{number}/"
            own = {k.removeprefix(begin): x for k, x in sums.items() if k.startswith(begin)}
            if own:
                net.take_statistics(own)


def added(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of a loss (`losses.learn_from`) in all groups as one.

    Raises:
        UserError: it returned a vector: the groups have unequal numbers of columns.
    """
    if vectors := sorted(name for group in groups for name in group["vectors"]):
        raise UserError(f"loss() returned vectors {vectors}; expected none with groups of agents")
    each = enumerate(group["sums"] for group in groups)
    sums = {f"{number}/{k}": x for number, own in each for k, x in own.items()}
    results: dict[str, Any] = {"vectors": {}, "sums": sums}
    for name in ("total_loss", "real_transitions"):
        results[name] = torch.stack([group[name] for group in groups]).sum()
    for kind in ("scalars", "means"):
        names = dict.fromkeys(k for group in groups for k in group[kind])
        of = {k: [group[kind][k] for group in groups if k in group[kind]] for k in names}
        together = {k: torch.stack(values) for k, values in of.items()}
        results[kind] = {k: x.sum() if kind == "scalars" else x.mean() for k, x in together.items()}
    results["largest_reward"] = torch.stack([group["largest_reward"] for group in groups]).max()
    return results


class Joint:
    """What acting needs of the distribution of all agents' actions: unlike the one that `make_net`
    sets, it does not loop over the agents. The logits [..., L] are those of agent after agent,
    group after group."""

    def __init__(self, agents: Agents):
        self._parts: list[tuple[int, Distribution]] = [
            (group.agents, net.distribution) for group, net in agents.members()
        ]
        self._logits = [A * d.num_logits for A, d in self._parts]
        self.num_logits = sum(self._logits)
        self.action_shape = (sum(A * math.prod(d.action_shape) for A, d in self._parts),)
        self.action_dtype = self._parts[0][1].action_dtype

    def sample(self, policy_logits: Tensor) -> Tensor:
        return self._joined(policy_logits, [d.sample(x) for d, x in self._each(policy_logits)])

    def mode(self, policy_logits: Tensor) -> Tensor:
        return self._joined(policy_logits, [d.mode(x) for d, x in self._each(policy_logits)])

    def _each(self, policy_logits: Tensor) -> list[tuple[Distribution, Tensor]]:
        split = zip(self._parts, policy_logits.split(self._logits, -1), strict=True)
        return [(d, x.unflatten(-1, (A, -1))) for (A, d), x in split]

    def _joined(self, policy_logits: Tensor, actions: list[Tensor]) -> Tensor:
        shape = policy_logits.shape[:-1]
        return torch.cat([a.reshape(*shape, -1) for a in actions], -1)
