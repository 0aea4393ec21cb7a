# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Threads at queues and batchers, in which a failure is seen and nothing hangs."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

GUARD_S = 60.0  # no test depends on it: it only ends one that hangs


@contextlib.contextmanager
def guarded(*closables):
    """Closes them in the end; and should the test hang, so that what waits at them fails."""
    close = lambda: [closable.close() for closable in closables]
    timer = threading.Timer(GUARD_S, close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        close()


def in_thread(function, *args):
    """Runs it and returns a future that raises what it raised."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *args)
    finally:
        pool.shutdown(wait=False)


def bytes_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def answer(batcher, net, sizes=None):
    """An inference thread: net(inputs, core_state) gives the outputs of each batch."""
    for batch in batcher:
        if sizes is not None:
            sizes.append(len(batch))
        batch.set_outputs(net(*batch.get_inputs()))
