# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast's inference: a replay computes what it has stored, and no batch mixes two versions."""

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import polybeast
from libtorchbeast import BatchingQueue, DynamicBatcher, describe, models
from libtorchbeast.distributions import Categorical
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.loggers.timing import INFERENCE_ACTIVITIES, Clock
from libtorchbeast.rollouts import core_state_of
from libtorchbeast.rpcenv.client import spec_of
from libtorchbeast.weights import NewestWeights
from tests.support.actors import CLOSE
from tests.support.polybeast import SMALL, parse
from tests.support.pools import playing, serving
from tests.support.small_nets import Flicker

pytestmark = pytest.mark.usefixtures("as_before")


class Deep(polybeast.Net):
    """Starts every episode from ones. Its weights are as large as after some training: what is
    wrong must show."""

    def __init__(self, spec, flags):
        super().__init__(spec, flags)
        with torch.no_grad():
            nn.init.orthogonal_(self.policy.weight, 2.0)

    def initial_state(self, batch_size):
        return tuple(torch.ones_like(state) for state in super().initial_state(batch_size))


@torch.no_grad()
def test_replaying_a_rollout_with_the_weights_that_made_it_reproduces_it(tmp_path):
    flags = parse(*"--env CartPole-v1 --precision fp32 --core lstm --savedir".split(), tmp_path)
    addresses = [f"unix:{tmp_path}/{i}" for i in range(2)]
    queue, clock = BatchingQueue(2, 2), Clock(INFERENCE_ACTIVITIES)
    with contextlib.ExitStack() as stack:
        for address in addresses:
            stack.enter_context(serving(Flicker, address, num_envs=4))
        torch.manual_seed(1)
        spec = spec_of(describe(addresses[0]))
        net, own = (models.make_net(Deep, spec, flags) for _ in range(2))
        run = SimpleNamespace(flags=flags, stats=Stats(spec.num_envs))
        weights = NewestWeights(net.state_dict(), 7, torch.device("cpu"))
        parts = clock, models.act_on
        infer = lambda batcher, own: polybeast.infer(run, batcher, weights, own, *parts)
        play = playing(addresses, own, queue, net.initial_state(1), infer=infer)
        pool = stack.enter_context(play)
        batches = [queue.dequeue() for _ in range(30)]
        assert pool.take_events() == []
    differs = 0
    for batch in batches:
        rows = {k: v for k, v in batch.items() if not k.startswith("core_state/")}
        outputs, _ = net(rows, core_state_of(batch))
        for name in ("policy_logits", "baseline"):
            torch.testing.assert_close(batch[name], outputs[name], **CLOSE)
            assert batch[name].std() > 0.01  # else there would be nothing to compare
        assert batch["policy_version"].eq(7).all()
        assert batch["policy_version"].dtype == torch.int64
        forgotten, _ = net(rows, net.initial_state(2))
        differs += not torch.allclose(forgotten["policy_logits"], batch["policy_logits"])
    assert differs > 0
    done = torch.cat([batch["done"] for batch in batches], dim=1)
    assert done[0].any() and done[1:-1].any() and done[-1].any()


class ShowsItsWeights(nn.Module):
    """A network whose weights all are the same number. Each layer outputs this number."""

    distribution = Categorical(1)

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(20)])

    def fill(self, version):
        return {k: torch.full_like(v, version % 256) for k, v in self.state_dict().items()}

    def forward(self, inputs, core_state):
        one = torch.ones_like(inputs["reward"]).unsqueeze(-1)
        numbers = torch.cat([layer(one) for layer in self.layers], dim=-1)  # [1, B, 20]
        return dict(policy_logits=numbers, baseline=numbers[..., 0]), core_state


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_inference_batch_is_of_one_version_of_the_weights_which_it_names(tmp_path, precision):
    """This holds with autocast, too, which caches casts. Numbers below 256 are exact in bf16."""
    flags = parse(*SMALL, "--precision", precision, "--savedir", tmp_path)
    net = ShowsItsWeights()
    run = SimpleNamespace(flags=flags, stats=Stats(1))
    weights = NewestWeights(net.fill(0), 0, torch.device("cpu"))
    batcher, wanted = DynamicBatcher(1, 8, 1.0), 50
    seen = [set(), set()]

    def ask(number):
        while len(seen[number]) < wanted:
            outputs, _ = batcher.compute({"reward": torch.zeros(1, 2 + number)})
            (version,) = set(outputs["policy_version"].flatten().tolist())
            assert outputs["policy_logits"].eq(version % 256).all()
            seen[number].add(version)

    with ThreadPoolExecutor(4) as pool:
        inference = []
        for own in (ShowsItsWeights(), ShowsItsWeights()):
            clock = Clock(INFERENCE_ACTIVITIES)
            parts = run, batcher, weights, own, clock, models.act_on
            inference.append(pool.submit(polybeast.infer, *parts))
        asking = [pool.submit(ask, number) for number in range(2)]
        for version in itertools.count(1):
            weights.publish(net.fill(version), version)
            if all(thread.done() for thread in asking) or any(t.done() for t in inference):
                break
        batcher.close()
        for thread in inference + asking:
            thread.result()
    assert min(map(len, seen)) >= wanted
