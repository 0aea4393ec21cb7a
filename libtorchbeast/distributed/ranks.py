# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Several learners that train one network: the processes ("ranks") that torchrun has started.

Each rank has its own actors and its own share of the batch. `Ranks.sum` is the one all-reduce of
an update, and lasts as long as the slowest rank takes for its batch. Meanwhile the pulse (pulse.py)
sends messages, also about who wants to stop and for rank 0's log. So a rank that has died or hangs
is noticed and named, but one whose environments are slow is waited for. A process that was not
started by torchrun opens none of this.
"""

import argparse
import atexit
import contextlib
import json
import logging
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from libtorchbeast import linux
from libtorchbeast.distributed.pulse import DONE, LATER_S, PULSE_S, Pulse, RankLost
from libtorchbeast.flags import UserError, as_plain, require
from libtorchbeast.loggers.columns import MAXIMA_OF_RANKS, OF_EACH_RANK, SUMS_OF_RANKS
from libtorchbeast.seeds import MOST_ACTORS

POLL_S = 0.02  # while the ranks meet
STOP_S = 8.0  # so that rank 0 saves within ten seconds even if another rank hangs
FOREVER = timedelta(days=1)  # for the all-reduce; the pulse notices who will never come

logger = logging.getLogger(__name__)


def rank() -> int:
    """The number of this process among the ranks; 0 if it is alone."""
    return int(os.environ.get("RANK", "0")) if count() > 1 else 0


def count() -> int:
    """The number of ranks; 1 if torchrun has not started this process."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int | None:
    """The number of this process among the ranks of its machine; None if it is alone. Launchers of
    one process for each machine may leave it out."""
    return int(os.environ.get("LOCAL_RANK", "0")) if count() > 1 else None


def own_number(actor: int = MOST_ACTORS) -> int:
    """A number for `seeds.derive_seed` that no other actor or learner has in any rank. Ranks on
    machines of different sizes may have different numbers of actors."""
    return rank() * (MOST_ACTORS + 1) + actor


def own_part(items: Sequence[Any], are_for_all: Any) -> list[Any]:
    """This rank's share of the items if they are for all ranks, else all items. Raises UserError if
    there are none."""
    own = list(items[rank() :: count()] if are_for_all else items)
    if not own:
        raise UserError(f"--server_addresses: {len(items)} for {count()} ranks: expected one each")
    return own


def share(batch_size: int) -> int:
    """The columns of a batch that each rank learns from. Raises UserError if it cannot be divided
    by the number of ranks."""
    if batch_size % count():
        raise UserError(f"--batch_size {batch_size}: expected a multiple of {count()} ranks")
    return batch_size // count()


