# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""An ActorPool with real servers, and the rollouts that it should make."""

import contextlib

import gymnasium
import torch

from libtorchbeast import ActorPool, DynamicBatcher, describe
from libtorchbeast.environment import Environment
from libtorchbeast.rpcenv.server import Server
from tests.support.extension import GUARD_S, answer, guarded, in_thread

T = 5


def make_cartpole():
    return gymnasium.make("CartPole-v1")


def by_rule(inputs, core_state=()):
    """A network whose outputs [1, N] depend only on the row."""
    number = 7 * inputs["episode_step"].long() + inputs["last_action"] + inputs["done"].long()
    outputs = {
        "action": number % 2,
        "policy_logits": number.unsqueeze(-1) * torch.tensor([0.1, -0.3]),
        "baseline": inputs["episode_return"] / 3,
    }
    return outputs, core_state


@contextlib.contextmanager
def serving(create_env, address, num_envs=2, seed=0, name="Test-v0", **options):
    make_environment = lambda: Environment(create_env, num_envs, name)
    server = Server(make_environment, str(address), seed=seed, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def playing(addresses, net, queue, core_state=(), batcher=None, infer=answer, T=T, **options):
    """Yields a pool, beside a thread that runs `infer(batcher, net)`. If that fails, the test
    fails."""
    batcher = batcher or DynamicBatcher(1, 64, 20.0)

    def infer_and_close():
        try:
            infer(batcher, net)
        finally:
            queue.close()  # wakes whoever waits for a rollout

    with guarded(batcher, queue):
        spec = describe(addresses[0])
        pool = ActorPool(T, queue, batcher, addresses, core_state, spec, **options)
        with guarded(pool):
            inference = in_thread(infer_and_close)
            try:
                yield pool
            finally:
                pool.close()
                inference.result(GUARD_S)


def expected_rollouts(create_env, num_envs, seed, count, net=by_rule):
    """Steps the environments in this process and returns `count` rollouts."""
    rows = []
    with contextlib.closing(Environment(create_env, num_envs)) as environment:
        row = environment.initial(seed)
        for t in range(count * T + 1):
            row = {name: torch.from_numpy(array.copy()) for name, array in row.items()}
            outputs, _ = net({name: tensor.unsqueeze(0) for name, tensor in row.items()})
            rows.append(row | {name: tensor.squeeze(0) for name, tensor in outputs.items()})
            row = environment.step(rows[t]["action"].numpy())
    return [
        {name: torch.stack([row[name] for row in rows[k * T : k * T + T + 1]]) for name in rows[0]}
        for k in range(count)
    ]
