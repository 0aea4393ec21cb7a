# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MonoBeast trains an agent with IMPALA on one machine, with actors that are Python processes.

    python -m monobeast --xpid pong                       # train on Pong; run it again to resume
    python -m monobeast --xpid pong --mode test           # play 10 games with the trained network
    python -m monobeast --xpid pong --mode test_render    # play them and write a video
    python -m monobeast --env MinAtar/Breakout-v1 --total_steps 20_000_000

Actor processes step environments, choose actions with the newest weights and write rollouts into
shared memory. Learner threads in the main process batch the rollouts and minimise the IMPALA loss:

    environment -> row -> net -> row -> rollout -> batch -> loss -> weights

To change environment, model or loss, edit the places marked FORK HERE and nothing else.
"""

import argparse
import functools
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # first, because the other imports take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.before_imports(__name__)

import gymnasium
import numpy as np
import torch
from torch import nn

import atari_wrappers
import minatar_wrappers
import vtrace
from libtorchbeast import models, opening, program, recipes, workers
from libtorchbeast.accelerator import devices
from libtorchbeast.accelerator.devices import to_device, to_host
from libtorchbeast.actors import ActorMemory, Actors, choose_numbers
from libtorchbeast.agents import make_net
from libtorchbeast.distributed import ranks
from libtorchbeast.distributions import make_distribution
from libtorchbeast.environment import Environment
from libtorchbeast.flags import Flags, Parser, UserError, replace, require, whole
from libtorchbeast.learner import Between, learn_batch, start_learners
from libtorchbeast.loggers.timing import Clock
from libtorchbeast.models import CoreState
from libtorchbeast.past import past_of_run
from libtorchbeast.rollouts import Barrier, Rollout, batches
from libtorchbeast.run import Run
from libtorchbeast.seeds import derive_seed, seed_everything, seeded
from libtorchbeast.spec import Spec
from libtorchbeast.transitions import Transitions


# ======================================================================================= FORK HERE
def create_env(flags: Flags) -> Any:
    """Makes the environment that --env names.

    If this function returns a `gymnasium.Env`, it is called once for each environment. It may also
    return a vector environment that holds `flags.envs_per_actor` environments; then it is called
    once for each actor. docs/fork.md says what else is accepted.
    """
    if atari_wrappers.is_atari(flags.env):
        if flags.mode == "train":
            return atari_wrappers.make_atari_vector(flags.env, flags.envs_per_actor)
        env = atari_wrappers.make_atari(flags.env, render_mode="rgb_array")
        return atari_wrappers.wrap_deepmind(env)
    options: dict[str, Any] = {"render_mode": "rgb_array"} if flags.mode == "test_render" else {}
    if minatar_wrappers.is_minatar(flags.env):
        return minatar_wrappers.make_minatar(flags.env, **options)
    return gymnasium.make(flags.env, disable_env_checker=True, **options)


# ======================================================================================= FORK HERE
class Net(nn.Module):
    """TorchBeast's shallow network. Images smaller than 36 x 36 get a smaller trunk. What is not an
    image (see `models.Parts`) joins the trunk's output, or without images gets a linear trunk."""

    for_vectors = models.VectorNet  # trained instead if there are floats, no image and no --core

    def __init__(self, spec: Spec, flags: Flags):
        super().__init__()
        self.distribution = make_distribution(spec.actions)
        self.parts = models.Parts(spec)
        C, *size = self.parts.image_shape or (0,)
        if C and min(size) >= 36:
            self.trunk = nn.Sequential(
                nn.Conv2d(C, 32, 8, stride=4), nn.ReLU(),
                nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
                nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(), nn.Flatten(),
            )  # fmt: skip
        elif C:
            self.trunk = nn.Sequential(nn.Conv2d(C, 16, 3), nn.ReLU(), nn.Flatten())
        else:
            self.trunk = nn.Sequential(nn.Flatten(), nn.LazyLinear(128), nn.ReLU())
        width = 512 if C and min(size) >= 36 else 128
        self.fc = nn.Sequential(nn.LazyLinear(width), nn.ReLU())
        core_width = width + 1 + self.distribution.num_features  # fc, clipped reward, last action
        self.core = models.make_core(flags, core_width, core_width, num_layers=2)
        self.policy = nn.Linear(core_width, self.distribution.num_logits)
        self.baseline = nn.Linear(core_width, 1)
        with torch.no_grad():
            self.see(*self.parts.zeros())  # gives the lazy layers their sizes
        # Orthogonal, as is usual for PPO. The gains preserve the scale of activations through ReLUs
        # and make the first policy nearly uniform.
        models.make_orthogonal([*self.trunk, *self.fc], 2**0.5)
        models.make_orthogonal([self.policy], 0.01)
        models.make_orthogonal([self.baseline], 1.0)

    def initial_state(self, batch_size: int) -> CoreState:
        return models.zero_state(self.core, batch_size)

    def see(self, image: torch.Tensor | None, vector: torch.Tensor | None) -> torch.Tensor:
        """[N, C, H, W] or None, and [N, F] or None -> [N, width]."""
        x = self.trunk(vector if image is None else image)
        is_both = image is not None and vector is not None
        return self.fc(torch.cat([x, vector], dim=1) if is_both else x)

    def forward(self, inputs: dict[str, torch.Tensor], core_state: CoreState = ()):
        T, B = inputs["reward"].shape
        x = self.see(*self.parts(inputs)).float().view(T, B, -1)
        last_action = self.distribution.features(inputs["last_action"])
        clipped_reward = inputs["reward"].clamp(-1, 1).unsqueeze(-1)
        x = torch.cat([x, clipped_reward, last_action], dim=-1)
        initial = self.initial_state(B)
        x, core_state = models.unroll(self.core, x, inputs["done"], core_state, initial)
        x = x.float()
        with torch.autocast(x.device.type, enabled=False):  # the heads stay float32
            policy_logits, baseline = self.policy(x), self.baseline(x).squeeze(-1)
        return dict(policy_logits=policy_logits, baseline=baseline), core_state


