# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""WarpBeast trains an agent with IMPALA in environments that are on the network's device.

    python -m warpbeast --env breakout --xpid breakout          # run it again to resume
    python -m warpbeast --xpid breakout --mode test             # play 10 games
    python -m warpbeast --xpid breakout --mode test_render      # play them and write a video

The environments are tensor operations: thousands of them are one dict of tensors [N, ...] on the
network's device (libtorchbeast/tensors.py, examples/tensors). One process steps them T times with
the newest weights, and then learns from these steps. There are no actor processes and no queues:

    TensorVector -> row -> Net -> row -> rollout [T+1, N, ...] -> loss -> weights

Network, loss, logs and checkpoints are MonoBeast's. To add an environment, edit the place marked
FORK HERE.
"""

import argparse
import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # first, because the other imports take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.before_imports(__name__)

import torch
from torch import nn

import monobeast
from libtorchbeast import models, program, recipes, workers
from libtorchbeast.accelerator import devices
from libtorchbeast.agents import make_net
from libtorchbeast.environment import Environment
from libtorchbeast.errors import errors_of
from libtorchbeast.flags import Flags, Parser, UserError, replace, require, whole
from libtorchbeast.learner import Between, learn_batch
from libtorchbeast.loggers.timing import Clock, shares
from libtorchbeast.models import choose_actions
from libtorchbeast.opening import OpeningWatch
from libtorchbeast.rollouts import Rollout, rollout_shapes
from libtorchbeast.run import Run
from libtorchbeast.seeds import derive_seed, seed_everything, seeded
from libtorchbeast.spec import Spec, brief
from libtorchbeast.tensors import FromArrays, TensorRows, TensorVector

# A fork may write its own. Each group of agents has a network.
Net, targets, loss = monobeast.Net, monobeast.targets, monobeast.loss  # FORK HERE
ACTIVITIES = ("environment", "inference", "learning")
# The rows that the host reads of a rollout, besides the transitions' own discounts. One copy brings
# all of them, so that it waits once.
BOOKS = ("done", "policy_version", "episode_over", "episode_step", "episode_return")

logger = logging.getLogger(__name__)


# ======================================================================================= FORK HERE
def create_env(flags: Flags, device: torch.device) -> Any:
    """Makes `flags.num_envs` environments on the device, as one vector.

    This may also be another vector environment with next-step autoreset, whose `reset` and `step`
    give tensors on the device. In test modes and evaluations the device is the CPU.
    """
    from examples import tensors  # here, because pip does not install them

    env = tensors.make(flags.env)
    compiled = lambda step: compile_step(step, flags, device)
    return TensorVector(env, flags.num_envs, flags.env_seed, device, compiled)


def compile_step(step: Any, flags: Flags, device: torch.device) -> Any:
    """On a GPU, or with --compile, makes one graph of an environment's step. An operation that
    would break the graph raises an error, so that no part of the step is eager unnoticed."""
    if flags.mode != "train" or not (flags.compile or device.type != "cpu"):
        return step
    logger.info("The environments' step is compiled as one graph, for %s", device)
    return torch.compile(step, fullgraph=True, dynamic=False)


# ============================================================================================ flags
RECIPES = recipes.LEARNING  # all tensor environments take the defaults of "other"


# fmt: off
def make_parser() -> Parser:
    parser = Parser("warpbeast", __doc__)
    parser.add_shared("environment", "run")
    acting = parser.group("acting", "How the tensor environments are stepped.")
    acting("--num_envs", type=whole(1), default=1024, metavar="N",
        help="Number of environments that are stepped as one batch. After --unroll_length steps "
             "their rollouts are divided into batches of --batch_size, with an update from each.")
    parser.add_shared("learning", "model", "loss", "optimizer", "evaluation")
    parser.explain_recipes(RECIPES)
    parser.set_defaults(env="breakout", num_actors=1)
    monobeast.add_own_flags(parser)
    return parser
# fmt: on


def check_flags(draft: argparse.Namespace) -> Flags:
    """Fills in the defaults that depend on other flags, and freezes the result. Raises UserError if
    two flags contradict each other, or this program lacks what is asked for."""
    recipes.apply(draft, RECIPES, "other")
    draft.num_learner_threads = draft.num_learner_threads or 1
    devices.choose(draft)
    same = draft.inference_device == draft.learner_device
    require(draft, "inference_device", same, "the learner's device, where the environments are")
    if draft.torch_threads is None:
        draft.torch_threads = workers.available_cores()
    divides = f"a divisor of --num_envs {draft.num_envs}, so that all batches have that size"
    require(draft, "batch_size", draft.num_envs % draft.batch_size == 0, divides)
    require(draft, "num_learner_threads", draft.num_learner_threads == 1, "1: it also acts")
    return Flags(**vars(draft))


# =========================================================================================== acting
class Actor:
    """Steps N environments with a network's actions, on the network's device, without waiting for
    the device. Each rollout overwrites the one before."""

    def __init__(
        self, rows: TensorRows, net: nn.Module, seed: int, flags: Flags, clock: Clock,
        version: int = 0, on_open: Callable[[int], None] = lambda count: None,
    ):  # fmt: skip
        self.rows, self.net, self.flags, self.clock = rows, net, flags, clock
        self.on_open = on_open  # is called after each step, the first of which may be compiled
        self.row = rows.initial(seed)
        self.next_core_state = models.initial_state(net, rows.spec.num_envs)
        self.device = self.row["reward"].device
        self.choose(version)
        T, N = flags.unroll_length, rows.spec.num_envs
        shapes = rollout_shapes(self.row, self.core_state, T, N).items()
        empty = functools.partial(torch.empty, device=self.device)
        self.rollout: Rollout = {k: empty(size, dtype=dtype) for k, (size, dtype) in shapes}

    def choose(self, version: int) -> None:
        """Adds the network's outputs and the chosen action to the current row."""
        self.core_state = self.next_core_state
        row = {name: tensor[None] for name, tensor in self.row.items()}  # [T = 1, N, ...]
        with models.autocast(self.net, self.flags.precision, self.device):
            outputs, self.next_core_state = choose_actions(self.net, row, self.core_state, False)
        self.row |= {name: tensor[0] for name, tensor in outputs.items()}
        self.row["policy_version"] = torch.full_like(self.row["episode_step"], version).long()
        self.clock.lap("inference")

    def unroll(self, version: int) -> Rollout:
        """Returns the next T transitions, as rows [T+1, N, ...] and core_state/i [layers, N, H].
        Row 0 repeats row T of the rollout before. The next call overwrites them."""
        for i, state in enumerate(self.core_state):
            self.rollout[f"core_state/{i}"].copy_(state)
        self.write(0)
        for t in range(1, self.flags.unroll_length + 1):
            self.clock.begin_call()
            self.row = self.rows.step(self.row["action"])
            self.clock.lap("environment")
            self.on_open(1)
            self.choose(version)
            self.write(t)
        return self.rollout

    def write(self, t: int) -> None:
        for name, value in self.row.items():
            self.rollout[name][t] = value


