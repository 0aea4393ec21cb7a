# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Graphs of the simulated device. Recording keeps its kernels; replaying runs them again, on the
memory that they had. What a real graph does not do is not done here either:

- While it is recorded nothing happens: memory that was there before stays as it was, and that of
  the graph is rubbish until the first replay.
- Python does not run at a replay. So a replay knows no new addresses and no new numbers.
- The host can neither read nor copy while a graph is recorded. Nothing is recorded in the default
  stream.
- A graph does not keep the memory of others. If that is gone at a replay, this raises Race.

For the books a replay is one kernel, which reads and writes all memory that it uses. `counts` has
the number of replays as `graphs`.
"""

import weakref

import torch

from tests.support import simulated_device as sim
from tests.support.simulated_device import _tensors


class Graph:
    """Stands for torch.accelerator.Graph."""

    def __init__(self, keep_graph: bool = False, *, pool=None, capture_error_mode="default"):
        assert capture_error_mode == "thread_local", "other threads work while one records"
        self._tape: list[tuple] = []  # function, arguments, and the tensors of its results
        self._before: dict[int, tuple] = {}  # memory of others that was written, and what it had
        self._own: dict[int, torch.UntypedStorage] = {}
        self._read, self._written = weakref.WeakSet(), weakref.WeakSet()
        self._others: list[weakref.ref] = []
        self._is_spoilt = False

    def capture_begin(self) -> None:
        stream = sim.current_stream()
        if stream is sim.default_stream(stream.device):
            raise RuntimeError("a graph cannot be recorded in the default stream")
        sim._thread.graph = self

    def capture_end(self) -> None:
        sim._thread.graph = None
        for storage, before in self._before.values():
            storage.copy_(before)
        for storage in self._own.values():
            torch.empty(0, dtype=torch.uint8).set_(storage).fill_(0x7F)
        if self._is_spoilt:
            raise RuntimeError("the recording failed because of an earlier error")

    def refuse(self, what: str) -> None:
        self._is_spoilt = True
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    def begin(self, name: str, func, args: tuple, kwargs: dict) -> None:
        """A kernel comes, which is run because the shapes of its results must be known."""
        if func in sim._WAIT:
            self.refuse(name)
        read, written = sim._uses(func, args, kwargs)
        for block in (*read, *written):
            if block.graph is not self:
                self._others.append(weakref.ref(block))
        self._read.update(block for block in read if block.graph is not self)
        self._written.update(written)
        for tensor in sim._sims((args, kwargs)):
            storage = tensor.inner.untyped_storage()
            if tensor.block in written and tensor.block.graph is not self:
                self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
            elif tensor.block.graph is self:
                self._own[storage.data_ptr()] = storage

    def end(self, func, inner: tuple, outputs) -> None:
        """The kernel has run on `inner`, its arguments (args, kwargs)."""
        used = {x.untyped_storage().data_ptr() for x in _tensors(inner)}
        new = [x for x in _tensors(outputs) if x.untyped_storage().data_ptr() not in used]
        for x in new:
            self._own[x.untyped_storage().data_ptr()] = x.untyped_storage()
        self._tape.append((func, inner, new))

    def adopt(self, block) -> "Graph":
        """The block is new memory of this graph."""
        self._written.add(block)
        return self

    @torch.no_grad()
    def replay(self) -> None:
        if any(block() is None for block in self._others):
            raise sim.Race("a graph uses memory that was given up since it was recorded")
        written = list(self._written)
        read = [block for block in self._read if block not in written]
        sim._begin(sim.current_stream(), "a graph", read, written)
        sim.counts["graphs"] += 1
        for func, (args, kwargs), kept in self._tape:
            results = _tensors(func(*args, **kwargs))
            used = {x.untyped_storage().data_ptr() for x in _tensors((args, kwargs))}
            new = [x for x in results if x.untyped_storage().data_ptr() not in used]
            for mine, x in zip(kept, new, strict=True):
                mine.copy_(x)
