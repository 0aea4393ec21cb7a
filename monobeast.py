# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MonoBeast: IMPALA on one machine, in Python processes.

    python -m monobeast --xpid pong                       # trains on Pong; again: goes on
    python -m monobeast --xpid pong --mode test           # plays 10 games with what was learned
    python -m monobeast --xpid pong --mode test_render    # ... and writes a video
    python -m monobeast --env MinAtar/Breakout-v1 --total_steps 20_000_000

Actor processes step environments, choose actions with the newest weights and write rollouts into
shared memory; learner threads in the main process batch them and apply the IMPALA loss:

    environment -> row -> net -> row -> rollout -> batch -> loss -> weights

For a new environment or model edit the two places marked FORK HERE, and nothing else.
"""

import argparse
import contextlib
import logging
import math
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # before the other imports, which take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.begin(__name__)

import gymnasium
import numpy as np
import torch
from torch import nn

import atari_wrappers
from libtorchbeast import evaluate, models, workers
from libtorchbeast.actors import MAX_SLOTS_PER_ACTOR, Actors, slot_of, start_pulse
from libtorchbeast.checkpoint import CheckpointError
from libtorchbeast.distributions import make_distribution
from libtorchbeast.environment import Environment
from libtorchbeast.flags import (
    HelpFormatter,
    UserError,
    apply_recipe,
    check_ranges,
    choose_xpid,
    given_names,
    require,
)
from libtorchbeast.loggers import display
from libtorchbeast.loggers.bottleneck import MonoBeastAdvisor
from libtorchbeast.loggers.files import RunInUse
from libtorchbeast.loggers.timing import ACTOR_ACTIVITIES, ActorTimes, Clock, Latencies
from libtorchbeast.models import CoreState, act_on
from libtorchbeast.rollouts import batches, rollout_shapes
from libtorchbeast.run import Run
from libtorchbeast.seeds import derive_seed, seed_everything
from libtorchbeast.shared_memory import (
    Shapes,
    SharedTensors,
    available_bytes,
    require_descriptors,
    required_bytes,
)
from libtorchbeast.spec import Spec
from libtorchbeast.tools import autotune
from libtorchbeast.weights import SharedWeights

logger = logging.getLogger("monobeast")


# Defaults that depend on the kind of environment, found by measurement (README, "Results"). Atari's
# steps are dear, so it gets many small updates; cheap environments get large batches.
RECIPES = {
    "atari": dict(
        envs_per_actor=16,
        batch_size=4,
        learning_rate=4e-4,
        total_steps=6_000_000,
        eval_every=1_000_000,
    ),
    "other": dict(
        envs_per_actor=64,
        batch_size=32,
        learning_rate=3e-3,
        total_steps=10_000_000,
        eval_every=2_500_000,
    ),
}


# What --autotune tries.
KNOBS: autotune.Knobs = {
    "num_actors": autotune.worker_counts,
    "envs_per_actor": lambda f: autotune.around(f.envs_per_actor),
    "torch_threads": lambda f: [1, workers.available_cores()],
}


# fmt: off
def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "monobeast", description=__doc__, allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument

    def recipe(name: str) -> str:
        atari, other = RECIPES["atari"][name], RECIPES["other"][name]
        return f" Default: {atari:,} on Atari, {other:,} elsewhere."

    add("--env", default="PongNoFrameskip-v4", help="A Gymnasium environment's id.")
    add("--mode", default="train", choices=["train", "test", "test_render"],
        help="test plays whole games with the newest checkpoint; test_render films them.")
    add("--xpid",
        help="Name of the run; one that exists is resumed. Default: the time of day; of the test "
             "modes: the newest run.")
    add("--savedir", default="~/logs/torchbeast", help="Folder of all runs.")
    add("--seed", type=int, default=0, help="Of all that is random.")
    add("--disable_checkpoint", action="store_true", help="Save nothing to resume from.")
    add("--log_every", type=float, default=10.0, metavar="SECONDS",
        help="Between two rows of the log.")
    add("--wandb", action="store_true", help="Log to Weights & Biases too (pip install wandb).")
    add("--checkpoint_every", type=float, default=300.0, metavar="SECONDS",
        help="Between two checkpoints; a stop saves too.")

    # Acting
    add("--num_actors", type=int,
        help="Actor processes. Default: half the cores, or all but one if a GPU learns. 0: "
             "everything in this process, in order, deterministically.")
    add("--envs_per_actor", type=int,
        help="Environments that an actor steps as one batch: more are faster but lag."
             + recipe("envs_per_actor"))
    add("--num_buffers", type=int,
        help="Rollout buffers, counted in columns. Default: two for each environment.")
    add("--step_timeout", type=float, default=60.0, metavar="SECONDS",
        help="An actor whose environments take longer for one step or reset is replaced; opening "
             "them is not timed.")
    add("--max_actor_restarts", type=int, default=10,
        help="More failed actors than this within ten minutes end the run.")

    autotune.add_flag(parser)

    # Learning
    add("--total_steps", type=int,
        help="Agent steps to learn from." + recipe("total_steps"))
    add("--batch_size", type=int, metavar="B",
        help="Columns in a learner's batch." + recipe("batch_size"))
    add("--unroll_length", type=int, default=20, metavar="T", help="Transitions in a rollout.")
    add("--num_learner_threads", "--num_threads", type=int, default=1,
        help="Each takes batches of its own; one updates at a time.")
    add("--torch_threads", type=int,
        help="Threads within an operation on the CPU. Default: MonoBeast's learner has the cores "
             "that the actors leave. PolyBeast has all for its deep network on Atari, whose "
             "learner limits a run; half otherwise, which would take them from the servers.")
    add("--disable_cuda", action="store_true", help="Learn on the CPU even if there is a GPU.")
    add("--precision", default="auto", choices=["auto", "bf16", "fp32"],
        help="Of convolutions and matrix products; auto: bf16 where the hardware has it.")
    add("--compile", action="store_true",
        help="torch.compile for the network. Takes minutes at the start; on a CPU it gained "
             "nothing.")
    add("--barrier_updates", type=int, default=25,
        help="With --num_actors 0: updates between the barriers at which environments start afresh "
             "and checkpoints may fall.")

    # Model
    add("--net", metavar="MODULE.CLASS", help="Another network than this file's Net.")
    add("--use_lstm", action="store_true", help="With a recurrent core.")

    # Loss
    add("--entropy_cost", type=float, default=0.01, help="Weight of the entropy.")
    add("--baseline_cost", type=float, default=0.5, help="Weight of its loss.")
    add("--discounting", type=float, default=0.99, help="gamma.")
    add("--reward_clipping", default="abs_one", choices=["abs_one", "none"],
        help="Of the loss's rewards, to [-1, 1]; logged returns are never clipped.")
    add("--vtrace_lambda", type=float, default=0.95,
        help="lambda of V-trace's remark 2; the paper's: 1.")
    add("--clip_rho_threshold", type=float, default=1.0, help="rho-bar.")
    add("--clip_pg_rho_threshold", type=float, default=1.0,
        help="The same, for the policy gradient.")
    add("--loss_reduction", default="mean", choices=["mean", "sum"],
        help="Over time and batch. The paper's sum needs --learning_rate 6e-4 --optimizer rmsprop "
             "--epsilon 0.01 --grad_norm_clipping 40.")

    # Optimizer
    add("--optimizer", default="adam", choices=["adam", "rmsprop"], help="The paper's: rmsprop.")
    add("--learning_rate", type=float,
        help="Falls linearly to 0 at --total_steps." + recipe("learning_rate"))
    add("--no_learning_rate_decay", dest="learning_rate_decay", action="store_false",
        help="Keep the learning rate as it is.")
    add("--epsilon", type=float, default=1e-5,
        help="In either optimizer's denominator.")
    add("--alpha", type=float, default=0.99, help="RMSProp's smoothing.")
    add("--momentum", type=float, default=0.0, help="RMSProp's.")
    add("--grad_norm_clipping", type=float, default=0.5,
        help="Of the gradient's norm over all weights.")

    # Test modes, and evaluation while training
    add("--eval_every", type=int, metavar="STEPS",
        help="Play whole games in a process of its own every so many agent steps; 0: never."
             + recipe("eval_every"))
    add("--num_episodes", type=int, default=10, help="Games to play.")
    add("--max_episode_steps", type=int, default=27_000, help="A longer game is cut.")
    add("--greedy", action="store_true", help="Take the most probable action; else sample.")
    return parser
# fmt: on


def parse(argv: list[str]) -> argparse.Namespace:
    flags = make_parser().parse_args(argv)
    check_flags(flags)
    return flags


def check_flags(flags: argparse.Namespace) -> None:
    """Refuses what cannot work, naming flag, value and range. Afterwards flags are read-only."""
    apply_recipe(flags, RECIPES["atari" if atari_wrappers.is_atari(flags.env) else "other"])
    check_ranges(flags)
    cores = workers.available_cores()
    if flags.num_actors is None:
        flags.num_actors = max(1, cores - 1 if use_cuda(flags) else cores // 2)
    if flags.torch_threads is None:
        # In order one, which is repeatable anywhere.
        flags.torch_threads = max(1, cores - flags.num_actors) if flags.num_actors else 1
    columns = max(1, flags.num_actors) * flags.envs_per_actor
    if flags.num_buffers is None:
        flags.num_buffers = 2 * columns
    most = MAX_SLOTS_PER_ACTOR * columns
    require(
        flags,
        "num_buffers",
        columns <= flags.num_buffers <= most,
        f"at least num_actors x envs_per_actor = {columns} columns, one buffer for each, and at "
        f"most {most}",
    )
    if flags.num_actors == 0:
        require(
            flags, "num_learner_threads", flags.num_learner_threads == 1, "1 if num_actors is 0"
        )
    choose_xpid(flags)


# ======================================================================================= FORK HERE
def create_env(flags: argparse.Namespace) -> Any:
    """Returns a `gymnasium.Env` (this is then called once per environment) or a vector environment
    of `flags.envs_per_actor` (called once per actor). See libtorchbeast/environment.py."""
    if atari_wrappers.is_atari(flags.env):
        if flags.mode == "train":
            return atari_wrappers.make_atari_vector(flags.env, flags.envs_per_actor)
        env = atari_wrappers.make_atari(flags.env, render_mode="rgb_array")
        return atari_wrappers.wrap_pytorch(atari_wrappers.wrap_deepmind(env))

    is_minatar = flags.env.startswith("MinAtar/")
    if is_minatar and flags.env not in gymnasium.registry:
        try:
            import minatar.gym
        except ImportError as error:
            raise UserError(f"--env {flags.env}: pip install MinAtar==1.0.15") from error
        minatar.gym.register_envs()
    options = {"render_mode": "rgb_array"} if flags.mode == "test_render" else {}
    env = gymnasium.make(flags.env, disable_env_checker=True, **options)
    if is_minatar:  # bool [10, 10, C] -> [C, 10, 10]
        shape = (env.observation_space.shape[2], 10, 10)
        space = gymnasium.spaces.Box(0, 1, shape, bool)
        to_chw = lambda frame: frame.transpose(2, 0, 1)
        env = gymnasium.wrappers.TransformObservation(env, to_chw, space)
    return env


# ======================================================================================= FORK HERE
class Net(nn.Module):
    """TorchBeast's shallow network for images `frame`; a smaller one for small images, and one for
    anything else, which it reads as a vector."""

    def __init__(self, spec: Spec, flags: argparse.Namespace):
        super().__init__()
        self.distribution = make_distribution(spec.actions)
        shape, _ = spec.observations.get("frame", ((), ""))
        models.check_image(shape)
        self.flat = [] if len(shape) == 3 else [k for k in spec.observations if k != "action_mask"]
        if len(shape) == 3 and min(shape[1:]) >= 36:  # [C, H, W]
            self.trunk = nn.Sequential(
                nn.Conv2d(shape[0], 32, 8, stride=4), nn.ReLU(),
                nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
                nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(), nn.Flatten(),
            )  # fmt: skip
            width = 512
        elif len(shape) == 3:
            self.trunk = nn.Sequential(nn.Conv2d(shape[0], 16, 3), nn.ReLU(), nn.Flatten())
            width = 128
        else:
            shape = (sum(math.prod(spec.observations[k][0]) for k in self.flat),)
            self.trunk = nn.Sequential(nn.Flatten(), nn.LazyLinear(128), nn.ReLU())
            width = 128
        self.fc = nn.Sequential(nn.LazyLinear(width), nn.ReLU())
        core_width = width + 1 + self.distribution.num_features  # fc, clipped reward, last action
        self.core = nn.LSTM(core_width, core_width, num_layers=2) if flags.use_lstm else None
        self.policy = nn.Linear(core_width, self.distribution.num_logits)
        self.baseline = nn.Linear(core_width, 1)
        with torch.no_grad():
            self.fc(self.trunk(torch.zeros(1, *shape)))  # gives the lazy layers their sizes
        self._initialize()

    def _initialize(self) -> None:
        """Orthogonal, with gains that keep signals alive through ReLUs and make the first policy
        nearly uniform, as is usual for PPO. All published results used it."""
        for module in [*self.trunk, *self.fc]:
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, 2**0.5)
                nn.init.zeros_(module.bias)
        for head, gain in ((self.policy, 0.01), (self.baseline, 1.0)):
            nn.init.orthogonal_(head.weight, gain)
            nn.init.zeros_(head.bias)

    def initial_state(self, batch_size: int) -> CoreState:
        if self.core is None:
            return ()
        shape = (self.core.num_layers, batch_size, self.core.hidden_size)
        device = self.policy.weight.device
        return (torch.zeros(shape, device=device), torch.zeros(shape, device=device))

    def forward(self, inputs: dict[str, torch.Tensor], core_state: CoreState = ()):
        T, B = inputs["reward"].shape
        if self.flat:  # everything as one vector
            parts = [models.as_floats(inputs[k].reshape(T * B, -1)) for k in self.flat]
            x = torch.cat(parts, dim=-1)
        else:
            x = models.as_floats(inputs["frame"].flatten(0, 1))  # [T * B, C, H, W]
        x = self.fc(self.trunk(x)).float()  # [T * B, width]
        last_action = self.distribution.features(inputs["last_action"]).flatten(0, 1)
        clipped_reward = inputs["reward"].clamp(-1, 1).reshape(T * B, 1)
        x = torch.cat([x, clipped_reward, last_action], dim=-1)
        if self.core is not None:
            x, core_state = models.unroll(
                self.core, x.view(T, B, -1), inputs["done"], core_state, self.initial_state(B)
            )
            x = x.flatten(0, 1).float()
        with torch.autocast(x.device.type, enabled=False):  # the heads stay float32
            policy_logits, baseline = self.policy(x), self.baseline(x)
        policy_logits = policy_logits.view(T, B, -1)
        return dict(policy_logits=policy_logits, baseline=baseline.view(T, B)), core_state


# =========================================================================================== acting
class Actor:
    """N environments, a network, and what both carry from one rollout to the next."""

    def __init__(
        self,
        env: Environment,
        net: nn.Module,
        seed: int,
        flags: argparse.Namespace,
        clock: Clock,
        latencies: Latencies,
        version: int = 0,
    ):
        self.env, self.net, self.precision = env, net, flags.precision
        self.clock, self.latencies = clock, latencies
        self.row = env.initial(seed)
        clock.lap("environment")  # before the network's first call, which --compile makes long
        self.next_core_state = models.initial_state(net, env.spec.num_envs)
        with self.autocast():
            self.choose(version)

    def autocast(self):
        return models.autocast(self.precision, torch.device("cpu"))

    def choose(self, version: int) -> None:
        """Adds the policy's keys to the row, its action among them."""
        self.core_state = self.next_core_state
        row = {k: torch.from_numpy(v) for k, v in self.row.items()}
        outputs, self.next_core_state = act_on(self.net, row, self.core_state)
        self.row |= {k: v.numpy() for k, v in outputs.items()}
        self.row["policy_version"] = np.full(self.env.spec.num_envs, version)
        self.latencies.add(self.clock.lap("inference"))

    def unroll(self, rollout: dict[str, np.ndarray], version: int) -> None:
        """Fills `rollout` ([T+1, N, ...] rows and core_state/i) with the next T transitions; the
        network's weights are version `version`. Row 0 is row T of the rollout before."""
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
    flags: argparse.Namespace,
    buffers: SharedTensors,
    weights: SharedWeights,
    times: ActorTimes,
) -> None:
    """An actor process: takes free slots from `inbox` (its free_queue), fills them, and puts them
    into `outbox` (its full_queue). Ends when the inbox does."""
    torch.set_num_threads(1)  # on few cores one thread a process is the most efficient
    seed_everything(seed)
    env = make_environment(flags)
    net = models.compile_if_asked(models.make_net(Net, env.spec, flags), flags)
    rollouts = {k: t.numpy() for k, t in buffers.tensors.items()}
    clock, latencies = times.clock(actor), times.latencies(actor)
    version = weights.copy_to(net)
    start_pulse(times.signs_of_life[actor], flags.step_timeout)
    clock.begin_call()
    worker = Actor(env, net, seed, flags, clock, latencies, version)
    for message in inbox:
        slot = slot_of(message)
        version = weights.copy_to(net)
        clock.lap("actor_waiting")
        worker.unroll({k: v[slot] for k, v in rollouts.items()}, version)
        outbox.send_bytes(message)
    env.close()  # not after a failure, which is to be reported whatever closing would do


