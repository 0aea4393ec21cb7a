# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Several learners that train one network: the processes ("ranks") that torchrun has started.

Each rank has its own actors and its own share of the batch. What lies between the ranks is this:

- `Ranks.sum` adds up a tensor over all ranks. It is the one all-reduce of an update, and lasts as
  long as the slowest rank takes for its batch.
- The pulse is a thread that sends a short message to rank 0 and gets an answer, twice a second,
  whatever the learner does. So a rank that has died or hangs is noticed and named, but a rank whose
  environments are slow is waited for. Messages also tell who wants to stop, and rank 0 gets the
  numbers for its log by them.

A process that was not started by torchrun opens none of this.
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
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from libtorchbeast.flags import Parser, UserError, as_plain, real, require
from libtorchbeast.loggers.columns import MAXIMA_OF_RANKS, OF_RANK_0, SUMS_OF_RANKS
from libtorchbeast.workers import PipeEvent, end_with_parent

FIRST_SEED = 1_000_000  # more than actors that anyone has; see `seeds.derive_seed`
PULSE_S = 0.5
LATER_S = 5.0  # rank 0 decides who is lost, so the others wait for it for this much longer
STOP_S = 15.0  # torchrun kills a rank that has not ended 30 s after its SIGTERM
FOREVER = timedelta(days=1)  # for the all-reduce; the pulse notices who will never come
MESSAGE_BYTES = 32768
DONE = "done"

logger = logging.getLogger(__name__)


class RankLost(UserError):
    """Another rank has died, hangs or cannot be reached. The text names it."""


class RankSilent(RankLost):
    """It does not answer, but its connection is still open."""


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


def own_part(items: Sequence[Any], are_for_all: Any) -> list[Any]:
    """The items of this rank, if they are dealt out to all ranks. Raises UserError if there are
    none for it."""
    own = list(items[rank() :: count()] if are_for_all else items)
    if not own:
        raise UserError(f"--server_addresses: {len(items)} for {count()} ranks: expected one each")
    return own


def share(batch_size: int) -> int:
    """The columns of a batch that each rank learns from.

    Raises:
        UserError: it cannot be divided by the number of ranks.
    """
    if batch_size % count():
        raise UserError(f"--batch_size {batch_size}: expected a multiple of {count()} ranks")
    return batch_size // count()


def add_flags(parser: Parser) -> None:
    """Adds the flags of the programs that can have several learners."""
    group = parser.add_argument_group("ranks", "Several learners (docs/many_machines.md).")
    group.add_argument("--rank_timeout", type=real(1, 3600), default=60.0, metavar="SECONDS",
        help="Under torchrun: if a rank gives no sign of life for this long, or has not come this "
             "long after the start, the others save the run and end. A rank that dies is noticed "
             "at once, and a rank whose environments are slow is waited for.")  # fmt: skip


