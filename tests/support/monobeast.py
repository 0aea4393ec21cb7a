# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Runs MonoBeast in the test's own process, with small settings."""

import contextlib
import logging

import pytest
import torch

import monobeast
from libtorchbeast.rollouts import rollout_shapes

CATCH = ("--env", "tests.support.envs:Catch-v0")
PARALLEL = (*CATCH, *"--num_actors 2 --envs_per_actor 4 --batch_size 4 --log_every 0.5".split())
FOREVER = (*PARALLEL, "--total_steps", 1_000_000_000)
IN_ORDER = (*CATCH, *"--num_actors 0 --envs_per_actor 4 --batch_size 4 --precision fp32".split())


@contextlib.contextmanager
def as_it_was():
    """Undoes what a beast's `main` changes in this process: logging, and torch's threads."""
    root, threads = logging.getLogger(), torch.get_num_threads()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:], root.level = handlers, level
        torch.set_num_threads(threads)


def beast(savedir, *flags, program=monobeast):
    """Runs MonoBeast, or another program, in this process."""
    words = ["--savedir", savedir, "--xpid", "run", *flags]
    program.main([str(word) for word in words])


def refusal(savedir, *flags, program=monobeast):
    """Returns the line with which the program refuses to start."""
    with pytest.raises(SystemExit) as refused:
        beast(savedir, *flags, program=program)
    message = refused.value.code
    assert isinstance(message, str) and "\n" not in message  # Python prints it and exits with 1
    return message


def parse(*flags):
    return monobeast.parse([str(word) for word in flags])


def unroll(actor, T, version=0):
    """A rollout [T+1, N, ...] of MonoBeast's actor, which begins with the newest row, in memory
    that was not zero before."""
    row = {name: torch.from_numpy(x) for name, x in actor.row.items()}
    shapes = rollout_shapes(row, actor.core_state, T, len(row["reward"]))
    rollout = {k: torch.ones(shape, dtype=dtype) for k, (shape, dtype) in shapes.items()}
    actor.unroll({k: x.numpy() for k, x in rollout.items()}, version)
    return rollout
