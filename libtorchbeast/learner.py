# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The learner, which updates the network from batches of rollouts."""

import functools
import io
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

import vtrace
from libtorchbeast import models, ppo
from libtorchbeast.accelerator import graphs
from libtorchbeast.accelerator.devices import Event, copy_to_host, own_stream, tensors_in, to_device
from libtorchbeast.agents import Agents, sum_losses
from libtorchbeast.checkpoint import misfit
from libtorchbeast.distributed.gradients import Gradients, digest
from libtorchbeast.distributed.pulse import RankLost
from libtorchbeast.distributed.ranks import Ranks
from libtorchbeast.distributions import Distribution, Gaussian
from libtorchbeast.flags import Flags, UserError, replace
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.loggers.timing import Clock
from libtorchbeast.models import forward
from libtorchbeast.net_check import check_dtypes, keep_buffers, why_not_finite
from libtorchbeast.rollouts import Rollout, core_state_of

Publish = Callable[[dict[str, torch.Tensor], int], None]  # takes (state_dict, version)
# Takes (network, batch, flags). Returns a NamedTuple of tensors on the network's device: numbers
# for the log, among them `total` (which has the gradient), `mean_value`, `real_transitions`, and
# vectors for `Direct.learned`. If it is a module, its state is in the checkpoints.
Loss = Callable[[nn.Module, Rollout, Flags], Any]

MAX_SKIPPED_IN_A_ROW = 20
MAX_EMPTY_IN_A_ROW = 1000
MAX_DUMPS = 3
DIGEST_EVERY = 1000  # number of updates between two comparisons of the ranks' weights
CLOSE_S = 60.0  # an update of a large network on a CPU may take this long

logger = logging.getLogger(__name__)


class UpdateHung(RuntimeError):
    """An update did not end in time after the run was told to end."""


