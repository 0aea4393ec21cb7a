# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The pulse of several learners, by which they notice who is lost, and agree to stop."""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from libtorchbeast.flags import UserError
from libtorchbeast.workers import PipeEvent

PULSE_S = 0.5
LATER_S = 5.0  # the other ranks wait this much longer, because rank 0 decides who is lost
DONE = "done"

logger = logging.getLogger(__name__)


class RankLost(UserError):
    """Another rank has died, hangs or cannot be reached. The text names it."""


class RankSilent(RankLost):
    """Another rank does not answer, but its connection is still open."""


class Pulse:
    """A thread that sends a short message to rank 0 and gets an answer, twice a second, whatever
    the learner does. It uses torch's default group of processes, and nothing else may. Any thread
    may call any method.

    Args:
        names: of all ranks, for the messages.
        store: torch's store, which all ranks can read.
        has_store: whether the store ends with this process.
        timeout: seconds of silence after which a rank is lost.

    Attributes:
        failure: why this run cannot go on, None as long as it can.
        wakeup: is set when a rank wants to stop or is lost. If it is set here, all ranks stop. None
            before the run can save anything; until then the loss of a rank ends the process.
        tell: returns what each message tells rank 0, in JSON's types.
        hear: called in rank 0 with what a rank has told.
        waits: whether this rank waits for the others.
        late: the names of the ranks for whose batches the others wait.
        awaited: the name of the rank whose message this rank waits for.
    """

    def __init__(
        self, rank: int, names: list[str], store: dist.Store, has_store: bool, timeout: float
    ):
        self.failure: RankLost | None = None
        self.wakeup: PipeEvent | None = None
        self.tell: Callable[[], dict[str, Any]] = dict
        self.hear: Callable[[int, dict[str, Any]], None] = lambda rank, told: None
        self.waits = False
        self.late: list[str] = []
        self.awaited = ""
        self._rank, self._names, self._timeout = rank, names, timeout
        self._store, self._has_store = store, has_store
        self._peers = list(range(1, len(names))) if rank == 0 else [0]
        self._left: set[int] = set()  # the peers that have said goodbye
        self._end = ""  # this rank's goodbye, once it has one
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse of ranks", daemon=True)
        self._thread.start()

    def close(self, end: str) -> None:
        """Says goodbye, DONE or why this rank has failed. Rank 0 waits for the others."""
        self._end = end
        self._closing.set()
        self._thread.join(self._timeout + 2 * LATER_S)  # the pulse itself gives up before

    def why_broken(self, error: RuntimeError) -> RankLost:
        """Why an operation of the ranks has failed. The pulse notices the same loss, and names the
        rank."""
        self._thread.join(LATER_S)
        if self.failure is None:
            self.fail(f"the ranks have lost each other ({str(error).splitlines()[0]})")
        assert self.failure is not None
        return self.failure

    def wants_to_stop(self) -> bool:
        return self.wakeup is not None and self.wakeup.is_set()

    def _beat(self) -> None:
        try:
            while self.failure is None:
                end = self._end
                if self._rank > 0:
                    self._report(end)
                else:
                    self._ask(end)
                if end and (self._rank > 0 or end != DONE or not self._peers):
                    return
                self._closing.wait(PULSE_S)
        except RankLost as error:
            self.fail(str(error))
        except BaseException as error:
            self.fail(f"{self._names[self._rank]} failed: {error!r}")

    def _report(self, end: str) -> None:
        """Sends a message to rank 0 and takes its answer."""
        try:
            told = {"told": self.tell(), "waits": self.waits}
            self._send(0, told | {"stop": self.wants_to_stop(), "end": end})
            answer = self._receive(0, self._timeout + LATER_S)
        except RankLost as error:
            raise RankLost(self._lost_says_rank_0() or str(error)) from error
        self.late = answer["late"]
        self._take(0, answer)

    def _ask(self, end: str) -> None:
        """In rank 0: takes a message from each other rank, and then answers all of them."""
        by, stop = time.monotonic() + self._timeout, self.wants_to_stop()
        lost: dict[int, str] = {}
        late = [] if self.waits else [self._names[self._rank]]
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
            late += [] if message["waits"] else [self._names[peer]]
            self._take(peer, message)
        self.late = late
        why = "; ".join(lost.values()) or str(self.failure or "")
        for peer in self._peers:
            with contextlib.suppress(*[RankLost] if lost else []):
                if peer not in lost:
                    self._send(peer, {"stop": stop, "end": end, "late": self.late, "lost": why})
        if lost:
            raise RankLost(why)
        self._peers = [peer for peer in self._peers if peer not in self._left]

    def _take(self, peer: int, message: dict[str, Any]) -> None:
        if message["end"]:
            self._left.add(peer)
        if message["end"] not in ("", DONE):
            self.fail(f"{self._names[peer]} failed: {message['end']}")
        elif message.get("lost"):
            self.fail(message["lost"])
        elif message["stop"] and self.wakeup is not None:
            self.wakeup.set()

    def _lost_says_rank_0(self) -> str:
        """Whom rank 0 has lost, if the store can still be read, else "". When rank 0 loses a rank,
        gloo closes its connections to all of them."""
        found: list[bytes] = []

        def look() -> None:
            with contextlib.suppress(RuntimeError):
                self._store.wait(["lost"], timedelta(seconds=2))
                found.append(self._store.get("lost"))

        looking = threading.Thread(target=look, daemon=True)  # it hangs if the store is away
        looking.start()
        looking.join(3.0)
        return found[0].decode() if found else ""

    def _send(self, peer: int, message: dict[str, Any]) -> None:
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        for part in (torch.tensor([len(data)]), data):
            self._transfer(peer, dist.isend, part)

    def _receive(self, peer: int, timeout: float) -> dict[str, Any]:
        self.awaited = self._names[peer]
        size = torch.zeros(1, dtype=torch.int64)
        self._transfer(peer, dist.irecv, size, timedelta(seconds=timeout))
        data = torch.zeros(int(size), dtype=torch.uint8)
        self._transfer(peer, dist.irecv, data, timedelta(seconds=timeout))
        self.awaited = ""
        return json.loads(data.numpy().tobytes())

    def _transfer(self, peer: int, transfer: Callable, data: torch.Tensor, *limit: Any) -> None:
        try:
            transfer(data, peer).wait(*limit)
        except RuntimeError as error:
            if "imed out" in str(error):
                why = f"has given no sign of life for {self._timeout:g} s (--rank_timeout)"
                raise RankSilent(f"{self._names[peer]} {why}") from error
            why = "has ended or cannot be reached any more"
            raise RankLost(f"{self._names[peer]} {why}") from error

    def fail(self, why: str) -> None:
        """Records why the run cannot go on, and ends it."""
        if self.failure is not None:
            return
        self.failure = RankLost(why)
        logger.error("%s", why)
        if self._rank == 0:
            with contextlib.suppress(RuntimeError):
                self._store.set("lost", why)
        if self.wakeup is None:  # nothing to save
            self.end_now()
        else:
            self.wakeup.set()

    def end_now(self) -> None:
        """Ends this process after the loss of a rank. The usual end would destroy the groups, and
        so wait for an operation that waits for the lost rank."""
        if self.failure is not None:
            if self._has_store:
                time.sleep(LATER_S)  # so that the others can read in it who is lost
            logging.shutdown()
            os._exit(1)