class Ranks:
    """This process among the ranks of a run. Its `pulse` knows who is lost, and who wants to stop.
    Any thread may call any method. Raises RankLost if not all ranks come within `timeout` seconds.
    """

    def __init__(self, timeout: float):
        self.rank, self.count = rank(), count()
        self._timeout = timeout
        self._store = self._meet()
        backend = "gloo"
        if torch.cuda.is_available() and dist.is_nccl_available():
            backend = "cpu:gloo,cuda:nccl"
            # With this, an operation that fails raises in `_finish`. By default, and as torchrun
            # sets it, a thread of NCCL would end the process, and nothing would be saved.
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        self._is_closed = False
        own = dict(rank=self.rank, world_size=self.count)
        patience = timedelta(seconds=timeout + LATER_S)
        try:  # the pulse first: it notices who is lost while the others still connect
            dist.init_process_group("gloo", store=self._store, timeout=patience, **own)
            names = [self.name(other) for other in range(self.count)]
            self.pulse = Pulse(self.rank, names, self._store, self._has_store, timeout)
            atexit.register(self._leave)
            self._group = dist.new_group(backend=backend, timeout=FOREVER)
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            hint = "GLOO_SOCKET_IFNAME can name the interface of their network"
            text = f"{self.name()} cannot connect with the others ({hint}): {why}"
            raise RankLost(text) from error
        self._waited = 0.0
        self._steps = 0
        self._taken = (time.monotonic(), 0.0, 0)  # time, `_waited` and `_steps` at the last row

    # ------------------------------------------------------------------------------- the beginning
    def _meet(self) -> dist.Store:
        """Waits for all ranks in the store of torchrun. Returns a new part of it, because the store
        still has what ranks wrote before torchrun restarted them."""
        self._hosts = {self.rank: socket.gethostname()}
        word, by = secrets.token_hex(8), time.monotonic() + self._timeout
        has_torchruns = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._has_store = self.rank == 0 and not has_torchruns
        place = ":".join(os.environ.get(n, "?") for n in ("MASTER_ADDR", "MASTER_PORT"))
        try:
            store = dist.TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=self._has_store,
                timeout=timedelta(seconds=self._timeout),
                wait_for_workers=False,
            )
            if self.rank > 0:
                store.set(f"come/{self.rank}", word)
                while not store.check([f"answer/{word}"]):
                    if time.monotonic() > by:
                        raise self._missing([0])
                    time.sleep(POLL_S)
                word = store.get(f"answer/{word}").decode()
            own = dist.PrefixStore(word, store)
            own.set(f"host/{self.rank}", self._hosts[self.rank])
            while missing := [r for r in range(self.count) if r not in self._hosts]:
                for other in missing:
                    if self.rank == 0 and store.check([f"come/{other}"]):
                        store.set(f"answer/{store.get(f'come/{other}').decode()}", word)
                    if own.check([f"host/{other}"]):
                        self._hosts[other] = own.get(f"host/{other}").decode()
                    elif time.monotonic() > by:
                        raise self._missing(missing)
                time.sleep(POLL_S)
        except RankLost:
            raise
        except (RuntimeError, ValueError, KeyError) as error:
            raise RankLost(f"{self.name()} cannot reach torchrun at {place}: {error}") from error
        return own

    def _missing(self, missing: list[int]) -> RankLost:
        came = ", ".join(map(self.name, sorted(self._hosts)))
        return RankLost(
            f"rank {', '.join(map(str, missing))} of {self.count} has not come within "
            f"{self._timeout:g} s (--rank_timeout); these have: {came}"
        )

    def name(self, other: int | None = None) -> str:
        other = self.rank if other is None else other
        return f"rank {other} on {self._hosts[other]}"

    def give_settings(self, settings: dict[str, Any]) -> None:
        """Rank 0 tells all ranks the flags of the run."""
        self._store.set("settings", json.dumps(as_plain(settings)))

    def settings(self) -> dict[str, Any]:
        """What rank 0 has given to `give_settings`."""
        self._store.wait(["settings"], FOREVER)  # the pulse notices if rank 0 ends
        return json.loads(self._store.get("settings"))

    # ------------------------------------------------------------------------- while the run learns
    def sum(self, tensor: Tensor) -> None:
        """Replaces the tensor by its sum over all ranks. All ranks have to call this. Raises
        RankLost if a rank was lost meanwhile."""
        began = time.monotonic()
        start = lambda: dist.all_reduce(tensor, group=self._group, async_op=True)
        self._finish(start, tensor.device.type == "cpu")
        self._waited += time.monotonic() - began

    def gathered(self, tensor: Tensor) -> Tensor:
        """Returns the tensors of all ranks, of equal shapes, stacked: [ranks, ...]."""
        all_of_them = torch.zeros(self.count, *tensor.shape, device=tensor.device)
        all_of_them[self.rank] = tensor
        self.sum(all_of_them)
        return all_of_them

    def from_rank_0(self, data: bytes) -> bytes:
        """Returns the `data` of rank 0."""
        size = torch.tensor([len(data)])
        self._finish(lambda: dist.broadcast(size, 0, self._group, async_op=True))
        copy = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == 0:
            copy = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._finish(lambda: dist.broadcast(copy, 0, self._group, async_op=True))
        return copy.numpy().tobytes()

    def ask_to_stop(self) -> None:
        """Tells all ranks to stop. From then on this one waits at most STOP_S seconds for them."""
        if self.pulse.wakeup is not None:
            self.pulse.wakeup.set()

    def share_log(self, log: Any, stats: Any) -> None:
        """From now on the other ranks send their games and rows to rank 0, whose run has this `log`
        and these `stats`."""
        rows: dict[int, dict[str, float]] = {}

        def hear(rank: int, told: dict[str, Any]) -> None:
            if told:
                stats.add_games_of_rank(told["games"])
                rows[rank] = told["row"]

        log.sources.append(self.columns)
        if self.rank == 0:
            self.pulse.hear = hear
            log.merge = lambda row: merged([row, *rows.values()])
        self.pulse.tell = lambda: {"games": stats.take_games(), "row": log.last_row}

    def learned(self, steps: int) -> None:
        """Counts real transitions of this rank's own, for `columns`."""
        self._steps += steps

    def columns(self) -> dict[str, float]:
        """The columns of the log that say how fast this rank is and how long it waits."""
        before, self._taken = self._taken, (time.monotonic(), self._waited, self._steps)
        seconds, waited, steps = (b - a for a, b in zip(before, self._taken, strict=True))
        if not seconds > waited:
            return {}
        return {"all_reduce_share": waited / seconds, "rank_sps": steps / (seconds - waited)}

    def _finish(self, start: Callable[[], Any], on_cpu: bool = True) -> None:
        """Starts a collective operation, and waits for it as long as all ranks live."""
        remind_at, stop_by = time.monotonic() + self._timeout, math.inf
        self.pulse.waits = True
        try:
            work = start()
        except RuntimeError as error:
            raise self.pulse.why_broken(error) from error
        while not self._is_done(work, on_cpu):
            now = time.monotonic()
            if self.pulse.failure is not None:
                if not on_cpu:
                    self._group.abort()  # the device would wait for ever
                raise self.pulse.failure
            if self.pulse.wants_to_stop():
                stop_by = min(stop_by, now + STOP_S)
            others = [name for name in self.pulse.late if name != self.name()]
            late = ", ".join(others) or self.pulse.awaited or "another rank"
            if now > stop_by:
                self.pulse.fail(f"{late} has not stopped within {STOP_S:g} s")
            if now > remind_at:
                remind_at = now + self._timeout
                logger.warning("The ranks have waited long for a batch of %s.", late)
        self.pulse.waits = False

    def _is_done(self, work: Any, on_cpu: bool) -> bool:
        """Waits at most PULSE_S seconds. Raises RankLost if the operation has failed."""
        end = time.monotonic() + PULSE_S
        if on_cpu:
            with contextlib.suppress(RuntimeError):  # it has failed, or takes longer
                work.wait(timedelta(seconds=PULSE_S))
        while not on_cpu and not work.is_completed() and time.monotonic() < end:
            time.sleep(20e-6)  # `wait` would block in the device's driver
        if not work.is_completed():
            return False
        try:
            work.wait()
        except RuntimeError as error:
            raise self.pulse.why_broken(error) from error
        return True

    def _leave(self) -> None:
        """Closes this at the end of a process that has not done so because it had no run. If the
        pulse still ran, torch would abort the process."""
        if self.pulse.failure is None and not self._is_closed:
            self.close(RuntimeError("it has ended early, and printed why"))
        self.pulse.end_now()

    def close(self, error: BaseException | None) -> None:
        """Says goodbye, with the `error` that has ended this rank. Rank 0 waits for the others."""
        self._is_closed = True
        self.pulse.close(DONE if error is None else (str(error) or repr(error))[:2000])
        if self.pulse.failure is None:
            dist.destroy_process_group()
        global _joined
        _joined = None


