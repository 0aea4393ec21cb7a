# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The optimizer of all parameters that are trained, in one or several groups."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from libtorchbeast.accelerator import graphs
from libtorchbeast.accelerator.devices import tensors_in
from libtorchbeast.flags import Flags, UserError
from libtorchbeast.models import name_of, of_learner
from libtorchbeast.net_check import call_own, in_words

Gradients = list[Tensor | None]

NAMED_AFTER = 100  # updates after which the parameters without a gradient are named

logger = logging.getLogger(__name__)


class Optimizer:
    """Clips gradients and makes steps. Each group of parameters has its own learning rate, and its
    gradient is clipped by itself.

    Args:
        net: its method `parameter_groups(flags)`, if it has one, returns dicts as torch's
            optimizers take them: `params`, and perhaps `lr` and `grad_norm_clipping`.
        is_recorded: whether steps are recorded as graphs. Then their number and the learning rates
            are on the device.

    Attributes:
        parameters: all that require a gradient, those of `Net.for_loss` last.

    Raises:
        UserError: the groups are no such dicts, or a parameter that requires a gradient is not in
            exactly one of them.
    """

    def __init__(self, net: nn.Module, flags: Flags, device: torch.device, is_recorded: bool):
        self._net, self._flags, self._device, self._is_recorded = net, flags, device, is_recorded
        every = dict(net.named_parameters()) | dict(of_learner(net).named_parameters())
        named = {name: p for name, p in every.items() if p.requires_grad}
        self.parameters = list(named.values())
        own = getattr(net, "parameter_groups", None)
        groups: Any
        groups = call_own("parameter_groups", own, flags) if own else [dict(params=self.parameters)]
        given = dict(lr=flags.learning_rate, grad_norm_clipping=flags.grad_norm_clipping)
        is_list = isinstance(groups, list | tuple)
        if not is_list or not all(isinstance(one, dict) and "params" in one for one in groups):
            said = f"expected a list of dicts with params, seen {in_words(groups)}"
            raise UserError(f"{name_of(net)}.parameter_groups: {said}")
        groups = [given | group | {"params": list(group["params"])} for group in groups]
        names = {id(parameter): name for name, parameter in every.items()}
        self._groups = [[names.get(id(p), "") for p in group["params"]] for group in groups]
        for group, own_names in zip(groups, self._groups, strict=True):
            what = f"{name_of(net)}.parameter_groups: expected"
            if others := own_names.count(""):
                raise UserError(f"{what} parameters of the network, seen {others} other tensors")
            for key in given:
                if not isinstance(group[key], int | float) or not group[key] >= 0:
                    raise UserError(f"{what} {key} to be at least 0, seen {group[key]!r}")
        grouped = sum(self._groups, [])
        for name in named:
            if (seen := grouped.count(name)) != 1:
                expected = "expected it in one, or without requires_grad"
                said = f"parameter {name} of {name_of(net)} is in {seen} of its parameter_groups"
                raise UserError(f"The {said}; {expected}")
        shared: dict[str, Any] = dict(params=groups, eps=flags.epsilon, capturable=is_recorded)
        if flags.optimizer == "adam":
            self._own: torch.optim.Optimizer = torch.optim.Adam(**shared, fused=True)
        else:
            foreach = is_recorded or None  # torch's own choice may read the rate on the host
            self._own = torch.optim.RMSprop(**shared, foreach=foreach)
        self._own._warned_capturable_if_run_uncaptured = True  # the first steps run without a graph
        known = {"params", *given, *self._own.defaults}
        if unknown := sorted(name for group in groups for name in group.keys() - known):
            said = f"expected params, lr, grad_norm_clipping or torch's own names, seen {unknown}"
            raise UserError(f"{name_of(net)}.parameter_groups: {said}")
        self._rates: list[float] = [group["lr"] for group in groups]
        self._names, self._steps = list(named), 0
        self._without = [*range(len(named))]  # the parameters that have had no gradient so far
        self._frozen = {name for name, p in net.named_parameters() if not p.requires_grad}

    def make_graphs(self, keep_buffers: Callable[[], Callable[[], None]]) -> None:
        """To be called before the first step, and after `load_state_dict`. `keep_buffers` keeps the
        network's buffers (`net_check.keep_buffers`)."""
        self.clip: Callable[..., Any] = self._clip
        self.step: Callable[..., Any] = self._step
        if self._is_recorded:
            graph = functools.partial(graphs.Graph, device=self._device)
            self.clip = graph("clipping", self._clip, keep_buffers)
            changed = lambda: graphs.keep(self._changed())
            self.step = graph("step", self._step, changed, tolerance=graphs.SAME)

    def scalar(self, value: float) -> float | Tensor:
        """A number that changes in the run. It is on the device if there are graphs, because a
        graph always computes with the host's numbers of the time when it was recorded."""
        return torch.full((), value, device=self._device) if self._is_recorded else value

    def learning_rates(self, progress: float) -> list[float]:
        """Those of the groups. They fall linearly to 0 at --total_steps (appendix D of the IMPALA
        paper), unless --no_learning_rate_decay keeps them constant."""
        share = 1.0 - progress if self._flags.learning_rate_decay else 1.0
        return [rate * share for rate in self._rates]

    def published(self) -> dict[str, Tensor]:
        """What other processes and threads need of the network after a step."""
        state = self._net.state_dict()
        return {k: v for k, v in state.items() if k not in self._frozen} if self._frozen else state

    def backward(self, loss: Tensor) -> Gradients:
        """Returns the gradients of the loss, which the parameters have too."""
        self._own.zero_grad(set_to_none=True)
        loss.backward()
        return self.gradients()

    def gradients(self) -> Gradients:
        return [parameter.grad for parameter in self.parameters]

    def take(self, gradients: Gradients) -> None:
        """Gives the parameters their gradients. Names those that never had one, once."""
        self._take(gradients)
        if self._without:
            self._without = [i for i in self._without if gradients[i] is None]
            self._steps += 1
            if self._without and self._steps == NAMED_AFTER:
                named = ", ".join(self._names[i] for i in self._without)
                logger.warning("Parameters without a gradient since this start: %s", named)

    def _take(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def _clip(self, gradients: Gradients) -> tuple[Tensor, Gradients]:
        """Clips the gradients in place. Returns their norm before clipping, of all groups, and the
        gradients."""
        self._take(gradients)
        clip = lambda group: nn.utils.clip_grad_norm_(group["params"], group["grad_norm_clipping"])
        # Without a gradient a norm is on the CPU.
        norms = [clip(group).to(self._device) for group in self._own.param_groups]
        return norms[0] if len(norms) == 1 else torch.stack(norms).norm(), gradients

    def _step(self, gradients: Gradients, learning_rates: list[float | Tensor]) -> list[Tensor]:
        """Makes a step with the clipped gradients. Returns the tensors that it has changed."""
        self._take(gradients)
        for group, rate in zip(self._own.param_groups, learning_rates, strict=True):
            group["lr"] = rate
        self._own.step()
        return self._changed()

    def _changed(self) -> list[Tensor]:
        """What a step changes: the weights and the optimizer's averages."""
        return [*self.parameters, *tensors_in(list(self._own.state.values()))]

    def state_dict(self, progress: float) -> dict[str, Any]:
        """The optimizer's part of a checkpoint, as if there were no graphs."""
        state = self._own.state_dict()
        for group, rate in zip(state["param_groups"], self.learning_rates(progress), strict=True):
            group |= {"lr": rate, "capturable": False, "foreach": None}
        own = {"optimizer_name": self._flags.optimizer, "optimizer_groups": self._groups}
        return {"optimizer": state, **own}

    def load_state_dict(self, checkpoint: dict[str, Any]) -> None:
        """Takes over the averages of a checkpoint. Everything else is as the flags say. If
        --optimizer has changed, the new one starts without averages, and a warning says so. Raises
        UserError if the checkpoint has other groups of parameters. (0.7 saved no names, so there
        their order counts.)"""
        if (name := checkpoint["optimizer_name"]) != self._flags.optimizer:
            said = "--optimizer %s starts without averages: the checkpoint has those of %s"
            logger.warning(said, self._flags.optimizer, name)
            return
        state = checkpoint["optimizer"]
        sizes = [len(group["params"]) for group in state["param_groups"]]
        own_sizes = [len(group) for group in self._groups]
        saved = checkpoint.get("optimizer_groups", self._groups)
        if own_sizes != sizes or [*map(set, self._groups)] != [*map(set, saved)]:
            others = sorted({*sum(saved, [])} ^ {*sum(self._groups, [])}) or "their order"
            raise UserError(
                f"The checkpoint has {sizes} parameters in its parameter groups, the network now "
                f"{own_sizes} (the difference: {others}): choose another --xpid, or use the "
                f"network of that run"
            )
        packed = self._own.state_dict()["param_groups"]
        pairs = zip(packed, state["param_groups"], strict=True)
        groups = [now | {"lr": then["lr"]} for now, then in pairs]
        parameters = [p for group in self._own.param_groups for p in group["params"]]
        then = {name: state["state"].get(i) for i, name in enumerate(sum(saved, []))}
        averages = {
            i: {k: _laid_out_like(p, x) for k, x in own.items()}
            for i, (name, p) in enumerate(zip(sum(self._groups, []), parameters, strict=True))
            if (own := then[name])
        }
        self._own.load_state_dict({"state": averages, "param_groups": groups})


def _laid_out_like(parameter: Tensor, x: Tensor) -> Tensor:
    """Returns an average of the optimizer with its parameter's memory layout, which torch's fused
    Adam takes for granted. It stays on its device."""
    if not x.dim():  # the number of steps
        return x
    if x.shape != parameter.shape:
        said = f"{list(x.shape)}, the network now {list(parameter.shape)}"
        raise UserError(f"The checkpoint has the optimizer's averages of a parameter {said}")
    return torch.empty_like(parameter, dtype=x.dtype, device=x.device).copy_(x)
