# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MonoBeast's actors: a replay computes what they have stored, and failed ones are replaced."""

import contextlib
import dataclasses
import functools
import itertools
import os
import signal
from multiprocessing import Pipe

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import monobeast
from libtorchbeast import models, opening, recipes, shared_memory
from libtorchbeast.actors import ActorMemory, check_limits
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError, replace
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, Clock
from libtorchbeast.rollouts import core_state_of
from libtorchbeast.transitions import learn_from
from tests.faults import environments
from tests.support.actors import (
    CLOSE,
    ROLLOUTS,
    A,
    Counting,
    N,
    OnesNet,
    RuleNet,
    T,
    make_actor,
    make_flags,
    make_rollouts,
    rows_of,
)
from tests.support.monobeast import beast
from tests.support.processes import Program, wait_for

pytestmark = pytest.mark.usefixtures("as_before")


@pytest.fixture(scope="module", params=["--core lstm", ""], ids=["recurrent", "feed-forward"])
def any_net(request):
    """Returns the network and its rollouts, which have resets at row 0, inside and at row T, rows 0
    inside an episode, and columns that differ."""
    actor = make_actor(OnesNet, *request.param.split())
    rollouts = make_rollouts(actor)
    assert len(actor.net.given) == 1 + ROLLOUTS * T  # one forward for each row
    done = torch.stack([rollout["done"] for rollout in rollouts])
    assert done[1:, 0].any() and done[:, 1:-1].any() and done[:, -1].any()
    assert (~done[1:, 0]).any()
    assert len({tuple(row) for row in done.flatten(0, 1).tolist()}) > 3
    return actor.net, rollouts


@torch.no_grad()
def test_replaying_a_rollout_reproduces_its_logits_and_values(any_net):
    net, rollouts = any_net
    for rollout in rollouts:
        outputs, _ = net(rows_of(rollout), core_state_of(rollout))
        for name in ("policy_logits", "baseline"):
            torch.testing.assert_close(rollout[name], outputs[name], **CLOSE)
            assert rollout[name].std() > 0.01  # else there would be nothing to compare


def test_each_rollout_goes_on_where_the_one_before_ended(any_net):
    """Row T is row 0 of the next, bit for bit. So that row carries the version of the weights that
    chose its action, as all others do."""
    _, rollouts = any_net
    for k, (rollout, after) in enumerate(itertools.pairwise(rollouts)):
        for name, value in rows_of(rollout).items():
            assert value[-1].numpy().tobytes() == after[name][0].numpy().tobytes(), name
        assert rollout["policy_version"].dtype == torch.int64
        assert rollout["policy_version"].T.tolist() == [[k] + [k + 1] * T] * N


def test_an_action_leads_to_the_next_row(any_net):
    for rollout in any_net[1]:
        action, done = rollout["action"][:-1], rollout["done"][1:]
        assert torch.equal(rollout["last_action"][1:], action.masked_fill(done, 0))
        seen = rollout["frame"][1:, :, 1]
        assert torch.equal(seen, action.float().masked_fill(done, -1.0))


def describe(flags):
    own = monobeast.create_env, monobeast.Net, monobeast.Actor
    check, kinds = monobeast.check_flags, monobeast.RECIPES
    complete = functools.partial(recipes.complete, flags, check, recipes=kinds)
    with opening.describe(flags, complete, monobeast.act, *own) as (flags, spec, rollout, _):
        return flags, spec, {name: (tuple(x.shape), x.dtype) for name, x in rollout.items()}


def test_an_actors_very_first_row_carries_the_version_that_it_copied():
    """The version is not 0 after a resume, or in an actor that replaces another."""
    flags = make_flags()
    flags, spec, shapes = describe(flags)
    net = models.make_net(monobeast.Net, spec, flags)
    one = replace(flags, num_actors=1)
    memory = ActorMemory(num_actors=1)
    memory.times["opened"].fill_(N)  # by the first environment
    memory.shapes = shapes
    memory.reserve(one, net.state_dict(), 7)
    assert not any(tensor.any() for tensor in memory.times.tensors.values())
    full, outbox = Pipe(duplex=False)
    slots = iter([b"0"])
    other = dataclasses.replace(spec, observations={"frame": ((4,), "uint8")})
    with pytest.raises(UserError, match=r"differ: expected frame uint8\[4\] .* seen frame float32"):
        monobeast.act(slots, outbox, 0, 1, flags, other, memory)
    monobeast.act(slots, outbox, 0, 1, flags, spec, memory)
    assert full.recv_bytes() == b"0"
    assert memory.slots["policy_version"][0].eq(7).all()
    memory.close()


def test_batches_that_do_not_fit_into_memory_are_refused():
    flags, _, shapes = describe(make_flags())
    check_limits(flags, shapes)
    with pytest.raises(UserError, match=r"^--batch_size 10+: expected a smaller number"):
        check_limits(replace(flags, batch_size=10**12), shapes)


@pytest.mark.parametrize("words, slots, name", [
    (f"--batch_size {2 * N}", 1, "batch_size"),
    ("--batch_size 1", 1, "unroll_length"),
    (f"--num_actors 1 --num_buffers {9 * N} --batch_size {2 * N}", 9, "num_buffers"),
])  # fmt: skip
def test_rollouts_and_batches_must_fit_into_memory_together(monkeypatch, words, slots, name):
    flags, _, shapes = describe(make_flags(*words.split()))
    rollout = shared_memory.required_bytes(shapes)
    needed = slots * rollout + flags.batch_size * rollout // N
    monkeypatch.setattr(shared_memory, "available_bytes", lambda: needed)
    with pytest.raises(UserError, match=f"^--{name} [0-9]+: expected a smaller number"):
        check_limits(flags, shapes)
    monkeypatch.setattr(shared_memory, "available_bytes", lambda: needed + 1)
    check_limits(flags, shapes)


