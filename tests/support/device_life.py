# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What learner and inference do in a run, in short, on any devices: for tests of its order.

The threads of a run come one after the other here. On the simulated device this hides nothing,
because there a thread knows nothing of another's waits, except by a lock.
"""

import copy
import functools
import queue
import threading
from types import SimpleNamespace

import torch

import monobeast
import polybeast
from libtorchbeast import learner, models
from libtorchbeast.accelerator import devices, graphs
from libtorchbeast.loggers.stats import Stats
from libtorchbeast.loggers.timing import INFERENCE_ACTIVITIES, LEARNER_ACTIVITIES, Clock
from libtorchbeast.models import initial_state
from libtorchbeast.rollouts import batches
from libtorchbeast.weights import NewestWeights
from tests.support.actors import make_actor, make_flags, make_learner, make_rollouts, run_of
from tests.support.processes import GUARD_S

BATCH_SIZE = 3


class Worker:
    """A thread that calls `function` with an iterator, whose items come one by one from `give`."""

    def __init__(self, function):
        self._items, self._asked = queue.SimpleQueue(), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()
        self._wait()

    def give(self, item):
        """Waits until the thread has done all that it does with the item. Raises what it raises."""
        self._items.put(item)
        self._wait()

    def close(self):
        self.give(None)
        self._thread.join()

    def _iterate(self):
        while True:
            self._asked.put(None)
            item = self._items.get()
            if item is None:
                return
            yield item

    def _run(self, function):
        try:
            function(self._iterate())
            self._asked.put(None)
        except BaseException as error:
            self._asked.put(error)

    def _wait(self):
        if error := self._asked.get(timeout=GUARD_S):
            raise error


class Batch:
    """Stands for a batch of the C++ batcher: row t of a rollout."""

    def __init__(self, rollout, t, core_state):
        rows = {k: v[t : t + 1] for k, v in rollout.items() if not k.startswith("core_state/")}
        own = ("action", "policy_logits", "baseline", "policy_version")
        self.inputs = {k: v for k, v in rows.items() if k not in own}, core_state

    def __len__(self):
        return self.inputs[0]["reward"].shape[1]

    def get_inputs(self, into=None):
        if into is not None:
            pairs = zip(*map(devices.tensors_in, (into, self.inputs)), strict=True)
            for lent, own in pairs:
                lent.copy_(own)
        return into or self.inputs

    def set_outputs(self, outputs):
        self.outputs = copy.deepcopy(outputs)  # as the C++ core copies them at once


class Life:
    """A learner with two learner threads, and two inference threads, which take turns. `argv` are
    flags of MonoBeast, and `net` is the network's class."""

    def __init__(self, learner_device, inference_device, *argv, net=None):
        self.flags = make_flags(*argv)
        actor = make_actor(net or monobeast.Net, *argv)
        self.rollouts = make_rollouts(actor, 4)
        self.core_state = initial_state(actor.net, BATCH_SIZE)
        self.learner = make_learner(copy.deepcopy(actor.net), self.flags, learner_device)
        version = self.learner.updates
        self.weights = NewestWeights(self.learner.net.state_dict(), version, inference_device)
        self.nets = [copy.deepcopy(actor.net).to(inference_device) for _ in range(2)]
        graphs.for_inference(self.nets, BATCH_SIZE, self.flags)
        self.stats, self._left = Stats(BATCH_SIZE), list(self.rollouts)
        self._learners = [Worker(self._learn) for _ in range(2)]
        self._inference = [Worker(functools.partial(self._infer, net)) for net in self.nets]

    def _learn(self, rollouts):
        own = batches(((r, lambda: None) for r in rollouts), BATCH_SIZE, self.learner.device)
        clock = Clock(LEARNER_ACTIVITIES)
        learner.learn(run_of(self.learner, self.stats), own, self.weights.publish, clock)

    def _infer(self, net, asked):
        run = SimpleNamespace(flags=self.flags, stats=self.stats)
        clock = Clock(INFERENCE_ACTIVITIES)
        polybeast.infer(run, asked, self.weights, net, clock, models.act_on)

    def learn(self, number):
        """Learner thread `number` learns from the next rollout."""
        self._learners[number].give(self._left.pop(0))

    def infer(self, number):
        """Inference thread `number` answers two batches. Returns the answers."""
        asked = [Batch(self.rollouts[0], t, self.core_state) for t in range(2)]
        for batch in asked:
            torch.manual_seed(number)
            self._inference[number].give(batch)
        return [batch.outputs for batch in asked]

    def live(self):
        """The threads take turns. Returns all that they make."""
        made = [self.infer(0)]
        self.learn(0)
        self.learn(1)
        made += [self.infer(0), self.infer(1), self.learner.state_dict()]
        self.learn(0)
        made += [self.infer(1), self.infer(0)]
        self.learn(1)
        made += [self.infer(0), self.learner.state_dict()]
        for worker in self._learners + self._inference:
            worker.close()
        return made
