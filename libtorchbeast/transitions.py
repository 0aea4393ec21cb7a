# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Makes what `targets` and `loss` in monobeast.py get, and calls both.

An update without --passes is one call of `learn_from`: network, targets, loss. With several passes
`targets_of` is called once for each batch, and `learn_from` once for each part of it (passes.py).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import vtrace
from libtorchbeast import agents, models, net_check
from libtorchbeast.flags import Flags, UserError
from libtorchbeast.loggers.columns import COLUMNS, OF_LOSS
from libtorchbeast.models import CoreState
from libtorchbeast.rollouts import COLUMN_PREFIXES, NOBODY, Rollout, core_state_of

# Keys of rows that `now` leaves out and that `next` leaves out, so that they cannot be paired
# wrongly. `done` is in neither: see `real`.
NOT_IN_NOW = {"reward", "discount", "done", "terminated", "truncated", "episode_over"}
NOT_IN_NEXT = {"action", "last_action", "policy_version", "past", "done"}

# Names that the loss may not return: the other columns, and the numbers that ranks send along.
SENT_ALONG = "real_transitions new_steps stops has_sums returned"
RESERVED = {*COLUMNS, "rating"} - OF_LOSS | {*SENT_ALONG.split()}


@dataclasses.dataclass(eq=False)
class Transitions:
    """T transitions in each of B columns, as `targets` and `loss` get them. Transition t leads from
    row t to row t+1. A loss with several passes gets single transitions: T is 1 then, unless the
    network is recurrent, and each of the B columns is a transition.
    """

    net: Any  # in training, with what its `for_loss` has made as attributes
    flags: Flags
    rows: Rollout  # [T+1, B, ...], without the rows of the burn-in
    burn_in: Rollout  # [K, B, ...]
    core_state: CoreState  # before the first of all these rows
    columns: Rollout  # [B, ...] each, what the batch says under its keys `column/NAME`
    outputs: Rollout  # all of `net`: in `targets` on rows 0 to T, in `loss` on rows 0 to T-1
    progress: float | Tensor  # share of --total_steps; with graphs it is a tensor on the device
    targets: dict[str, Tensor] = dataclasses.field(default_factory=dict)  # as `targets` returned it

    @functools.cached_property
    def now(self) -> Rollout:
        """What was seen at row t, and the `action` that was chosen there, [T, B, ...]."""
        others = NOT_IN_NOW | self.outputs.keys() - {"action"}
        return {k: x[:-1] for k, x in self.rows.items() if k not in others}

    @functools.cached_property
    def next(self) -> Rollout:
        """What the action led to: what was seen at row t+1, the unclipped `reward`, the ends."""
        others = NOT_IN_NEXT | self.outputs.keys()
        return {k: x[1:] for k, x in self.rows.items() if k not in others}

    @functools.cached_property
    def behavior(self) -> Rollout:
        """What the actors' network returned when it chose the actions, [T, B, ...]."""
        return {k: x[:-1] for k, x in self.rows.items() if k in self.outputs}

    @functools.cached_property
    def real(self) -> Tensor:
        """[T, B] bool, False where a transition leads across the reset of an environment."""
        return ~self.rows["done"][1:]

    @functools.cached_property
    def of_past(self) -> Tensor:
        """[T, B] bool, True where a kept network of the run's past has chosen the action. Only with
        --past_share."""
        return self.real & (self.rows["past"][:-1] != NOBODY)

    @functools.cached_property
    def own(self) -> Tensor:
        """[T, B] bool, the transitions of which the loss has terms: real, and not of the past."""
        return self.real & ~self.of_past if "past" in self.rows else self.real

    @functools.cached_property
    def reward(self) -> Tensor:
        """[T, B] float32, the rewards, clipped (--reward_clipping) or scaled (--reward_scaling)."""
        reward = self.rows["reward"][1:]
        if (moments := getattr(self.net, "moments", None)) is not None:
            reward = moments.scaled_rewards(reward)
        return reward.clamp(-1, 1) if self.flags.reward_clipping == "abs_one" else reward

    @functools.cached_property
    def discount(self) -> Tensor:
        """[T, B] float32: --discounting times the transition's own discount, 0 where the episode
        has terminated. One that was truncated bootstraps from its last observation's value."""
        discount = self.flags.discounting * (~self.rows["terminated"][1:]).float()
        return discount * self.rows["discount"][1:] if "discount" in self.rows else discount

    @functools.cached_property
    def log_pi(self) -> Tensor:
        """[T, B] log pi(a|x) of the network in training, with gradients."""
        with torch.enable_grad():  # `targets` may be the first to ask
            logits = self.outputs["policy_logits"][: len(self.real)]
            return self.net.distribution.log_prob(logits, self.now["action"])

    @functools.cached_property
    def log_mu(self) -> Tensor:
        """[T, B] log mu(a|x) of the network that acted."""
        return self.net.distribution.log_prob(self.behavior["policy_logits"], self.now["action"])

    @functools.cached_property
    def log_rho(self) -> Tensor:
        """[T, B] log(pi(a|x) / mu(a|x)), the logarithms of the importance weights; 0 where the past
        has moved, which is the environment's doing."""
        with torch.enable_grad():
            log_rho = self.log_pi - self.log_mu
            return log_rho.masked_fill(self.of_past, 0.0) if "past" in self.rows else log_rho

    @functools.cached_property
    def rho(self) -> Tensor:
        """[T, B] pi(a|x) / mu(a|x), without gradients."""
        return self.log_rho.detach().exp()

    @functools.cached_property
    def weights(self) -> Tensor:
        """[T, B] float32, 1 for a real transition of the network in training and else 0."""
        return self.own.float()

    @functools.cached_property
    def count(self) -> Tensor:
        """[] float32, how many transitions the loss has, but at least 1."""
        return self.weights.sum().clamp(min=1.0)

    @functools.cached_property
    def _scale(self) -> Tensor | float:
        return 1.0 / self.count if self.flags.loss_reduction == "mean" else 1.0

    def mean(self, terms: Tensor) -> Tensor:
        """The mean of a term [T, B] over the transitions that are `own`, or with --loss_reduction
        sum their sum. No term of a loss is written without it. It multiplies the others by 0, so
        the term has to be finite there, too."""
        if terms.shape != self.real.shape:
            both = f"{[*self.real.shape]}, seen {[*terms.shape]}"
            raise ValueError(f"mean: expected a number for each transition, {both}")
        return self._scale * (self.weights * terms).sum()

    def forward(self, net: Any, core_state: CoreState | None = None) -> Rollout:
        """All outputs of another network, such as a teacher, on rows 0 to T. `core_state` is that
        at row 0, before the burn-in. Default: the network's initial state. Its first outputs are
        then those of a network that has not seen the episode so far."""
        if core_state is None:
            core_state = models.initial_state(net, self.rows["done"].shape[1])
        return _unrolled(net, self.burn_in, self.rows, core_state, self.flags)


