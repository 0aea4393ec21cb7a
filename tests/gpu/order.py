# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The order of events on the device: what an update and an inference batch cost, and races."""

import contextlib
import functools
import linecache
import random
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from libtorchbeast import learner, models, weights
from libtorchbeast.accelerator import devices
from libtorchbeast.accelerator.devices import device_stream, to_device
from tests.faults.harness import Figure
from tests.gpu import timing, work
from tests.gpu.stages import Answers
from tests.support import simulated_device as sim

WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "hipStreamSynchronize")
DELAY_CYCLES = 4_000_000  # two milliseconds of a GPU

Mode = Callable[[], contextlib.AbstractContextManager]  # makes a context for one thread


# ========================================================================================== budgets
def budgets(device: str, quick: bool) -> Answers:
    """Kernels, graphs, copies and waits of an update and of an inference batch. Each waits once."""
    there = torch.device(device)
    if there.type not in ("cuda", sim.NAME):
        yield f"Nothing counts the kernels of {device}."
        return
    T, B = (3, 2) if quick else (20, 8)
    for title, name, words in work.cases(quick):
        flags = work.flags_of(name, device, *words)
        net = work.make_net(name, flags)
        batch = work.make_batch(net, T, B)
        _, update = work.trainer(net, flags, there)
        yield from costs(f"{title}: update", functools.partial(update, batch), there)
        acting, row = work.on(net, there), work.row_of(batch)

        def infer(acting=acting, row=row, flags=flags):
            with models.autocast(acting, flags.precision, there):
                models.act_on(acting, *to_device(row, there))

        yield from costs(f"{title}: inference batch", infer, there)


def costs(what: str, function: Callable[[], object], device: torch.device) -> Answers:
    with device_stream(device):
        for _ in range(timing.FIRST_CALLS):
            function()
        timing.wait_for(device)
        counts = counts_of_cuda(function) if device.type == "cuda" else counts_of_sim(function)
        timing.wait_for(device)  # others may get the memory of what the function has used
    limits = dict(kernels=None, graphs=None, to_device=1, to_host=None, waits=1)
    for name, at_most in limits.items():
        yield Figure(f"{what}: {name.replace('_', ' ')}", counts.get(name, 0), "", at_most)
    for where in counts.get("hidden", ()):  # torch itself says so
        yield f"{what}: a hidden wait in {where}"
    if "hidden" in counts:
        yield Figure(f"{what}: hidden waits", len(counts["hidden"]), "", 0)


def counts_of_sim(function: Callable[[], object]) -> dict[str, Any]:
    sim.counts.clear()
    function()
    return dict(sim.counts)


def counts_of_cuda(function: Callable[[], object]) -> dict[str, Any]:
    """Counts with torch's profiler. `hidden` has the places where `set_sync_debug_mode` sees a
    wait, except calls of `synchronize`."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    said = [w for w in seen if "synchronizing CUDA operation" in str(w.message)]
    is_asked = lambda w: ".synchronize()" in linecache.getline(w.filename, w.lineno)
    hidden = [f"{w.filename}:{w.lineno}" for w in said if not is_asked(w)]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        function()
    events = profiler.events()
    there = [e.name for e in events if e.device_type == DeviceType.CUDA and not is_note(e.name)]
    copies = {"to_device": "Memcpy HtoD", "to_host": "Memcpy DtoH", "others": "Mem"}
    counts = {key: sum(n.startswith(text) for n in there) for key, text in copies.items()}
    counts["kernels"] = len(there) - counts.pop("others")
    counts["graphs"] = sum(e.name in ("cudaGraphLaunch", "hipGraphLaunch") for e in events)
    return counts | {"waits": sum(e.name in WAITS for e in events), "hidden": hidden}


def is_note(name: str) -> bool:
    """Whether it is a mark of torch's own among the kernels."""
    return name.startswith(("Optimizer.", "ProfilerStep"))


# ============================================================================================ races
class NeverWaits(devices.Event):
    """A deliberate mistake, which every check has to find."""

    def wait(self):
        pass


def races(device: str, quick: bool) -> Answers:
    """Learner and inference threads in their streams, with checks of who waits for whom; and the
    same with a mistake, to show that the checks see one."""
    there, times = torch.device(device), 1 if quick else 3
    if there.type == "cuda":
        yield from watched("torch.cuda._sanitizer", there, sanitizer(), times, numbers=False)
    if there.type == sim.NAME:
        with mock.patch.object(learner, "threading", types.SimpleNamespace(RLock=sim.RLock)):
            mode = contextlib.nullcontext
            yield from watched("the simulated device", there, mode, times, numbers=False)
    else:
        yield from watched("delayed streams", there, delays(there), times, numbers=True)


def sanitizer() -> Mode:
    """torch.cuda._sanitizer as a context for each thread. By itself it watches one thread only."""
    from torch.cuda import _sanitizer

    class InThisThread(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return _sanitizer.cuda_sanitizer.dispatch.__torch_dispatch__(func, types, args, kwargs)

    return InThisThread


def delays(device: torch.device) -> Mode:
    """The work of each stream is put off again and again, so that whoever does not wait for it
    reads too early. The numbers must be those without delays."""

    class Delays(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if random.random() < 0.1:
                put_off(device)
            return func(*args, **(kwargs or {}))

    return Delays


def put_off(device: torch.device) -> None:
    """Keeps the current stream busy for a while."""
    if device.type == "cuda":
        torch.cuda._sleep(DELAY_CYCLES)
    elif devices.has_streams(device):
        matrix = torch.empty(1024, 1024, device=device)
        for _ in range(20):
            matrix @ matrix


def watched(what: str, device: torch.device, mode: Mode, times: int, numbers: bool) -> Answers:
    """Lives in the context `mode()` in every thread, first as it should be, then with a mistake.

    Args:
        times: how often the mistake is made.
        numbers: whether a race shows in the numbers, and not as an error.
    """
    for lstm in (False, True):
        expected = live(device, lstm) if numbers else None
        wrong, said = races_seen(device, lstm, mode, expected)
        title = f"{what}{', LSTM' * lstm}"
        if said:
            yield f"{title}: {said}"
        yield Figure(f"{title}: races, or tensors that are wrong", wrong, "", 0)
    if devices.has_streams(device):
        with mock.patch.object(weights, "Event", NeverWaits):
            seen = sum(races_seen(device, True, mode, expected)[0] > 0 for _ in range(times))
        yield Figure(f"{what}: a deliberate race is seen, of {times} times", seen, "", None, 1)


def races_seen(
    device: torch.device, lstm: bool, mode: Mode, expected: list[torch.Tensor] | None
) -> tuple[int, str]:
    """How many tensors are not as expected, or 1 and what was raised."""
    try:
        with in_every_thread(mode):
            seen = live(device, lstm)
    except Exception as error:
        return 1, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if expected is None:
        return 0, ""
    assert len(seen) == len(expected), "it made other tensors"
    pairs = zip(seen, expected, strict=True)
    return sum(not torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs), ""


def live(device: torch.device, lstm: bool = False) -> list[torch.Tensor]:
    """All tensors that two learner threads and two inference threads make in a short life."""
    from tests.support.device_life import Life

    leaves = pytree.tree_leaves(Life(device, device, *["--use_lstm"] * lstm).live())
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def in_every_thread(mode: Mode) -> Iterator[None]:
    """A context in which this thread, and each that begins, is in the context `mode()`."""
    run = threading.Thread.run

    def run_in_mode(thread: threading.Thread) -> None:
        with mode():
            run(thread)

    with mock.patch.object(threading.Thread, "run", run_in_mode), mode():
        yield
