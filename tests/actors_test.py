# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MonoBeast's actors: a replay computes what they have stored, and failed ones are replaced."""

import contextlib
import dataclasses
import os
import signal
from multiprocessing import Pipe

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import monobeast
from libtorchbeast import models
from libtorchbeast.actors import ActorMemory, check_limits
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError, replace
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, Clock
from libtorchbeast.losses import learn_from
from libtorchbeast.rollouts import core_state_of
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
from tests.support.monobeast import FOREVER, beast
from tests.support.processes import Program, wait_for

pytestmark = pytest.mark.usefixtures("as_before")


@pytest.fixture(scope="module")
def recurrent():
    """Returns the network, its rollouts, and the states of all calls of its forward."""
    actor = make_actor(OnesNet, "--use_lstm")
    rollouts = make_rollouts(actor)
    given, actor.net.given = actor.net.given, []
    return actor.net, rollouts, given


@pytest.fixture(params=["recurrent", "feed-forward"])
def any_net(request):
    if request.param == "recurrent":
        return request.getfixturevalue("recurrent")[:2]
    actor = make_actor(OnesNet)
    return actor.net, make_rollouts(actor)


def test_the_rollouts_hold_every_case(recurrent):
    """Resets at row 0, inside and at row T, and rows that are both first and inside an episode."""
    done = torch.stack([rollout["done"] for rollout in recurrent[1]])
    assert done[1:, 0].any() and done[:, 1:-1].any() and done[:, -1].any()
    assert (~done[1:, 0]).any()
    assert len({tuple(row) for row in done.flatten(0, 1).tolist()}) > 3  # columns reset apart


@torch.no_grad()
def test_replaying_a_rollout_reproduces_its_logits_and_values(any_net):
    net, rollouts = any_net
    for rollout in rollouts:
        outputs, _ = net(rows_of(rollout), core_state_of(rollout))
        for name in ("policy_logits", "baseline"):
            torch.testing.assert_close(rollout[name], outputs[name], **CLOSE)
            assert rollout[name].std() > 0.01  # else there would be nothing to compare


@torch.no_grad()
def test_replaying_a_rollout_reproduces_the_next_ones_state(recurrent):
    """The next rollout's state is the one after rows 0..T-1, before row T's step and reset."""
    net, rollouts, _ = recurrent
    for rollout, after in zip(rollouts, rollouts[1:], strict=False):
        _, state = net({k: v[:-1] for k, v in rows_of(rollout).items()}, core_state_of(rollout))
        for seen, expected in zip(core_state_of(after), state, strict=True):
            torch.testing.assert_close(seen, expected, **CLOSE)


def test_row_T_is_row_0_of_the_next_rollout_bit_for_bit(any_net):
    _, rollouts = any_net
    for rollout, after in zip(rollouts, rollouts[1:], strict=False):
        for name, value in rows_of(rollout).items():
            assert value[-1].numpy().tobytes() == after[name][0].numpy().tobytes(), name


def test_a_rollouts_state_is_the_one_given_to_forward_at_its_row_0(recurrent):
    net, rollouts, given = recurrent
    assert len(given) == 1 + ROLLOUTS * T  # one forward for each row
    for k, rollout in enumerate(rollouts):
        for seen, expected in zip(core_state_of(rollout), given[k * T], strict=True):
            assert torch.equal(seen, expected)
    assert all(state.eq(1).all() for state in core_state_of(rollouts[0]))
    assert not torch.equal(rollouts[1]["core_state/0"], rollouts[0]["core_state/0"])


@torch.no_grad()
def test_done_resets_to_the_initial_state_and_not_to_zeros(recurrent):
    """At a `done` the outputs are those of the row alone, computed from a state of ones."""
    net, rollouts, _ = recurrent
    differs = 0
    for rollout in rollouts:
        rows = rows_of(rollout)
        for t, column in rollout["done"].nonzero().tolist():
            alone = {k: v[t : t + 1, column : column + 1] for k, v in rows.items()}
            first, _ = net(alone, net.initial_state(1))
            expected = first["policy_logits"][0, 0]
            torch.testing.assert_close(rollout["policy_logits"][t, column], expected, **CLOSE)
            not_done = {**alone, "done": torch.zeros(1, 1, dtype=torch.bool)}
            zeros = tuple(torch.zeros_like(state) for state in net.initial_state(1))
            from_zeros, _ = net(not_done, zeros)
            differs += not torch.allclose(from_zeros["policy_logits"][0, 0], expected, atol=1e-2)
    assert differs > 0


def test_an_action_leads_to_the_next_row(any_net):
    """The environment gets it, and it is the next row's last_action, which is 0 at a reset."""
    for rollout in any_net[1]:
        action, done = rollout["action"][:-1], rollout["done"][1:]
        assert torch.equal(rollout["last_action"][1:], action.masked_fill(done, 0))
        seen = rollout["frame"][1:, :, 1]
        assert torch.equal(seen, action.float().masked_fill(done, -1.0))


def test_policy_version_is_of_the_weights_that_chose_the_action(any_net):
    """Row 0 was row T of the rollout before, so it carries that rollout's version."""
    for k, rollout in enumerate(any_net[1]):
        assert rollout["policy_version"].dtype == torch.int64
        assert rollout["policy_version"][1:].eq(k + 1).all()
        assert rollout["policy_version"][0].eq(k).all()