# ========================================================================================= training
def train(flags: argparse.Namespace) -> Run:
    """Trains until --total_steps, a signal to stop or a failure, which it raises."""
    device = torch.device("cuda" if use_cuda(flags) else "cpu")
    torch.set_num_threads(flags.torch_threads)
    seed_everything(flags.seed)
    spec, shapes = describe(flags)
    check_limits(flags, shapes)
    net = models.make_net(Net, spec, flags)
    with Run(flags, spec, net, device, MonoBeastAdvisor(flags).advise) as run:
        if run.was_complete():
            return run
        run.evaluate_with(player)
        if flags.num_actors == 0:
            train_in_order(run, shapes)
        else:
            train_in_parallel(run, shapes)
    return run


def describe(flags: argparse.Namespace) -> tuple[Spec, Shapes]:
    """What the environments look like, and a rollout of one actor's."""
    try:
        env = make_environment(flags)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UserError(f"--env {flags.env}: {error}") from error
    with contextlib.closing(env):
        net = models.make_net(Net, env.spec, flags)
        sample = Actor(env, net, flags.seed, flags, *stopwatches())
        row = {name: torch.from_numpy(value) for name, value in sample.row.items()}
        return env.spec, rollout_shapes(row, sample.core_state, flags.unroll_length)


def train_in_parallel(run: Run, shapes: Shapes) -> None:
    """Actor processes act, learner threads learn, this thread watches over both."""
    flags = run.flags
    buffers = SharedTensors(buffer_shapes(flags, shapes))
    weights = SharedWeights(run.learner.net.state_dict(), run.learner.updates)
    times = ActorTimes(flags.num_actors)

    def start_actor(actor: int, life: int) -> workers.Process:
        seed = derive_seed(flags.seed, run.learner.updates, actor, life)
        args = (actor, seed, flags, buffers, weights, times)
        return workers.Process(act, args, name=f"actor-{actor}")

    actors = Actors(start_actor, flags, buffers, times.calls_began, times.signs_of_life)
    run.sources += [*times.sources(), lambda: {"actor_restarts": actors.restarts}]
    pinned = run.learner.device.type == "cuda"
    threads = []
    try:
        threads = run.start_learners(
            lambda: batches(actors.rollouts(), flags.batch_size, pinned), weights.publish
        )
        while not run.finished():
            actors.wait(run.wakeup, run.seconds_to_tick())
            run.tick()
    finally:
        actors.close()
        run.learner.close()  # the update that runs still publishes its weights
        for thread in threads:
            thread.join(timeout=5.0)
        for memory in (buffers, weights, times):
            memory.close()
    run.raise_failure()


