# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A trained agent for other programs, which acts as `--mode test` does (docs/export.md)."""

import contextlib
import shlex
from typing import Any

import numpy as np
import torch

from libtorchbeast import checkpoint, evaluate, models
from libtorchbeast.environment import checked_leaf, checked_rewards, is_vector
from libtorchbeast.flags import UserError
from libtorchbeast.spec import brief, to_space

State = tuple[models.CoreState, np.ndarray]  # and the last actions


class Agent:
    """The newest checkpoint of a run.

    Args:
        program: the module that has trained it, such as `monobeast`.
        command: flags of its mode `test`, such as "--xpid pong --greedy". torch has the threads
            that the calling program gives it.

    Raises:
        UserError: those of `evaluate.load`, which opens and closes an environment of the run.
    """

    def __init__(self, program: Any, command: str):
        words = [*shlex.split(command), "--mode", "test", "--num_episodes", "1"]
        flags = program.check_flags(checkpoint.parse_for_run(program.make_parser, words))
        self.net, env = evaluate.load(flags, program.player, lambda said: None)
        with contextlib.closing(env):
            first = env.first
            self._space = first.single_action_space if is_vector(first) else first.action_space
        self.spec, self._flags = env.spec, flags

    def act(
        self, observation: Any, state: State | None = None, reward: Any = None, done: Any = False
    ) -> tuple[Any, State]:
        """Chooses an action for an observation, or actions for B of them.

        Args:
            observation: as the environment gives it, or arrays [B, ...] of observations.
            state: what the previous call returned; None where an episode begins.
            reward: of the last action, or [B].
            done: whether an episode begins, or bool [B]. Then reward and state do not count.

        Returns:
            The action as the environment takes it, or [B, ...], and the state for the next call.

        Raises:
            UserError: the observation differs from the run's, or a reward is missing.
        """
        leaves, parts = self.spec.parts_of(observation), self.spec.observations
        name, (shape, _) = next(iter(parts.items()))
        is_batch = np.ndim(leaves[name]) > len(shape)
        B = len(leaves[name]) if is_batch else 1
        if state is not None and len(state[1]) != B:
            raise UserError(f"expected observations for a state of {len(state[1])}, seen {B}")
        arrays = {k: np.asarray(x) if is_batch else np.asarray(x)[None] for k, x in leaves.items()}
        row = {k: checked_leaf(k, arrays[k], (B, *s), dtype) for k, (s, dtype) in parts.items()}
        row = {k: np.require(x, None, ["C", "W"]) for k, x in row.items()}  # as torch needs it
        self.spec.check_sets(row)
        for name, x in {"reward": reward, "done": done}.items():
            if np.shape(x) not in ((), (B,)):
                raise UserError(f"{name}: expected one or [{B}] of them, seen {brief(x)}")
        done = np.broadcast_to(np.logical_or(state is None, done), B).copy()
        zeros = self.spec.actions.zeros(B)
        core_state, last = state or (models.initial_state(self.net, B), zeros)
        if reward is None and not done.all():
            raise UserError("expected the last action's reward beside the state, seen None")
        told = np.broadcast_to(0.0 if reward is None else reward, B)
        reward = checked_rewards([0.0 if new else x for x, new in zip(told, done, strict=True)])
        row |= {"reward": reward.astype(np.float32), "done": done}
        begins = done.reshape(B, *[1] * (last.ndim - 1))
        row["last_action"] = np.where(begins, zeros, last)
        tensors = {k: torch.from_numpy(x)[None] for k, x in row.items()}  # [T = 1, B, ...]
        with models.autocast(self.net, self._flags.precision, torch.device("cpu")):
            outputs, core_state = models.act_on(self.net, tensors, core_state, self._flags.greedy)
        last = outputs["action"][0].numpy()
        actions = to_space(last, self._space)
        own = actions.tolist() if self.spec.actions.kind == "discrete" else actions
        return actions if is_batch else own[0], (core_state, last)