# ======================================================================================= FORK HERE
def targets(batch: Transitions) -> dict[str, torch.Tensor]:
    """What the loss learns towards: tensors [T, B, ...] without gradients. Whatever a loss needs of
    whole rollouts, such as a sum over time, belongs here: with --passes this is called once for
    each batch, and then `loss` gets single transitions with their targets.

    Here these are V-trace's targets of the values, v ([IMPALA] eq. 1 in vtrace.py), and advantages.
    """
    flags, values = batch.flags, batch.outputs["baseline"]  # [T+1, B]
    v, advantages = vtrace.from_importance_weights(
        batch.log_rho, batch.discount, batch.reward, values[:-1], values[-1],
        flags.clip_rho_threshold, lambda_=flags.vtrace_lambda, real=batch.real,
    )  # fmt: skip
    return dict(v=v, advantage=advantages, value=values[:-1])


def loss(batch: Transitions) -> dict[str, torch.Tensor]:
    """The loss of IMPALA ([IMPALA] section 4.2), or of PPO with --ppo_clip:

        mean of  - rho advantage log pi(a|x) + baseline_cost/2 (v - V(x))^2 - entropy_cost H(pi)

    `total_loss` has the gradient. Each scalar is a column of the log, as is the mean of each tensor
    [T, B] over the transitions. `batch.mean` leaves out transitions that are not real.
    """
    flags, goal, values = batch.flags, batch.targets, batch.outputs["baseline"]  # [T, B]
    if flags.ppo_clip:
        advantages = vtrace.standardised(goal["advantage"], batch.own)
        gains = vtrace.clipped_gains(batch.log_rho, advantages, flags.ppo_clip)
        errors = vtrace.clipped_errors(values, goal["v"], goal["value"], flags.ppo_clip)
    else:
        gains = batch.rho.clamp(max=flags.clip_rho_threshold) * goal["advantage"] * batch.log_pi
        errors = (goal["v"] - values) ** 2
    entropy = batch.net.distribution.entropy(batch.outputs["policy_logits"])
    left = 1 - batch.progress if flags.entropy_schedule == "linear" else 1
    pg_loss, baseline_loss = -batch.mean(gains), 0.5 * batch.mean(errors)
    total_loss = pg_loss + flags.baseline_cost * baseline_loss
    total_loss = total_loss - flags.entropy_cost * left * batch.mean(entropy)
    return dict(
        total_loss=total_loss, pg_loss=pg_loss, baseline_loss=baseline_loss, entropy=entropy
    )