Targets = Callable[[Transitions], dict[str, Tensor]]
# Returns `total_loss`, which has the gradient, and what else is wanted: scalars and tensors [T, B]
# for the log (of these the mean over the real transitions), and vectors for `Between.learned`.
Loss = Callable[[Transitions], dict[str, Tensor]]


def transitions_of(
    net: Any, batch: Rollout, flags: Flags, progress: float | Tensor, has_last: bool = True
) -> Transitions:
    """The transitions of a batch, with the network's outputs on its rows. The last row's, which
    targets need and losses do not, are computed if `has_last`. The first --burn_in rows only bring
    the core state up to date."""
    first = vars(flags).get("burn_in", 0)  # a flag of R2D2
    columns = {k.removeprefix("column/"): x[0] for k, x in batch.items() if k.startswith("column/")}
    rows = {k: x for k, x in batch.items() if not k.startswith(COLUMN_PREFIXES)}
    net_check.check_rows(rows, net.distribution)
    burn_in = {k: x[:first] for k, x in rows.items()} if first else {}
    if first:
        rows = {k: x[first:] for k, x in rows.items()}
        if begins := getattr(batch["done"], "begins", None):  # see models.remember_beginnings
            burn_in["done"].begins = begins[:first]  # type: ignore[attr-defined]
            rows["done"].begins = begins[first:]  # type: ignore[attr-defined]
    read = rows if has_last else {k: x[:-1] for k, x in rows.items()}
    core_state = core_state_of(batch)
    outputs = _unrolled(net, burn_in, read, core_state, flags)
    made = Transitions(net, flags, rows, burn_in, core_state, columns, outputs, progress)
    if has_last and "past" in rows:
        made.outputs = outputs | {"baseline": _values_beside_past(made)}
    return made


def _values_beside_past(batch: Transitions) -> Tensor:
    """The values [T+1, B]. At a row where the kept network moves, the value is wrong, because it
    assumes a move of the network in training. It is replaced by r + discount V(next row)."""
    values, past = batch.outputs["baseline"], batch.of_past
    with torch.no_grad():
        terms = torch.where(past, batch.reward, values[:-1])
        terms[-1] += past[-1] * batch.discount[-1] * values[-1]
        after = vtrace.scan_backwards(past * batch.discount, terms)
    return torch.cat([torch.where(past, after, values[:-1]), values[-1:]])


def _unrolled(net: Any, burn_in: Rollout, rows: Rollout, state: CoreState, flags: Flags) -> Rollout:
    """All outputs of a network on rows [T+1, B, ...], after those of a burn-in. Raises UserError if
    the network raised an error, or returned its heads in bfloat16."""
    autocast = lambda: models.autocast(net, flags.precision, rows["reward"].device)
    if burn_in:
        with torch.no_grad(), autocast():  # the casts that this one caches have no gradient
            _, state = models.forward(net, burn_in, state)
    with autocast():
        outputs, _ = models.forward(net, rows, state)
    net_check.check_dtypes(outputs)
    return outputs