# ============================================================================= of the whole program
_joined: Ranks | None = None


def joined() -> Ranks | None:
    """The ranks that this process has joined. None if it is alone."""
    return _joined


def check_flags(draft: argparse.Namespace) -> None:
    """Raises UserError if several learners cannot do what the flags ask for."""
    if count() == 1:
        return
    if "rank_timeout" not in draft:
        raise UserError("this program has one learner; torchrun serves monobeast and polybeast")
    require(draft, "mode", draft.mode == "train", "train, if torchrun starts several processes")
    for name in ("learner_device", "inference_device"):
        own = "no number: each rank takes the accelerator of its own number on its machine"
        require(draft, name, ":" not in (getattr(draft, name) or ""), own)
    enough = draft.num_actors is None or draft.num_actors > 0
    require(draft, "num_actors", enough, "at least 1: a run in order has one learner")
    is_found = draft.xpid is not None or os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0"
    require(draft, "xpid", is_found, "a name: ranks that torchrun restarts resume this run")


def join(draft: argparse.Namespace) -> Ranks | None:
    """Meets the other ranks, if torchrun has started this process as one of several. Raises
    RankLost if not all have come."""
    if count() == 1:
        return None
    global _joined
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun may be killed
        linux.end_with_parent(signal.SIGTERM)
    _joined = Ranks(draft.rank_timeout)
    if _joined.rank > 0:  # rank 0 alone tells how the run goes; the others tell what is wrong
        logging.getLogger().setLevel(logging.WARNING)
        name = _joined.name()
        for handler in logging.getLogger().handlers:
            handler.addFilter(lambda record: _named(record, name))
    return _joined


def _named(record: logging.LogRecord, name: str) -> bool:
    record.msg, record.args = f"{name}: {record.getMessage()}", ()
    return True


def merged(rows: list[dict[str, float]]) -> dict[str, float]:
    """One row of the log from those of all ranks, that of rank 0 first."""
    row = dict(rows[0])
    for name in {name for each in rows for name in each} & OF_EACH_RANK:
        values = [each[name] for each in rows if name in each]
        row[name] = sum(values)
        if name in MAXIMA_OF_RANKS:
            row[name] = max(values)
        elif name not in SUMS_OF_RANKS:
            row[name] /= len(values)
    speeds = {i: each["rank_sps"] for i, each in enumerate(rows) if "rank_sps" in each}
    row.pop("rank_sps", None)
    if speeds:
        slowest = min(speeds, key=lambda i: speeds[i])
        fastest = max(speeds.values())
        row |= {"slowest_rank": slowest, "sps_min": speeds[slowest], "sps_max": fastest}
    return row