# ============================================================================================ flags
RECIPES = recipes.with_environments("envs_per_actor")  # defaults for each kind of environment


# fmt: off
def make_parser() -> Parser:
    parser = Parser("monobeast", __doc__)
    parser.add_shared("environment", "run")
    acting = parser.group("acting", "How the environments are stepped.")
    acting("--num_actors", type=whole(0),
        help="Number of actor processes. With 0, one process acts and learns in turns, and the "
             "same seed gives the same numbers. Default: half the cores, or all but one if the "
             "learner uses a GPU.")
    acting("--envs_per_actor", type=whole(1),
        help="Number of environments that an actor steps as one batch. More environments give more "
             "steps per second, but also a larger policy lag.")
    acting("--num_buffers", type=whole(1),
        help="Number of rollouts that shared memory holds, each of one environment. Default: two "
             "for each environment.")
    acting("--max_actor_restarts", type=whole(0), default=10,
        help="The run ends when more than this number of actors have failed within ten minutes. "
             "Until then failed actors are replaced.")
    acting("--barrier_updates", type=whole(1), default=1000,
        help="With --num_actors 0: number of updates from one barrier until the next is due. A "
             "barrier waits until the games in progress have ended; then all environments start "
             "afresh, so that a run can resume bit for bit. Timed checkpoints wait for a barrier, "
             "but for no more than 1000 updates after it was due.")
    parser.add_shared("self-play", "learning", "model", "loss", "optimizer", "evaluation", "ranks")
    add_own_flags(parser)
    parser.explain_recipes(RECIPES)
    return parser


def add_own_flags(parser: Parser) -> None:
    """Adds a fork's flags to every program. See docs/fork.md for those that servers read."""
    # FORK HERE: flags of your own
# fmt: on


def check_flags(draft: argparse.Namespace, spec: Spec | None = None) -> Flags:
    """Fills in the defaults that depend on other flags and on the environment (see `recipes`), and
    freezes the result. Raises UserError if two flags contradict each other."""
    is_atari = atari_wrappers.is_atari(draft.env)
    recipes.apply(draft, RECIPES, recipes.kind_of(draft, is_atari, spec))
    in_order = draft.num_actors == 0
    devices.choose(draft, inference=None if in_order else "cpu")
    choose_numbers(draft, recipes.may_change(draft, "envs_per_actor", spec))
    is_one = not in_order or draft.num_learner_threads == 1
    require(draft, "num_learner_threads", is_one, "1 if num_actors is 0")
    is_same = not in_order or draft.inference_device == draft.learner_device
    require(draft, "inference_device", is_same, "the learner's device if num_actors is 0")
    return Flags(**vars(draft))