class Ranks:
    """This process among the ranks of a run. Any thread may call any method.

    Attributes:
        failure: why this run cannot go on, None as long as it can.
        wakeup: is set when a rank wants to stop or is lost. If it is set here, all ranks stop. None
            before the run can save anything; until then the loss of a rank ends the process.
        tell: returns what rank 0 shall hear with each pulse, in JSON's types.
        hear: called in rank 0 with what a rank has told.

    Raises:
        RankLost: not all ranks have come within `timeout` seconds.
    """

    def __init__(self, timeout: float):
        self.rank, self.count = rank(), count()
        self.failure: RankLost | None = None
        self.wakeup: PipeEvent | None = None
        self.tell: Callable[[], dict[str, Any]] = dict
        self.hear: Callable[[int, dict[str, Any]], None] = lambda rank, told: None
        self._timeout = timeout
        self._store = self._meet()
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        own = dict(rank=self.rank, world_size=self.count, timeout=FOREVER)
        patience = timedelta(seconds=timeout + LATER_S)
        try:
            dist.init_process_group(backend, store=self._store, **own)
            self._pulse_group = dist.new_group(backend="gloo", timeout=patience)
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise RankLost(f"{self.name()} cannot connect with the others: {why}") from error
        self._peers = list(range(1, self.count)) if self.rank == 0 else [0]
        self._left: set[int] = set()  # the peers that have said their last
        self._waits = False  # in `_finish`, for the others
        self._late: list[str] = []  # the ranks for which the others wait
        self._waited = 0.0
        self._steps = 0
        self._taken = (time.monotonic(), 0.0, 0)  # seconds, `_waited` and `_steps` at a row
        self._end = ""  # what this rank says last, once it is set
        self._closing = threading.Event()
        self._pulse = threading.Thread(target=self._beat, name="pulse of ranks", daemon=True)
        self._pulse.start()
        atexit.register(self._leave)

    # ------------------------------------------------------------------------------- the beginning
    def _meet(self) -> dist.Store:
        """Waits for all ranks in the store of torchrun. Returns a part of it that is new, because
        the store still has what ranks have written there that torchrun has ended since."""
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
                if not self._waits_for(store, f"answer/{word}", by):
                    raise self._missing([0])
                word = store.get(f"answer/{word}").decode()
            own = dist.PrefixStore(word, store)
            own.set(f"host/{self.rank}", self._hosts[self.rank])
            while missing := [r for r in range(self.count) if r not in self._hosts]:
                for other in missing:
                    if self.rank == 0 and store.check([f"come/{other}"]):
                        store.set(f"answer/{store.get(f'come/{other}').decode()}", word)
                    if self._waits_for(own, f"host/{other}", time.monotonic() + 0.1):
                        self._hosts[other] = own.get(f"host/{other}").decode()
                    elif time.monotonic() > by:
                        raise self._missing(missing)
        except RankLost:
            raise
        except (RuntimeError, ValueError, KeyError) as error:
            raise RankLost(f"{self.name()} cannot reach torchrun at {place}: {error}") from error
        return own

    def _waits_for(self, store: dist.Store, key: str, by: float) -> bool:
        """Whether the store has the key, at the latest when the clock shows `by`."""
        while not store.check([key]):
            if time.monotonic() > by:
                return False
            time.sleep(0.02)
        return True

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
        """Replaces the tensor by its sum over all ranks, which all ranks have to call for.

        Raises:
            RankLost: a rank was lost meanwhile.
        """
        began = time.monotonic()
        self._finish(lambda: dist.all_reduce(tensor, async_op=True), tensor.device.type == "cpu")
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
        self._finish(lambda: dist.broadcast(size, src=0, async_op=True))
        copy = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == 0:
            copy = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._finish(lambda: dist.broadcast(copy, src=0, async_op=True))
        return copy.numpy().tobytes()

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
        self._waits = True
        try:
            work = start()
        except RuntimeError as error:
            raise self._why_broken(error) from error
        while not self._is_done(work, on_cpu):
            now = time.monotonic()
            if self.failure is not None:
                raise self.failure
            if self.wakeup is not None and self.wakeup.is_set():
                stop_by = min(stop_by, now + STOP_S)
            late = ", ".join(name for name in self._late if name != self.name()) or "another rank"
            if now > stop_by:
                self._fail(f"{late} has not stopped within {STOP_S:g} s")
            if now > remind_at:
                remind_at += now - remind_at + self._timeout
                logger.warning("The ranks have waited long for a batch of %s.", late)
        self._waits = False

    def _is_done(self, work: Any, on_cpu: bool) -> bool:
        """Waits for a part of a second. Raises RankLost if the operation has failed."""
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
            raise self._why_broken(error) from error
        return True

    def _why_broken(self, error: RuntimeError) -> RankLost:
        """The pulse notices the same loss, and names the rank."""
        self._pulse.join(LATER_S)
        if self.failure is None:
            self._fail(f"the ranks have lost each other ({str(error).splitlines()[0]})")
        assert self.failure is not None
        return self.failure

    # ------------------------------------------------------------------------------------ the pulse
    def _beat(self) -> None:
        try:
            while self.failure is None:
                end = self._end
                if self.rank > 0:
                    self._report(end)
                else:
                    self._ask(end)
                if end and (self.rank > 0 or end != DONE or not self._peers):
                    return
                self._closing.wait(PULSE_S)
        except RankLost as error:
            self._fail(str(error))
        except BaseException as error:
            self._fail(f"{self.name()} failed: {error!r}")

    def _report(self, end: str) -> None:
        """A message to rank 0 and its answer."""
        try:
            told = {"told": self.tell(), "waits": self._waits}
            self._send(0, told | {"stop": self._wants_to_stop(), "end": end})
            answer = self._receive(0, self._timeout + LATER_S)
        except RankLost as error:
            raise RankLost(self._lost_says_rank_0() or str(error)) from error
        self._late = answer["late"]
        self._take(0, answer)

    def _ask(self, end: str) -> None:
        """The messages of all others to rank 0, and its answers."""
        by, stop = time.monotonic() + self._timeout, self._wants_to_stop()
        lost: dict[int, str] = {}
        late = [] if self._waits else [self.name()]
        for peer in self._peers:
            try:
                message = self._receive(peer, max(0.1, by - time.monotonic()))
            except RankSilent as error:  # gloo has closed the connections to the others, too
                lost[peer] = str(error)
                break
            except RankLost as error:
                lost[peer] = str(error)
                continue
            self.hear(peer, message["told"])
            stop = stop or message["stop"]
            late += [] if message["waits"] else [self.name(peer)]
            self._take(peer, message)
        self._late = late
        why = "; ".join(lost.values()) or str(self.failure or "")
        for peer in self._peers:
            with contextlib.suppress(*[RankLost] if lost else []):
                if peer not in lost:
                    self._send(peer, {"stop": stop, "end": end, "late": self._late, "lost": why})
        if lost:
            raise RankLost(why)
        self._peers = [peer for peer in self._peers if peer not in self._left]

    def _wants_to_stop(self) -> bool:
        return self.wakeup is not None and self.wakeup.is_set()

    def _take(self, peer: int, message: dict[str, Any]) -> None:
        if message["end"]:
            self._left.add(peer)
        if message["end"] not in ("", DONE):
            self._fail(f"{self.name(peer)} failed: {message['end']}")
        elif message.get("lost"):
            self._fail(message["lost"])
        elif message["stop"] and self.wakeup is not None:
            self.wakeup.set()

    def _lost_says_rank_0(self) -> str:
        """Whom rank 0 has lost, if it can still be asked. When rank 0 loses one, gloo closes its
        connections to all."""
        found: list[bytes] = []

        def look() -> None:
            with contextlib.suppress(RuntimeError):
                self._store.wait(["lost"], timedelta(seconds=2))
                found.append(self._store.get("lost"))

        looking = threading.Thread(target=look, daemon=True)  # if it cannot be reached, for ever
        looking.start()
        looking.join(3.0)
        return found[0].decode() if found else ""

    def _send(self, peer: int, message: dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        data = torch.frombuffer(bytearray(text.ljust(MESSAGE_BYTES)), dtype=torch.uint8)
        self._transfer(peer, lambda: dist.isend(data, peer, group=self._pulse_group).wait())

    def _receive(self, peer: int, timeout: float) -> dict[str, Any]:
        data = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
        patience = timedelta(seconds=timeout)
        receive = lambda: dist.irecv(data, peer, group=self._pulse_group).wait(patience)
        self._transfer(peer, receive)
        return json.loads(data.numpy().tobytes())

    def _transfer(self, peer: int, transfer: Callable[[], Any]) -> None:
        try:
            transfer()
        except RuntimeError as error:
            if "imed out" in str(error):
                why = f"has given no sign of life for {self._timeout:g} s (--rank_timeout)"
                raise RankSilent(f"{self.name(peer)} {why}") from error
            why = "has ended or cannot be reached any more"
            raise RankLost(f"{self.name(peer)} {why}") from error

    def _fail(self, why: str) -> None:
        """The run cannot go on."""
        if self.failure is not None:
            return
        self.failure = RankLost(why)
        logger.error("%s", why)
        if self.rank == 0:
            with contextlib.suppress(RuntimeError):
                self._store.set("lost", why)
        if torch.cuda.is_available():
            dist.group.WORLD.abort()  # frees the devices
        if self.wakeup is None:  # nothing to save
            self._end_now()
        else:
            self.wakeup.set()

    def _end_now(self) -> None:
        """Ends this process after the loss of a rank. Its end as usual would destroy the groups,
        and wait for an operation that waits for the lost rank."""
        if self.failure is not None:
            if self._has_store:
                time.sleep(LATER_S)  # the others look there for who is lost
            logging.shutdown()
            os._exit(1)

    def _leave(self) -> None:
        """At the end of a process that has not closed this, because there is no run to leave. If
        the pulse still ran, torch would abort the process."""
        if self.failure is None and not self._end:
            self.close(RuntimeError("it has ended before its run began"))
        self._end_now()

    def close(self, error: BaseException | None) -> None:
        """Says goodbye, with the `error` that has ended this rank. Rank 0 waits for the others."""
        self._end = DONE if error is None else (str(error) or repr(error))[:2000]
        self._closing.set()
        self._pulse.join(self._timeout)
        if self.failure is None:
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
    require(draft, "autotune", draft.autotune is None, "none, if torchrun starts several processes")
    device = draft.learner_device
    own = "cpu, or none: each rank takes the accelerator of its number on its machine"
    require(draft, "learner_device", device in (None, "cpu"), own)
    enough = draft.num_actors is None or draft.num_actors > 0
    require(draft, "num_actors", enough, "at least 1: a run in order has one learner")
    is_found = draft.xpid is not None or os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0"
    require(draft, "xpid", is_found, "a name: ranks that torchrun restarts resume this run")


def join(draft: argparse.Namespace) -> Ranks | None:
    """Meets the other ranks, if torchrun has started this process as one of several.

    Raises:
        RankLost: not all have come.
    """
    if count() == 1:
        return None
    global _joined
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun may be killed
        end_with_parent(signal.SIGTERM)
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
    for name in {name for each in rows for name in each} - OF_RANK_0:
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