# ========================================================================================= training
def train(flags: Flags) -> Run:
    """Trains until --total_steps are done or a signal stops the run, and returns the run.

    Raises:
        UserError: the environment, the network or this machine cannot do what the flags ask for.
        Exception: what `Run` raises.
    """
    devices.open_each(flags)
    seed_everything(flags.seed)
    device = torch.device(flags.learner_device)
    with OpeningWatch(flags), errors_of(flags.env):
        vector, spec = open_vector(flags, device)
        rows = TensorRows(vector, spec, device)
        rows.initial(flags.seed)  # a faulty environment fails here, before there is a run
    flags = recipes.complete(flags, lambda draft, spec: check_flags(draft), spec, RECIPES)
    net = make_net(Net, spec, flags)
    run = Run(flags, spec, net, device, player, targets, loss)
    with errors_of(flags.env), contextlib.closing(vector), run:
        run.between = Between()  # FORK HERE: what stands between the rollouts and the learner
        if not run.finished():
            act_and_learn(run, rows)
    return run


def open_vector(flags: Flags, device: torch.device) -> tuple[Any, Spec]:
    """Opens the environments. Returns the vector and its spec."""
    vector = seeded(lambda flags: create_env(flags, device), flags, flags.num_envs)()
    if not hasattr(vector, "num_envs"):
        expected = "a TensorVector, or another vector environment that gives tensors"
        hint = "MonoBeast plays single environments."
        raise UserError(f"create_env returned {brief(vector)}; expected {expected}. {hint}")
    return vector, Environment(lambda: vector, flags.num_envs, flags.env).spec


