# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The time that work takes on a device."""

import time
from collections.abc import Callable

import torch

from libtorchbeast.accelerator import devices, graphs
from libtorchbeast.accelerator.devices import device_stream

FIRST_CALLS = graphs.WARM_UP + graphs.CHECKED  # after them whatever can be a graph is one


def wait_for(device: torch.device) -> None:
    """Waits until the calling thread's stream has done its work."""
    if devices.has_streams(device):
        torch.accelerator.current_stream(device).synchronize()
    elif device.type != "cpu":
        torch.accelerator.synchronize()


def seconds_of(function: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The mean time of a call, of as many as take `seconds` together, in a stream of its own."""
    with device_stream(device):
        for _ in range(FIRST_CALLS):
            function()
        wait_for(device)
        count, start = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - start < seconds:
            function()
            count += 1
        wait_for(device)
        return (time.perf_counter() - start) / count