# =========================================================================================== acting
class Actor:
    """Steps N environments with a network's actions, and fills rollouts with what they return."""

    def __init__(
        self,
        env: Environment,
        net: nn.Module,
        seed: int,
        flags: Flags,
        clock: Clock,
        version: int = 0,
        on_open: Callable[[int], None] = lambda count: None,  # see Environment.initial
    ):
        self.env, self.net, self.clock = env, net, clock
        self.past = past_of_run(Net, env.spec, flags)  # acts, in self-play also with old weights
        self.device = next(net.parameters()).device
        self.autocast = lambda: models.autocast(net, flags.precision, self.device)
        self.row = env.initial(seed, on_open)
        clock.lap("environment")  # the network's first call, slow with --compile, is not timed here
        (self.next_core_state,) = to_host(self.past.initial_state(net, env.spec.num_envs))
        with self.autocast():
            self.choose(version)

    def choose(self, version: int) -> None:
        """Adds the network's outputs and the chosen action to the current row."""
        self.core_state = self.next_core_state
        row = {k: torch.from_numpy(v[None]) for k, v in self.row.items()}  # [T = 1, N, ...]
        inputs = to_device((row, self.core_state), self.device)
        outputs, self.next_core_state = self.past.act(self.net, *inputs)
        self.row |= {k: v[0].numpy() for k, v in outputs.items()}
        self.row["policy_version"] = np.full(self.env.spec.num_envs, version)
        self.clock.count_latency(self.clock.lap("inference"))

    def unroll(self, rollout: dict[str, np.ndarray], version: int) -> None:
        """Fills `rollout`, arrays [T+1, N, ...] for the rows and core_state/i [layers, N, H], with
        the next T transitions. Row 0 repeats row T of the rollout before. `version` is that of the
        network's weights."""
        for i, state in enumerate(self.core_state):
            rollout[f"core_state/{i}"][...] = state.numpy()
        self.write(rollout, 0)
        with self.autocast():
            for t in range(1, rollout["reward"].shape[0]):
                self.clock.begin_call()
                self.row = self.env.step(self.row["action"])
                self.clock.lap("environment")
                self.choose(version)
                self.write(rollout, t)

    def write(self, rollout: dict[str, np.ndarray], t: int) -> None:
        for name, value in self.row.items():
            rollout[name][t] = value


def act(
    inbox: Iterator[bytes],
    outbox: Connection,
    actor: int,
    seed: int,
    flags: Flags,
    spec: Spec,
    memory: ActorMemory,
) -> None:
    """Runs in an actor process. It takes the numbers of free slots from `inbox`, fills each slot
    with a rollout, and sends the slot's number to `outbox`, until `inbox` ends."""
    torch.set_num_threads(1)  # other actors use the other cores
    devices.set_precision(flags.precision)
    seed_everything(seed)
    on_open = memory.times.begin_opening(actor)
    env = make_environment(flags, seed, ranks.own_number(actor))
    if why := env.spec.misfit(spec.signature()):
        raise UserError(f"--env {flags.env}: this actor's environments differ: {why}")
    net = make_net(Net, env.spec, flags).to(flags.inference_device)
    net = models.compile_if_asked(net, flags)
    rollouts = {k: t.numpy() for k, t in memory.slots.tensors.items()}
    clock = memory.times.clock(actor)
    version = memory.weights.copy_to(net)
    memory.times.start_pulse(actor, flags.step_timeout)
    worker = Actor(env, net, seed, flags, clock, version, on_open)
    for message in inbox:
        slot = int(message)
        version = memory.weights.copy_to(net)
        clock.lap("actor_waiting")
        worker.unroll({k: v[slot] for k, v in rollouts.items()}, version)
        outbox.send_bytes(message)
    env.close()  # not after an exception, because an error in `close` would hide it


# ========================================================================================= training
def train(flags: Flags) -> Run:
    """Trains until --total_steps are done or a signal stops the run, and returns the run.

    Raises:
        UserError: the environment, the network or this machine cannot do what the flags ask for.
        Exception: the first failure of a thread or of the actors, and what `Run` raises.
    """
    devices.open_each(flags)
    seed_everything(flags.seed)
    complete = functools.partial(recipes.complete, flags, check_flags, recipes=RECIPES)
    described = opening.describe(flags, complete, act, create_env, Net, Actor)
    # With actors `first` is their memory and first process; without, `rollout` has the tensors.
    with described as (flags, spec, rollout, first):
        device = torch.device(flags.learner_device)
        net = make_net(Net, spec, flags)
        with Run(flags, spec, net, device, player, targets, loss) as run:
            run.between = Between()  # FORK HERE: what stands between the rollouts and the learner
            if not run.finished():
                train_in_parallel(run, *first) if first else train_in_order(run, rollout)
    return run