def act_and_learn(run: Run, rows: TensorRows) -> None:
    """Acts and learns in turns. The same seed gives the same numbers on the same machine, but a run
    that resumes begins new games."""
    flags, learner = run.flags, run.learner
    clock = Clock(ACTIVITIES)
    run.log.sources.append(shares(ACTIVITIES, lambda: clock.seconds))
    seed = derive_seed(flags.seed, learner.updates)
    if learner.updates:
        seed_everything(seed)
    leave = functools.partial(run.__exit__, None, None, None)  # saves the run
    with OpeningWatch(
        flags, must_end=run.finished, leave=leave, what="The first step", clock=clock
    ) as on_open:
        actor = Actor(rows, learner.net, seed, flags, clock, learner.updates, on_open)
        for batch in run.between.batches(rollouts(run, actor)):
            if not learn_batch(run, batch):  # finished: the rest is not learned from
                return
            clock.lap("learning")
            run.tick()


def rollouts(run: Run, actor: Actor) -> Iterator[Rollout]:
    """Yields the parts of one rollout after the other, until the run is finished."""
    flags = run.flags
    while not run.finished():
        rollout = actor.unroll(run.learner.updates)
        ends = [k for k in rollout if k.endswith(("done", "terminated", "truncated"))]
        names = {*BOOKS, *run.spec.numbers, *run.spec.masks, *run.spec.sets, *ends}
        floats = [k for k in run.spec.observations if rollout[k].is_floating_point()]
        finite = {f"finite {k}": rollout[k].isfinite().all() for k in floats}
        (books,) = devices.to_host({name: rollout[name] for name in names} | finite)
        if wrong := [k for k in floats if not books.pop(f"finite {k}")]:
            raise UserError(f"--env {flags.env}: expected finite numbers in observations {wrong}")
        ended = (books["terminated"] | books["truncated"]).numpy()
        arrays = {k: x.numpy() for k, x in books.items()}
        run.spec.check_sets(arrays)
        run.spec.check_masks(arrays, ended)
        if not (returns := books["episode_return"]).isfinite().all():
            seen = f"seen an episode's return {returns[~returns.isfinite()][0]:g}"
            raise UserError(f"--env {flags.env}: expected finite rewards, {seen}")
        discount = books.get("discount", torch.ones(()))
        if not (fits := discount.abs() <= 1).all():
            seen = f"seen {discount[~fits][0]:g}"
            raise UserError(f"--env {flags.env}: expected discounts from -1 to 1, {seen}")
        run.stats.add_games(books)
        read = {name: books[name] for name in ("done", "policy_version")}
        yield from divide(rollout | read, flags.batch_size)


def divide(rollout: Rollout, batch_size: int) -> Iterator[Rollout]:
    """Yields parts of a rollout, each of `batch_size` columns. They share its memory."""
    for first in range(0, rollout["reward"].shape[1], batch_size):
        yield {name: tensor[:, first : first + batch_size] for name, tensor in rollout.items()}


# ==================================================================================== test and main
def player(flags: Flags) -> tuple[nn.Module, Environment]:
    """Makes a network and the environments in which it plays whole games, on the CPU."""
    num_envs = program.games_at_once(flags, flags.num_envs)
    flags = replace(flags, num_envs=num_envs)
    vector, _ = open_vector(flags, torch.device("cpu"))
    env = Environment(lambda: FromArrays(vector), num_envs, flags.env)
    return make_net(Net, env.spec, flags), env


parse = functools.partial(program.parse, make_parser, check_flags)
main = functools.partial(program.main, "warpbeast", make_parser, check_flags, train, player)


if __name__ == "__main__":
    main()
