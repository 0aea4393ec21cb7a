# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""One update: from a part of a batch to new weights."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from libtorchbeast import models, passes
from libtorchbeast.accelerator import graphs
from libtorchbeast.accelerator.devices import to_host
from libtorchbeast.agents import batches_of_groups
from libtorchbeast.distributed.gradients import Gradients
from libtorchbeast.distributed.ranks import Ranks
from libtorchbeast.distributions import Distribution, Gaussian
from libtorchbeast.flags import Flags
from libtorchbeast.net_check import call_own, keep_buffers
from libtorchbeast.optimizer import Optimizer
from libtorchbeast.passes import Part
from libtorchbeast.rollouts import Rollout
from libtorchbeast.skipped import Skipped
from libtorchbeast.transitions import Loss, Targets, learn_from, targets_of

logger = logging.getLogger(__name__)


class Updater:
    """Calls network, targets and loss, sums the gradients of all ranks, and makes a step.

    An update has three graphs: for the gradients, for clipping them, and for the step. After the
    first, ranks add up their gradients. Before the last, the host reads the numbers for the log and
    decides whether to make the step. To skip one on the device would need copies of all weights.

    Args:
        targets, loss: see monobeast.py.
        dump_dir: where batches with a loss that is not finite are kept. None: nowhere.
        like: results of `learn_from`, with which ranks agree on what travels between them.

    Attributes:
        net: with what `for_loss` has made, on the device.
        skips: counts the updates that were skipped.
        graphs: "yes" if updates are recorded as graphs, "no (WHY)" if not, "" on the CPU.
    """

    def __init__(
        self,
        net: nn.Module,
        flags: Flags,
        device: torch.device,
        dump_dir: str | None,
        targets: Targets,
        loss: Loss,
        ranks: Ranks | None = None,
        like: dict[str, Any] | None = None,
    ):
        models.of_learner(net).to(device)
        net = models.compile_if_asked(net.to(device), flags)
        if flags.precision == "bf16" and isinstance(cast(Distribution, net.distribution), Gaussian):
            logger.warning(
                "--precision bf16: with Box actions the importance weights are noisy, unless "
                "actors and learner compute on the same kind of device; auto computes in float32"
            )
        self.net, self.flags, self.device, self.ranks = net, flags, device, ranks
        self._targets, self._loss = targets, loss
        self.graphs = ""
        if device.type != "cpu":
            why = graphs.why_no_update(net, device, flags)
            self.graphs = f"no ({why})" if why else "yes"
            logger.info("graphs: update %s", self.graphs)
        self.optimizer = Optimizer(net, flags, device, is_recorded=self.graphs == "yes")
        self.make_graphs()
        self.skips = Skipped(net, flags, dump_dir)
        self.gradient_sum: Gradients | None = None
        if ranks is not None:
            is_mean = flags.loss_reduction == "mean"
            self.gradient_sum = Gradients(ranks, self.optimizer.parameters, is_mean, like or {})

    def make_graphs(self) -> None:
        """To be called again after the optimizer's averages were loaded into other memory."""
        self._compute: Callable[..., Any] = self._compute_gradients
        if self.graphs == "yes":
            self._compute = graphs.Graph("gradients", self._compute, self.keep_buffers, self.device)
        self.optimizer.make_graphs(self.keep_buffers)

    def keep_buffers(self) -> Callable[[], None]:
        """Returns a function that gives the network's buffers the values that they have now."""
        return keep_buffers(nn.ModuleList([self.net, models.of_learner(self.net)]))

    def take_in(self, batch: Rollout) -> None:
        """Takes a batch into the running moments; {} if this rank has none."""
        for net, rows in batches_of_groups(self.net, batch):
            if (moments := getattr(net, "moments", None)) is not None:
                moments.update(rows, self.ranks and self.ranks.gathered)

    def parts(self, batch: Rollout, progress: float) -> Iterator[Part]:
        """Yields what each update learns from (`passes.parts`)."""
        find = lambda: targets_of(self.net, batch, self._targets, self.flags, progress)
        return passes.parts(batch, find, self.flags)

    def gradients(self, part: Part, progress: float) -> tuple[Any, ...]:
        """Computes the gradients of the loss of a part of a batch, over all ranks. A rank without a
        batch wants to stop.

        Returns:
            The numbers for the log, with `real_transitions`, `new_steps` and `stops` (see
            `Gradients.sum`); the statistics; and the clipped gradients, for `step`.
        """
        results: dict[str, Any] = {}
        gradients: list[Tensor | None] = [None] * len(self.optimizer.parameters)
        if part.batch:
            scalar = self.optimizer.scalar(progress)
            results, gradients = self._compute(part.batch, part.targets, scalar)
            results = results | {"sums": part.sums or results["sums"]}
        self.optimizer.take(gradients)  # those of a graph are always in the same memory
        if self.gradient_sum is not None:
            results = self.gradient_sum.sum(results, not part.batch, part.new_steps)
        norm, clipped = self.optimizer.clip(self.optimizer.gradients())
        numbers = read(results | {"grad_norm": norm})
        steps = numbers["real_transitions"] if part.new_steps is None else part.new_steps
        numbers.setdefault("new_steps", steps)
        sums = results["sums"] if numbers.pop("has_sums", 1.0) else {}
        if self.gradient_sum is not None:
            names = self.gradient_sum.optional
            for name, count in zip(names, numbers.pop("returned"), strict=True):
                if not count:  # no rank returns it
                    del numbers[name]
        return numbers, sums, clipped

    @torch.enable_grad()  # an environment of this process may have turned gradients off
    def _compute_gradients(
        self, batch: Rollout, targets: dict[str, Tensor] | None, progress: float | Tensor
    ) -> tuple[dict[str, Any], list[Tensor | None]]:
        """Returns the results of `learn_from`, and the gradients of the loss."""
        given = (batch, targets, self._targets, self._loss, self.flags, progress)
        results = learn_from(self.net, *given)
        gradients = self.optimizer.backward(results["total_loss"])
        return results | {"total_loss": results["total_loss"].detach()}, gradients

    def step(self, clipped: Any, sums: dict[str, Tensor], progress: float, updates: int) -> float:
        """Makes a step, hands the network its statistics, and calls its `after_step`.

        Returns:
            The learning rate, that of the first group of parameters.
        """
        rates = self.optimizer.learning_rates(progress)
        self.optimizer.step(clipped, [self.optimizer.scalar(rate) for rate in rates])
        with torch.no_grad():
            if sums:
                call_own("take_statistics", lambda: cast(Any, self.net).take_statistics(sums))
            self.after_step(updates)
        return rates[0]

    def after_step(self, updates: int) -> None:
        """Calls the network's `after_step`: after each step, and with 0 when a run begins."""
        if (after_step := getattr(self.net, "after_step", None)) is not None:
            with torch.no_grad():
                call_own("after_step", after_step, updates)


def read(results: dict[str, Any]) -> dict[str, Any]:
    """Copies scalars and vectors to the host, all at once, because each copy from a GPU is a wait.
    Returns numbers and lists of numbers, of all kinds of results but `sums`."""
    flat = {k: x for k, x in results.items() if not isinstance(x, dict)}
    for kind in ("scalars", "means", "vectors"):
        flat |= results.get(kind, {})
    (here,) = to_host(flat)
    return {name: x.float().tolist() for name, x in here.items()}