def train_in_parallel(run: Run, memory: ActorMemory, first: workers.Process) -> None:
    """Trains with actor processes and learner threads, both supervised by this thread."""
    flags, learner = run.flags, run.learner
    memory.reserve(flags, learner.net.state_dict(), learner.updates)

    def start_actor(actor: int, life: int) -> workers.Process:
        seed = derive_seed(flags.seed, learner.updates, ranks.own_number(actor), life)
        if actor == life == 0:  # it has opened an environment, and waits for its seed
            first.send(b"%d" % seed)
            return first
        args = (actor, seed, flags, run.spec, memory)
        return workers.Process(act, args, name=f"actor-{actor}")

    actors = Actors(start_actor, flags, memory)
    run.log.sources += actors.sources
    try:
        # Each learner thread: rollouts -> batch -> run.between -> Learner.update -> publish
        columns = ranks.share(flags.batch_size)
        make_batches = lambda: batches(actors.rollouts(), columns, learner.device)
        start_learners(run, make_batches, memory.weights.publish)
        while not run.finished():
            actors.wait(run.wakeup, run.seconds_to_tick())
            run.tick()
    finally:
        actors.close()
        learner.close()  # before `memory` is closed, where an update may still publish weights
        run.threads.join(timeout=5.0)
    run.threads.raise_failure()


def train_in_order(run: Run, rollout: Rollout) -> None:
    """Acts and learns in turns. The same seed gives the same numbers, bit for bit. Each rollout
    takes the place of the one before, in the tensors of `rollout`.

    At each barrier the environments and all random generators start afresh from (seed, updates), so
    that a run which resumes there computes the same numbers as one that was not stopped.
    """
    flags, learner = run.flags, run.learner

    def rollouts(actor: Actor, barrier: Barrier):
        while not (barrier.reached() or run.finished()):
            actor.unroll({k: tensor.numpy() for k, tensor in rollout.items()}, learner.updates)
            run.stats.add_games(*barrier.add(rollout, learner.updates))
            yield rollout, lambda: None

    while not run.finished():
        seed = derive_seed(flags.seed, learner.updates)
        seed_everything(seed)
        barrier = Barrier(learner.updates, flags)
        make = functools.partial(make_environment, flags, seed)
        leave = functools.partial(run.__exit__, None, None, None)  # how the watch saves the run
        with opening.opened_here(make, flags, run.finished, leave) as (env, clock, on_open):
            actor = Actor(env, learner.net, seed, flags, clock, learner.updates, on_open)
            run.state.between_barriers = True  # a checkpoint is not exact from here on
            for batch in run.between.batches(batches(rollouts(actor, barrier), flags.batch_size)):
                if not learn_batch(run, batch):  # finished: the rest is not learned from
                    return
                run.tick(barrier.late)
        if barrier.reached():
            run.state.between_barriers = False
            run.stats.restart()
        run.tick()


def make_environment(flags: Flags, seed: int | None = None, actor: int = 0) -> Environment:
    """The environments of one actor, behind the adapter that makes rows of them."""
    N = flags.envs_per_actor
    return Environment(seeded(create_env, flags, N, seed, actor), N, flags.env)


# ==================================================================================== test and main
def player(flags: Flags) -> tuple[nn.Module, Environment]:
    """Makes a network and the environments in which it plays whole games."""
    num_envs = program.games_at_once(flags, flags.envs_per_actor)
    env = make_environment(replace(flags, envs_per_actor=num_envs))
    return make_net(Net, env.spec, flags), env


parse = functools.partial(program.parse, make_parser, check_flags)
main = functools.partial(program.main, "monobeast", make_parser, check_flags, train, player)


if __name__ == "__main__":
    main()