class Learner:
    """The network in training, its optimizer, and the run's counters.

    Any thread may call any method.

    Attributes:
        step: number of real transitions learned from.
        updates: number of optimizer steps made, which is also the version of the weights.
        skipped: number of updates skipped because the loss or the gradient was not finite.
        dropped: number of real transitions in rollouts dropped because of --max_lag.
        graphs: "yes" if updates are recorded as graphs, "no (WHY)" if not, "" on the CPU.
    """

    def __init__(
        self,
        net: nn.Module,
        flags: Flags,
        device: torch.device,
        dump_dir: str | None,
        loss: Loss | None = None,
        ranks: Ranks | None = None,
    ):
        if flags.precision == "bf16" and isinstance(cast(Distribution, net.distribution), Gaussian):
            logger.warning(
                "--precision bf16: with Box actions the importance weights are noisy, unless "
                "actors and learner compute on the same kind of device; auto computes in float32"
            )
        self.net = models.compile_if_asked(net.to(device), flags)
        self.device = device
        self.step = self.updates = self.skipped = self.dropped = 0
        self._flags = flags
        self._loss = loss or compute_loss
        self._dump_dir = dump_dir
        self._skipped_in_a_row = self._empty_in_a_row = 0
        self.graphs = ""
        if device.type != "cpu":
            why = "the loss is not IMPALA's" if loss else graphs.why_no_update(net, device, flags)
            self.graphs = f"no ({why})" if why else "yes"
        self._optimizer = _make_optimizer(net, flags, is_recorded=self.graphs == "yes")
        self._make_graphs()
        self._ranks = ranks
        self._of_ranks: Gradients | None = None
        if ranks is not None:
            self._of_ranks = Gradients(ranks, net.parameters(), flags.loss_reduction == "mean")
        self._closed = self._ended = False  # ended: all ranks have agreed to stop
        self.deviations = 0
        self._updated = Event(device)
        self._one_at_a_time = threading.Lock()  # held by an update, which changes the above

    def _make_graphs(self) -> None:
        """An update has three graphs. After the first, ranks add up their gradients. Before the
        last, the host decides whether to make a step: it waits for the numbers anyway, and to skip
        a step on the device would need copies of all weights."""
        self._compute: Callable[..., Any] = self._compute_gradients
        self._clip: Callable[..., Any] = self._clip_gradients
        self._step: Callable[..., Any] = self._change_weights
        if self.graphs == "yes":
            graph = functools.partial(graphs.Graph, device=self.device)
            buffers, changed = lambda: keep_buffers(self.net), lambda: graphs.keep(self._changed())
            self._compute = graph("gradients", self._compute, buffers)
            self._clip = graph("clipping", self._clip, buffers)
            self._step = graph("step", self._step, changed, tolerance=graphs.SAME)

    def learning_rate(self) -> float:
        """Falls linearly to 0 at --total_steps (appendix D of the IMPALA paper), unless
        --no_learning_rate_decay keeps it constant."""
        falls = self._flags.learning_rate_decay
        return self._flags.learning_rate * (self._share_left() if falls else 1.0)

    def _costs_now(self) -> dict[str, float | Tensor]:
        """The flags of the loss that change in the run, as they are at this step."""
        if self._flags.entropy_schedule == "constant":
            return {}
        return {"entropy_cost": self._scalar(self._flags.entropy_cost * self._share_left())}

    def _scalar(self, value: float) -> float | Tensor:
        """A number that changes in the run. It is on the device if there are graphs, because a
        graph always computes with the host's numbers of the time when it was recorded."""
        return torch.full((), value, device=self.device) if self.graphs == "yes" else value

    def _share_left(self) -> float:
        """The share of --total_steps that is still to be learned from."""
        return max(0.0, 1.0 - self.step / self._flags.total_steps)

    def update(self, batch: Rollout, publish: Publish) -> dict[str, Any] | None:
        """Makes --passes updates. After each it calls `publish(state_dict, version)` with the new
        weights.

        Args:
            batch: a rollout batch on the CPU, [T+1, B, ...].

        Returns:
            Numbers for the log, which are means over the updates (`largest_reward`: maximum), and
            `lags`, a dict that maps a lag to the number of transitions that had it. The lag of a
            transition is the number of updates between the weights that chose its action and the
            weights that first learn from it. None if an update was skipped or the learner is
            closed. A batch or a minibatch without a real transition, which short rollouts or
            --max_lag may give, is skipped too, but not counted: although its gradient is 0, the
            optimizer's averages would move the weights.

        Raises:
            UserError: too many updates in a row had a non-finite loss or gradient, or the network
                raised an error. The text says why.
            RuntimeError: too many batches in a row had no real transition.
        """
        on_device = to_device(batch, self.device)
        if self.device.type != "cpu":
            models.remember_beginnings(on_device["done"], batch["done"])
        with self._one_at_a_time, self._updated:  # the last update may still run on the device
            if self._is_over():
                return None
            if self._ranks is None and self._is_empty(bool(batch["done"][1:].all())):
                return None
            lag = self.updates - batch["policy_version"][:-1]
            if self._flags.max_lag is not None and lag.max() > self._flags.max_lag:
                batch, lag = self._without_old(batch, lag)
                if self._ranks is None and not lag.numel():
                    return None
                on_device |= to_device({"done": batch["done"]}, self.device)
            if self._ranks is not None:
                self._ranks.learned(int((~batch["done"][1:]).sum()))
            each: list[dict[str, Any]] = []
            restore_buffers = keep_buffers(self.net)
            for part, is_first in self._parts(on_device):
                if not is_first and not each:  # no rank has a real transition
                    break
                one = self._update_once(batch, part, publish, is_first, restore_buffers)
                if one is None:
                    return None
                restore_buffers = keep_buffers(self.net)
                if one:
                    each.append(one)
                if self._ended:
                    break
            if self._ranks is not None:
                self._is_empty(not each)
        return _summary(each, lag) if each and lag.numel() else None

    def _is_over(self) -> bool:
        return self._closed or self._ended

    def _parts(self, batch: Rollout) -> Iterator[tuple[Rollout, bool]]:
        """Yields what each update learns from, and whether it does so for the first time. Each of
        the --passes divides the columns of the batch, which is on the device, into --minibatches
        parts. With --ppo_clip the targets are computed here."""
        self._update_moments(batch)
        if self._loss is compute_loss and self._flags.ppo_clip:
            batch = prepare_for_ppo(self.net, batch, self._flags)
        count = self._flags.minibatches
        for index in range(self._flags.passes):
            if count == 1:
                yield batch, not index
                continue
            drawn = to_device(torch.randperm(batch["done"].shape[1]), self.device)
            for columns in drawn.tensor_split(min(count, len(drawn))):
                yield {k: v.index_select(1, columns) for k, v in batch.items()}, not index

    def _update_moments(self, batch: Rollout) -> None:
        if (moments := getattr(self.net, "moments", None)) is not None:
            moments.update(batch, self._ranks and self._ranks.gathered)

    def _update_once(
        self,
        batch: Rollout | None,
        part: Rollout,
        publish: Publish,
        is_first: bool,
        restore_buffers: Callable[[], None],
    ) -> dict[str, Any] | None:
        """An update from a part of the batch. Returns its numbers for the log, {} if no transition
        was real, or None if it was skipped. If `batch` is None, this rank has none to learn from
        and makes its last update, from the batches of the other ranks."""
        parts = self._gradients(part)
        if self._of_ranks is not None:
            parts = self._of_ranks.sum(parts, wants_to_stop=batch is None)
        norm, clipped = self._clip(self._gradients_now())
        numbers = _read({"grad_norm": norm, **parts})
        self._ended = numbers.pop("stops", 0.0) > 0
        count = int(numbers.pop("real_transitions"))
        counts_all = self._ranks is not None or self._loss is compute_loss  # R2D2 counts new steps
        if counts_all and not count:
            restore_buffers()
            return {}
        if not all(map(math.isfinite, (numbers["total"], numbers["grad_norm"]))):
            restore_buffers()  # the batch has changed running means, for example
            self._skip(batch, numbers)
            return None
        self._skipped_in_a_row = 0
        numbers["learning_rate"] = self.learning_rate()
        self._step(clipped, self._scalar(numbers["learning_rate"]))
        self.updates += 1
        self.step += count if is_first else 0
        if self._ranks is not None and self.updates % DIGEST_EVERY == 0:
            self._compare_weights(self._ranks)
        publish(self.net.state_dict(), self.updates)
        return numbers

    def _gradients(self, batch: Rollout) -> dict[str, Tensor]:
        """Computes the gradients in the network's parameters, without a wait of the host. Returns
        the parts of the loss."""
        if not batch:
            self._optimizer.zero_grad(set_to_none=True)
            return {}
        parts, gradients = self._compute(batch, self._costs_now())
        self._set_gradients(gradients)  # those of a graph are always in the same memory
        return parts

    def _set_gradients(self, gradients: list[Tensor | None]) -> None:
        for parameter, gradient in zip(self.net.parameters(), gradients, strict=True):
            parameter.grad = gradient

    def _gradients_now(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self.net.parameters()]

    def _compute_gradients(
        self, batch: Rollout, costs: dict[str, Any]
    ) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        """Returns the parts of the loss of the batch, and the gradients of its `total`."""
        flags = replace(self._flags, **costs) if costs else self._flags
        loss = self._loss(self.net, batch, flags)
        self._optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        parts = {name: part.detach() for name, part in loss._asdict().items()}
        return parts, self._gradients_now()

    def _clip_gradients(self, gradients: list[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
        """Clips the gradients in place. Returns their norm before clipping, and the gradients."""
        self._set_gradients(gradients)
        limit = self._flags.grad_norm_clipping
        return nn.utils.clip_grad_norm_(self.net.parameters(), limit), gradients

    def _change_weights(
        self, gradients: list[Tensor | None], learning_rate: float | Tensor
    ) -> list[Tensor]:
        """Makes a step with the clipped gradients. Returns the tensors that it has changed."""
        self._set_gradients(gradients)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        return self._changed()

    def _changed(self) -> list[Tensor]:
        """What a step changes: the weights and the optimizer's averages."""
        return [*self.net.parameters(), *tensors_in(list(self._optimizer.state.values()))]

    def _without_old(self, batch: Rollout, lag: torch.Tensor) -> tuple[Rollout, torch.Tensor]:
        """Drops the columns with a lag above --max_lag: marks their transitions as not real. They
        stay in the batch, so that its shape does not change. Returns the batch, and the lag [T, b]
        of the other columns."""
        is_old = (lag > self._flags.max_lag).any(dim=0)
        done = batch["done"].clone()
        self.dropped += int((~done[1:, is_old]).sum())
        done[1:, is_old] = True
        return batch | {"done": done}, lag[:, ~is_old]

    def _is_empty(self, is_empty: bool) -> bool:
        """Counts the batches in a row of which no transition is real."""
        self._empty_in_a_row = self._empty_in_a_row + 1 if is_empty else 0
        if self._empty_in_a_row >= MAX_EMPTY_IN_A_ROW:
            raise RuntimeError(
                f"{MAX_EMPTY_IN_A_ROW} batches in a row had no transition to learn from: each row "
                f"of the environments begins an episode"
            )
        return is_empty

    def _compare_weights(self, ranks: Ranks) -> None:
        """The weights of all ranks are equal, unless processors of different kinds round otherwise.
        Then all ranks take those of rank 0."""
        digests = ranks.gathered(digest(self.net.parameters()))
        differ = int((digests != digests[0]).any(dim=1).sum())
        if differ:
            self.deviations += 1
            logger.warning(
                "The weights of %d ranks differ from those of rank 0, which all ranks take now "
                "(seen %d times since the start). Do their processors differ?",
                differ,
                self.deviations,
            )
            self._load(_from_bytes(ranks.from_rank_0(_to_bytes(self._state()))))

    def take_from_rank_0(self, ranks: Ranks) -> None:
        """All ranks take the state of rank 0."""
        with self._one_at_a_time:
            state = _from_bytes(ranks.from_rank_0(_to_bytes(self._state())))
            if why := misfit(self._state()["model"], state["model"]):
                raise UserError(f"the networks of rank 0 and of {ranks.name()} differ: {why}")
            self._load(state)

    def _skip(self, batch: Rollout | None, numbers: dict[str, Any]) -> None:
        self.skipped += 1
        self._skipped_in_a_row += 1
        if batch is None:
            return
        is_last = self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW
        where = "not dumped"
        if self._dump_dir and (is_last or self.skipped <= MAX_DUMPS):
            where = os.path.join(self._dump_dir, f"nonfinite-{self.skipped}.tar")
            try:
                copies = {k: v.clone() for k, v in batch.items()}  # they may share memory (Slab)
                torch.save({"batch": copies, "model": self.net.state_dict()}, where)
            except (OSError, RuntimeError) as error:  # torch raises RuntimeError on a full disk
                where = f"not dumped: {error}"
        value = numbers["mean_value"]
        of = {"policy_logits": numbers.get("mean_entropy", value), "baseline": value}
        names = [name for name, number in of.items() if not math.isfinite(number)]
        why = why_not_finite(self.net, batch, names)
        shown = [f"{k} {v:g}" for k, v in numbers.items() if not isinstance(v, list)]
        seen = ", ".join(shown) + f"; batch: {where}"
        said = f"a loss or gradient that is not finite ({seen}). {why}".rstrip()
        logger.error("Update %d skipped, which had %s", self.updates, said)
        if is_last:
            raise UserError(f"{MAX_SKIPPED_IN_A_ROW} updates in a row had {said}")

    def close(self) -> None:
        """Waits for the running update. Calls of `update` that wait for it return None. Under
        torchrun all ranks then stop, after the same update.

        Raises:
            UpdateHung: the update has not ended within CLOSE_S seconds (one second if this is not
                the first call). The learner's state must not be saved in that case.
        """
        timeout = 1.0 if self._closed else CLOSE_S
        self._closed = True
        if self._ranks is not None and self._share_left():  # an error may have ended this rank
            self._ranks.ask_to_stop()
        if not self._one_at_a_time.acquire(timeout=timeout):
            raise UpdateHung(f"an update has not ended within {CLOSE_S:g} s of the run's end")
        try:
            if self._ranks is not None and not self._ended and self._ranks.pulse.failure is None:
                with own_stream(self.device), self._updated:
                    restore_buffers = keep_buffers(self.net)
                    self._update_moments({})
                    publish: Publish = lambda state_dict, version: None
                    self._update_once(None, {}, publish, True, restore_buffers)
        except RankLost:
            self._ended = True  # the run says so when it is saved
        finally:
            self._one_at_a_time.release()

    def state_dict(self) -> dict[str, Any]:
        """The learner's part of a checkpoint, with its tensors on the CPU. Waits for the running
        update."""
        with self._one_at_a_time:
            return self._state()

    def _state(self) -> dict[str, Any]:
        with self._updated:
            of_loss = self._loss.state_dict() if isinstance(self._loss, nn.Module) else {}
            optimizer = copy_to_host(self._optimizer.state_dict())
            for group in optimizer["param_groups"]:  # as if there were no graphs
                group |= {"lr": self.learning_rate(), "capturable": False, "foreach": None}
            return {
                "model": copy_to_host(dict(self.net.state_dict())),
                "loss": copy_to_host(dict(of_loss)),
                "optimizer": optimizer,
                "optimizer_name": self._flags.optimizer,
                "step": self.step,
                "updates": self.updates,
                "skipped": self.skipped,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the state of a checkpoint. If --optimizer has changed, the new optimizer
        starts without a state, and a warning says so."""
        with self._one_at_a_time:
            self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["model"])
        if isinstance(self._loss, nn.Module):
            self._loss.load_state_dict(state["loss"])
        self.step, self.updates = state["step"], state["updates"]
        self.skipped = state["skipped"]
        if state["optimizer_name"] != self._flags.optimizer:
            logger.warning(
                "--optimizer %s starts without averages: the checkpoint has those of %s",
                self._flags.optimizer,
                state["optimizer_name"],
            )
            return
        pairs = zip(state["optimizer"]["param_groups"], self._optimizer.param_groups, strict=True)
        groups = [now | {k: saved[k] for k in ("params", "lr")} for saved, now in pairs]
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        averages = {
            i: {name: _laid_out_like(parameters[i], x) for name, x in saved.items()}
            for i, saved in state["optimizer"]["state"].items()
        }
        self._optimizer.load_state_dict({"state": averages, "param_groups": groups})
        self._make_graphs()  # because the averages are in other memory now


class Direct:
    """Passes rollouts on from the queue to the learner. A replay takes its place, with the same
    methods. Learner threads share it."""

    def batches(self, rollouts: Iterator[Rollout]) -> Iterator[Rollout]:
        """Yields the batches that the learner learns from, as long as there are rollouts."""
        return rollouts

    def learned(self, batch: Rollout, numbers: dict[str, Any] | None) -> None:
        """Gets what `Learner.update` returned for the batch, with the vectors of the loss."""


def learn(
    learner: Learner,
    batches: Iterable[Rollout],
    publish: Publish,
    stats: Stats,
    clock: Clock,
    finished: Callable[[], bool],
    between: Direct,
) -> None:
    """Runs in a learner thread. It updates the network from one batch after the other, until there
    are no more batches or `finished()` is true."""
    with own_stream(learner.device):
        for batch in between.batches(stats.counted(batches)):
            clock.lap("learner_waiting")
            if finished():
                return
            numbers = learner.update(batch, publish)
            if numbers is not None:
                stats.add_update(numbers)
            between.learned(batch, numbers)
            clock.lap("learning")


def compute_loss(net: nn.Module, batch: Rollout, flags: Flags) -> vtrace.ImpalaLoss:
    """The IMPALA loss of a network on a batch of rollouts.

    Args:
        batch: rows [T+1, B, ...] and core_state/i [layers, B, H], on the network's device.
        flags: give the loss's coefficients.

    Raises:
        UserError: the network raised an error, or returned its heads in bfloat16.
        ValueError: an output of the network has the wrong shape or dtype.
    """
    if isinstance(net, Agents):
        return sum_losses([compute_loss(own, share, flags) for own, share in net.batches(batch)])
    rows, outputs = _outputs(net, batch, flags)
    shared: dict[str, Any] = dict(
        baseline_cost=flags.baseline_cost,
        entropy_cost=flags.entropy_cost,
        clip_rho_threshold=flags.clip_rho_threshold,
        reduction=flags.loss_reduction,
        distribution=cast(Distribution, net.distribution),
    )
    if flags.ppo_clip:
        return ppo.loss(rows, outputs, epsilon=flags.ppo_clip, **shared)
    return vtrace.impala_loss(
        _with_scaled_rewards(net, rows),
        outputs,
        discounting=flags.discounting,
        clip_pg_rho_threshold=flags.clip_pg_rho_threshold,
        lambda_=flags.vtrace_lambda,
        clip_rewards=flags.reward_clipping == "abs_one",
        **shared,
    )


def _outputs(
    net: nn.Module, batch: Rollout, flags: Flags
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The rows of a batch, and the network's logits and values on them."""
    rows = {k: v for k, v in batch.items() if not k.startswith("core_state/")}
    with models.autocast(net, flags.precision, batch["reward"].device):
        outputs, _ = forward(net, rows, core_state_of(batch))
    check_dtypes(outputs)
    return rows, {"policy_logits": outputs["policy_logits"], "baseline": outputs["baseline"]}


def _with_scaled_rewards(net: nn.Module, rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    moments = getattr(net, "moments", None)
    return rows if moments is None else rows | {"reward": moments.scaled_rewards(rows["reward"])}


@torch.no_grad()
def prepare_for_ppo(net: nn.Module, batch: Rollout, flags: Flags) -> Rollout:
    """The batch with the targets of `ppo.loss`. Without a recurrent state, each transition becomes
    a column of its own, [1, T * B, ...], so that minibatches mix all of them."""
    rows, outputs = _outputs(net, batch, flags)
    prepared = ppo.with_targets(
        _with_scaled_rewards(net, rows),
        outputs,
        discounting=flags.discounting,
        clip_rho_threshold=flags.clip_rho_threshold,
        lambda_=flags.vtrace_lambda,
        clip_rewards=flags.reward_clipping == "abs_one",
        distribution=cast(Distribution, net.distribution),
    )
    prepared["reward"] = rows["reward"][:-1]  # the network's input, which is not scaled
    if core_state_of(batch):
        return prepared | {k: v for k, v in batch.items() if k.startswith("core_state/")}
    return {k: v.flatten(0, 1).unsqueeze(0) for k, v in prepared.items()}


def _to_bytes(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _summary(updates: list[dict[str, Any]], lag: Tensor) -> dict[str, Any]:
    """What `Learner.update` returns, from the numbers of each update and the transitions' lags."""
    numbers = updates[0]
    if len(updates) > 1:
        numbers = {k: sum(one[k] for one in updates) / len(updates) for k in numbers}
        if "largest_reward" in numbers:
            numbers["largest_reward"] = max(one["largest_reward"] for one in updates)
    numbers |= {"lag_mean": lag.float().mean().item(), "lag_max": float(lag.max())}
    lags, counts = torch.unique(lag, return_counts=True)
    return {**numbers, "lags": dict(zip(lags.tolist(), counts.tolist(), strict=True))}


def _read(parts: dict[str, Tensor]) -> dict[str, Any]:
    """Copies scalars and vectors to the host, all at once, because each copy from a GPU is a wait.
    Returns numbers and lists of numbers."""
    dtype = parts["grad_norm"].dtype
    values = iter(torch.cat([x.detach().to(dtype).view(-1) for x in parts.values()]).tolist())
    take = lambda x: [next(values) for _ in x] if x.dim() else next(values)
    return {name: take(x) for name, x in parts.items()}


def _laid_out_like(parameter: Tensor, x: Tensor) -> Tensor:
    """Returns an average of the optimizer with its parameter's memory layout, which torch's fused
    Adam takes for granted. It stays on its device."""
    if x.shape != parameter.shape:  # such as the number of steps
        return x
    return torch.empty_like(parameter, dtype=x.dtype, device=x.device).copy_(x)


def _make_optimizer(net: nn.Module, flags: Flags, is_recorded: bool) -> torch.optim.Optimizer:
    """If its steps are recorded as graphs, their number and the learning rate are on the device."""
    shared: dict[str, Any] = dict(
        params=net.parameters(), lr=flags.learning_rate, eps=flags.epsilon, capturable=is_recorded
    )
    optimizer: torch.optim.Optimizer
    if flags.optimizer == "adam":
        optimizer = torch.optim.Adam(**shared, fused=True)
    else:
        foreach = is_recorded or None  # the default reads the learning rate on the host
        shared |= dict(alpha=flags.alpha, momentum=flags.momentum, foreach=foreach)
        optimizer = torch.optim.RMSprop(**shared)
    optimizer._warned_capturable_if_run_uncaptured = True  # the first steps run without a graph
    return optimizer