@torch.no_grad()
def call_targets(
    batch: Transitions, targets: Targets
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns what `targets` returns, and the sums of `Net.statistics` if the network has that."""
    found = _called("targets", targets, batch)
    net_check.check_targets(found, *batch.real.shape)
    batch.targets = {k: x.detach() for k, x in found.items()}
    statistics: Any = getattr(batch.net, "statistics", None) or (lambda batch: {})
    sums = _called("statistics", statistics, batch)
    return batch.targets, {k: x.float() for k, x in sums.items()}  # as ranks add them up


def _called(part: str, function: Any, batch: Transitions) -> dict[str, Any]:
    try:
        found = net_check.call_own(part, function, batch)
    except UserError as error:  # perhaps it reads what another network has
        name = models.name_of(batch.net) + getattr(batch.net, "chosen", "")
        outputs = ", ".join([*batch.outputs, *models.of_learner(batch.net)])
        said = f"the network is {name}, with {outputs}; batch.now has {', '.join(batch.now)}"
        said += f"; batch.targets has {', '.join(batch.targets)}" * bool(batch.targets)
        raise UserError(f"{error}; {said}") from error
    net_check.check_tensors(part, found)
    return found


def targets_of(
    net: Any, batch: Rollout, targets: Targets, flags: Flags, progress: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The targets and the statistics of a whole batch, for several passes."""
    if isinstance(net, agents.Agents):
        shares = agents.batches_of_groups(net, batch)
        return net.joined([targets_of(*each, targets, flags, progress) for each in shares])
    with torch.no_grad():
        return call_targets(transitions_of(net, batch, flags, progress), targets)


def learn_from(
    net: Any,
    batch: Rollout,
    given: dict[str, Tensor] | None,
    targets: Targets,
    loss: Loss,
    flags: Flags,
    progress: float | Tensor,
) -> dict[str, Any]:
    """Calls the network, `targets` and `loss`.

    Args:
        batch: rows [T+1, B, ...] and core_state/i [layers, B, H], on the network's device.
        given: the targets of its transitions, if they were computed before the first update from
            the batch. None without several passes.

    Returns:
        `total_loss`, which alone has a gradient; `real_transitions`, their number;
        `largest_reward`; and dicts of tensors: `scalars` and `means` for the log, `vectors`, and
        `sums` of statistics. The scalars of groups of agents are added up, their means averaged.

    Raises:
        UserError: one of the functions raised an error, or does not return what docs/fork.md says.
    """
    if isinstance(net, agents.Agents):
        learn = lambda own, rows, goal: learn_from(own, rows, goal, targets, loss, flags, progress)
        return agents.added([learn(*each) for each in net.batches(batch, given)])
    own = transitions_of(net, batch, flags, progress, has_last=given is None)
    return results_of(own, given, targets, loss)


def results_of(
    batch: Transitions, given: dict[str, Tensor] | None, targets: Targets, loss: Loss
) -> dict[str, Any]:
    """Calls `targets`, unless they are `given`, and `loss`. See `learn_from`."""
    sums: dict[str, Tensor] = {}
    if given is not None:
        batch.targets = given
    else:
        _, sums = call_targets(batch, targets)
        batch.outputs = {k: x[:-1] for k, x in batch.outputs.items()}
    results = dict(_called("loss", loss, batch))
    T, B = batch.real.shape
    net_check.check_results(results, T, B, RESERVED)
    total = results.pop("total_loss")
    of_dim = [{k: x.detach() for k, x in results.items() if x.dim() == dim} for dim in range(3)]
    return dict(
        total_loss=total,
        real_transitions=batch.own.sum(),
        largest_reward=torch.linalg.vector_norm(batch.real * batch.reward, math.inf),
        scalars=of_dim[0],
        vectors=of_dim[1],
        means=_means(batch, of_dim[2]),
        sums=sums,
    )


@torch.no_grad()
def _means(batch: Transitions, terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """Numbers for the log, means over the real transitions: of the terms [T, B], and those that any
    loss has. Those of importance weights are only of a loss that uses these."""
    terms = {"mean_value": batch.outputs["baseline"]} | terms
    if "log_rho" in batch.__dict__:
        terms["clipped_rho_share"] = (batch.rho > batch.flags.clip_rho_threshold).float()
        terms["mean_rho"] = batch.rho.clamp(max=1.0)
    of_all = torch.stack([x.float() for x in terms.values()])
    together = (batch.weights * of_all).sum((1, 2)) / batch.count
    return dict(zip(terms, together.unbind(), strict=True))