def train_in_order(run: Run, shapes: Shapes) -> None:
    """Acts and learns by turns, the same for the same seed, bit for bit.

    Environments are no part of a checkpoint. So every --barrier_updates they and all random
    generators start afresh from (seed, updates), whether or not the run stops there; checkpoints
    and stops happen only there, and a resumed run repeats what an unbroken one does.
    """
    flags, learner = run.flags, run.learner
    rollout = {k: torch.zeros(shape, dtype=dtype) for k, (shape, dtype) in shapes.items()}
    views = {k: v.numpy() for k, v in rollout.items()}
    clock, latencies = stopwatches()

    def rollouts(actor: Actor):
        while True:
            actor.unroll(views, learner.updates)
            yield rollout, lambda: None

    while not run.finished():
        seed = derive_seed(flags.seed, learner.updates)
        seed_everything(seed)
        run.may_checkpoint = False
        with contextlib.closing(make_environment(flags)) as env:
            actor = Actor(env, learner.net, seed, flags, clock, latencies, learner.updates)
            for batch in batches(rollouts(actor), flags.batch_size):
                run.stats.add_games(batch)
                numbers = learner.update(batch, publish=lambda state_dict, version: None)
                if numbers is None:
                    continue
                run.stats.add_update(numbers)
                if learner.updates % flags.barrier_updates == 0:
                    break
        run.may_checkpoint = True
        run.tick()


