# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Threads that use queues and batchers. Their failures reach the test, and none hangs for ever."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

GUARD_S = 60.0  # only ends tests that hang; no test depends on its value


@contextlib.contextmanager
def guarded(*closables):
    """Closes the objects at the end. If the test hangs, closes them earlier, so that every wait on
    them fails."""
    close = lambda: [closable.close() for closable in closables]
    timer = threading.Timer(GUARD_S, close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        close()


def in_thread(function, *args):
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *args)
    pool.shutdown(wait=False)
    return future


def bytes_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def answer(batcher, net):
    """Runs in an inference thread. It answers each batch with net(inputs, core_state)."""
    for batch in batcher:
        batch.set_outputs(net(*batch.get_inputs()))
