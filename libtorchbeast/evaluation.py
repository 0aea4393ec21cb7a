# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Evaluation while training: whole games, played in a process of their own."""

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import nn

from libtorchbeast import evaluate, workers
from libtorchbeast.environment import Environment
from libtorchbeast.learner import Learner
from libtorchbeast.seeds import derive_seed, seed_everything
from libtorchbeast.shared_memory import SharedWeights
from libtorchbeast.spec import Spec

logger = logging.getLogger(__name__)

LONGEST_S = 3600.0  # whose environment has not played its games by then hangs

# Makes a network and environments for a test mode. Another process must be able to import it.
Player = Callable[[argparse.Namespace], tuple[nn.Module, Environment]]


class Evaluator:
    """Every --eval_every steps, or as soon as the games before are over, --num_episodes games with
    the weights of that moment, as the mode `test` plays them. An evaluation that fails or hangs is
    logged; training goes on. One thread's.

    The process and its environments stay for the next evaluation: to import torch again would cost
    more than many games do."""

    def __init__(self, learner: Learner, spec: Spec, flags: argparse.Namespace, player: Player):
        self._learner, self._spec, self._player = learner, spec, player
        self._flags = argparse.Namespace(**vars(flags) | {"mode": "test"})
        self._process: workers.Process | None = None
        self._weights: SharedWeights | None = None
        self._is_playing = False
        self._step, self._started = 0, 0.0  # of the weights that play; when they began
        self._next = self._after(learner.step)

    def take(self, may_start: bool = True) -> dict[str, float]:
        """Looks at the games that are played and starts those that are due; returns columns for the
        log, once for each evaluation that has ended."""
        row = self._result() if self._is_playing else {}
        if may_start and not self._is_playing and self._learner.step >= self._next:
            self._start()
        return row

    def close(self) -> None:
        """Ends the games that are played, and the process. May be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.end(0.0)
        if self._weights is not None:
            self._weights.close()
        self._process, self._weights, self._is_playing = None, None, False

    def _after(self, step: int) -> int:
        every = self._flags.eval_every
        return (step // every + 1) * every

    def _start(self) -> None:
        state = self._learner.state_dict()
        self._step, self._next = state["step"], self._after(state["step"])
        try:
            self._give(state)
        except OSError as error:  # no memory, say, for one more process
            self._warn(f"failed: {error}")
            self.close()
            return
        self._process.send(b"play")
        self._started, self._is_playing = time.monotonic(), True

    def _give(self, state: dict[str, Any]) -> None:
        """Hands the weights to the process, and starts it where there is none."""
        if self._process is not None:
            self._weights.publish(state["model"], state["updates"])
            return
        # Not as a mere argument: who starts a process waits until it has read those.
        self._weights = SharedWeights(state["model"], state["updates"])
        args = (self._player, self._flags, self._spec.signature(), self._weights)
        self._process = workers.Process(play_games, args, name="evaluation")

    def _result(self) -> dict[str, float]:
        is_late = time.monotonic() > self._started + LONGEST_S
        if not self._process.has_message():
            if is_late:
                self._warn(f"has taken {LONGEST_S:g} s and is ended")
                self.close()
            return {}
        message = self._process.receive() or b"killed"
        self._is_playing = False
        if not message.startswith(b"{"):
            self._warn("failed: " + message.decode(errors="replace").strip().splitlines()[-1])
            self.close()
            return {}
        row = json.loads(message)
        logger.info("Evaluation at step %d: mean return %g", self._step, row["mean_eval_return"])
        return {"eval_step": self._step, **row}

    def _warn(self, what: str) -> None:
        logger.warning("The evaluation at step %d %s (--eval_every 0: none)", self._step, what)


def play_games(
    inbox: Iterator[bytes],
    outbox: Connection,
    player: Player,
    flags: argparse.Namespace,
    signature: dict[str, Any],
    weights: SharedWeights,
) -> None:
    """The process: for each message plays, with the newest weights, and sends the row's columns."""
    os.nice(5)  # training first
    torch.set_num_threads(1)
    net, env = player(flags)
    if env.spec.signature() != signature:
        raise ValueError(f"expected an environment {signature}, seen {env.spec.signature()}")
    net.eval()
    cpu_s = 0.0  # also of the imports
    for _ in inbox:
        seed = derive_seed(flags.seed, weights.copy_to(net))
        seed_everything(seed)
        games = evaluate.play(flags, net, env, seed)
        before, cpu_s = cpu_s, time.process_time()
        row = {
            "mean_eval_return": float(np.mean([game.score for game in games])),
            "eval_cpu_s": cpu_s - before,
        }
        outbox.send_bytes(json.dumps(row).encode())
    env.close()