def test_shapes_are_learned_from_one_environment(monkeypatch):
    """A vector environment cannot be opened in part. Each gets a seed of its own."""
    seeds = []
    vector = lambda n: SyncVectorEnv([Counting] * n, autoreset_mode=AutoresetMode.NEXT_STEP)
    described = {}
    for name, make in (("one", Counting), ("vector", lambda: vector(N))):
        create_env = lambda flags, make=make: seeds.append(flags.env_seed) or make()
        monkeypatch.setattr(monobeast, "create_env", create_env)
        described[name] = describe(make_flags("--use_lstm", "--seed", "5"))
        assert seeds == [5]
        with contextlib.closing(monobeast.make_environment(make_flags(), 70)) as env:
            env.initial(0)
        assert seeds[1:] == ([70, 71, 72] if name == "one" else [70])
        seeds.clear()
    assert described["one"][1:] == described["vector"][1:]
    _, spec, shapes = described["one"]
    assert spec.num_envs == N and shapes["reward"][0] == (T + 1, N)
    assert shapes["core_state/0"][0][1] == N


def test_actions_and_outputs_of_the_nets_own_pass_through():

    class WithExtra(Counting):
        observation_space = Dict(frame=Counting.observation_space, extra=Box(0, 9, (2,), np.int16))

        def _show(self, action):
            return {"frame": super()._show(action), "extra": np.array([self._count, 1], np.int16)}

    actor = make_actor(RuleNet, "--use_lstm", create_env=WithExtra)
    for rollout in make_rollouts(actor):
        count = rollout["frame"][..., 0]
        assert rollout["action"].dtype == torch.int64
        assert torch.equal(rollout["action"], (count.long() + 1) % A)
        assert torch.equal(rollout["features"], rollout["frame"] * 2)
        assert rollout["count"].dtype == torch.int32
        assert torch.equal(rollout["count"], count.int())
        assert rollout["extra"].dtype == torch.int16
        assert torch.equal(rollout["extra"][..., 0], count.short())
        both, flags = (monobeast.targets, monobeast.loss), make_flags("--use_lstm")
        loss = learn_from(actor.net, rollout, None, *both, flags, 0.0)["total_loss"]
        assert torch.isfinite(loss) and loss.requires_grad


def test_a_networks_first_call_is_no_step_of_an_environment():
    """With --compile the first call is slow, but --step_timeout limits only environments."""
    clock = Clock(ACTOR_ACTIVITIES)
    timed = []

    class SlowNet(monobeast.Net):
        def forward(self, inputs, core_state=()):
            timed.append(clock.call_began[0] > 0)
            return super().forward(inputs, core_state)

    env = Environment(Counting, N, "counting")
    net = models.make_net(SlowNet, env.spec, make_flags())
    timed.clear()
    clock.begin_call()
    monobeast.Actor(env, net, 1, make_flags(), clock)
    assert timed == [False]


def test_actors_that_raise_hang_or_die_are_replaced_until_they_are_too_many(tmp_path):
    """A stopped actor delays no other, no rollout mixes two lives (the network would raise an
    error), and no actor counts as hung while the learner pauses. A second run in the same folder is
    refused meanwhile. The run ends with a checkpoint, and the log has the tracebacks."""
    orders = tmp_path / "orders"
    orders.mkdir()
    flags = [*environments.SMALL, "--num_actors", 2, "--envs_per_actor", 4, "--step_timeout", 2]
    flags += ["--max_actor_restarts", 3]
    flags += ["--open_timeout", 30]  # the actor may be stopped during its imports
    restarts = lambda: program.rows()[-1]["actor_restarts"]
    with Program(tmp_path, *flags, ORDERS=orders, PAUSE_S=3) as program:
        program.wait_for_step(20 * 8 * 20)  # after the pause
        for count, order in enumerate(("raise", "sleep")):
            assert restarts() == count
            (orders / order).touch()
            program.wait_for(lambda: restarts() > count)  # noqa: B023
        os.kill(min(program.actors()), signal.SIGKILL)
        program.wait_for(lambda: restarts() == 3)
        with pytest.raises((RuntimeError, SystemExit), match=f"in use by process {program.pid}"):
            beast(tmp_path, *flags, "--num_actors", 0)
        step = program.rows()[-1]["step"]
        os.kill(max(program.actors()), signal.SIGSTOP)  # the newest: the other one delivers
        assert program.wait_for_end() == 1
        wait_for(lambda: not program.session())
    printed, log = program.printed(), (program.path / "out.log").read_text()
    for told in (printed, log):
        assert "so ordered" in told and "in step" in told
        assert "took longer than --step_timeout 2 for one step" in told
        assert told.count("Its process ended without a traceback (exit code -9: Killed)") == 1
        assert "(--max_actor_restarts 3); the last, actor " in told.splitlines()[-1]
        assert "process object is closed" not in told  # the clean-up must not fail as well
    assert printed.strip().splitlines()[-1].startswith("monobeast: error: 4 actors failed within")
    assert program.step() > step and program.rows()[-1]["actor_restarts"] == 4