def stopwatches() -> tuple[Clock, Latencies]:
    """An actor's, in this process."""
    return Clock(ACTOR_ACTIVITIES), Latencies()


def make_environment(flags: argparse.Namespace) -> Environment:
    return Environment(lambda: create_env(flags), flags.envs_per_actor, flags.env)


def player(flags: argparse.Namespace) -> tuple[nn.Module, Environment]:
    """A network, and environments, to play whole games with."""
    flags.envs_per_actor = evaluate.games_at_once(flags, flags.envs_per_actor)
    env = make_environment(flags)
    return models.make_net(Net, env.spec, flags), env


def use_cuda(flags: argparse.Namespace) -> bool:
    return torch.cuda.is_available() and not flags.disable_cuda and flags.num_actors != 0


def buffer_shapes(flags: argparse.Namespace, shapes: Shapes) -> Shapes:
    """All rollouts in memory: `num_buffers` columns, in slots of one actor's rollout."""
    num_slots = flags.num_buffers // flags.envs_per_actor
    return {name: ((num_slots, *shape), dtype) for name, (shape, dtype) in shapes.items()}


def check_limits(flags: argparse.Namespace, shapes: Shapes) -> None:
    """Refuses what memory or open files do not suffice for, before the run leaves a trace."""
    in_order = flags.num_actors == 0
    needed = required_bytes(shapes if in_order else buffer_shapes(flags, shapes))
    available = available_bytes()
    MiB = 2**20
    require(
        flags,
        "unroll_length" if in_order else "num_buffers",
        available is None or needed < available,
        f"a number whose rollouts fit into memory: {needed / MiB:,.0f} MiB are needed, "
        f"{(available or 0) / MiB:,.0f} MiB available",
    )
    require_descriptors(flags)


# ==================================================================================== test and main
def test(flags: argparse.Namespace, given: set[str]) -> list[evaluate.Game]:
    """Plays --num_episodes whole games with the newest checkpoint of --xpid."""
    net, env = evaluate.load(flags, given, player)
    seed_everything(flags.seed)
    with contextlib.closing(env):
        return evaluate.test(flags, net, env)


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    display.set_up_logging()
    try:
        flags = parse(argv)
        if flags.autotune is not None and flags.mode == "train":
            argv = autotune.tune("monobeast", argv, parse, KNOBS)
            flags = parse(argv)
        if flags.mode == "train":
            train(flags)
        else:
            test(flags, given_names(make_parser(), argv))
    except (UserError, CheckpointError, RunInUse) as error:
        sys.exit(f"monobeast: error: {error}")
    except KeyboardInterrupt:  # in --autotune
        sys.exit(130)


if __name__ == "__main__":
    main()