def test_an_actors_very_first_row_carries_the_version_that_it_copied():
    """The version is not 0 after a resume, or in an actor that replaces another."""
    flags = make_flags()
    flags, spec, shapes = monobeast.describe(flags)
    net = models.make_net(monobeast.Net, spec, flags)
    one = replace(flags, num_actors=1)
    memory = ActorMemory(one, shapes, net.state_dict(), 7)
    full, outbox = Pipe(duplex=False)
    slots = iter([b"0"])
    threads = torch.get_num_threads()
    other = dataclasses.replace(spec, observations={"frame": ((4,), "uint8")})
    with pytest.raises(UserError, match=r"differ: expected frame uint8\[4\] .* seen frame float32"):
        monobeast.act(slots, outbox, 0, 1, flags, other, memory)
    monobeast.act(slots, outbox, 0, 1, flags, spec, memory)
    torch.set_num_threads(threads)
    assert full.recv_bytes() == b"0"
    assert memory.slots["policy_version"][0].eq(7).all()
    memory.close()


def test_batches_that_do_not_fit_into_memory_are_refused():
    flags, _, shapes = monobeast.describe(make_flags())
    check_limits(flags, shapes)
    with pytest.raises(UserError, match=r"^--batch_size 10+: expected a smaller number"):
        check_limits(replace(flags, batch_size=10**12), shapes)


def test_shapes_are_learned_from_one_environment(monkeypatch):
    """A vector environment cannot be opened in part. Each gets a seed of its own."""
    seeds = []
    vector = lambda n: SyncVectorEnv([Counting] * n, autoreset_mode=AutoresetMode.NEXT_STEP)
    described = {}
    for name, make in (("one", Counting), ("vector", lambda: vector(N))):
        create_env = lambda flags, make=make: seeds.append(flags.env_seed) or make()
        monkeypatch.setattr(monobeast, "create_env", create_env)
        described[name] = monobeast.describe(make_flags("--use_lstm", "--seed", "5"))
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
    """They reach the environment, the rollout and the loss. So does another observation key."""

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


def restarts(program):
    table = program.rows()
    return table[-1]["actor_restarts"] if table else 0


def test_actors_that_raise_hang_or_die_are_replaced_and_counted(tmp_path, monkeypatch):
    """A stopped actor delays no other. A second run in the same folder is refused meanwhile."""
    flags = [*FOREVER, "--env", "tests.support.envs:TroubledCatch-v0", "--step_timeout", 1]
    (tmp_path / "first").mkdir()
    with Program(tmp_path, *flags, TROUBLE=tmp_path / "first") as program:
        program.wait_for(lambda: restarts(program) == 3)
        os.kill(min(program.actors()), signal.SIGKILL)
        program.wait_for(lambda: restarts(program) == 4)
        monkeypatch.setenv("TROUBLE", str(tmp_path / "first"))
        with pytest.raises((RuntimeError, SystemExit), match=f"in use by process {program.pid}"):
            beast(tmp_path, *flags)
        os.kill(min(program.actors()), signal.SIGSTOP)
        program.wait_for_step(program.rows()[-1]["step"])
        program.process.terminate()
        assert program.wait_for_end() == 0, program.printed()
        wait_for(lambda: not program.session())
    told = (program.path / "out.log").read_text()
    assert "the ball has rolled under the sofa" in told and "in lose_the_ball" in told
    assert "took longer than --step_timeout 1 for one step" in told
    assert "Reward: expected a finite number, seen nan" in told
    assert told.count("its process ended without a traceback (exit code -9: Killed)") == 1
    assert told.count("It was killed, because its environments took longer than --step_tim") == 1

    # With trouble again, but none that hangs, the run reaches its end.
    (tmp_path / "second").mkdir()
    (tmp_path / "second/hang").touch()
    flags += ["--step_timeout", 60, "--total_steps", program.step() + 10_000]
    with Program(tmp_path, *flags, TROUBLE=tmp_path / "second") as program:
        assert program.wait_for_end() == 0, program.printed()
    assert program.step() >= flags[-1]
    assert restarts(program) == 2


def test_a_dead_actor_is_noticed_while_a_program_of_its_own_lives(tmp_path):
    flags = [*FOREVER, "--env", "tests.support.envs:ParentCatch-v0", "--num_actors", 1]
    with Program(tmp_path, *flags) as program:
        program.wait_for_step(0)
        os.kill(min(program.actors()), signal.SIGKILL)
        program.wait_for(lambda: restarts(program) == 1)


def test_too_many_failures_end_the_run_with_a_checkpoint_and_the_first_cause(tmp_path):
    flags = ["--env", "tests.support.envs:BreakingCatch-v0", "--max_actor_restarts", 2]
    with Program(tmp_path, *FOREVER, *flags) as program:
        assert program.wait_for_end() == 1
        wait_for(lambda: not program.session())
    printed, log = program.printed(), (program.path / "out.log").read_text()
    last = printed.strip().splitlines()[-1]
    assert last.startswith("monobeast: error: ") and "(--max_actor_restarts 2); the last" in last
    for told in (printed, log):
        assert "in lose_the_ball" in told and "(--max_actor_restarts 2)" in told
        assert "RuntimeError: the ball has rolled under the sofa (/" in told.splitlines()[-1]
        assert "process object is closed" not in told  # the clean-up must not fail as well
    assert program.step() > 0
    assert program.rows()[-1]["actor_restarts"] == 3
