# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast trains an agent with IMPALA. Its environments run in servers, on one or many machines.

    python -m polybeast --xpid pong-poly                     # train on Pong, or resume training
    python -m polybeast --xpid pong-poly --mode test         # play 10 games with the network
    python -m polybeast --xpid pong-poly --mode test_render  # play them and write a video
    python -m polybeast --server_addresses envs-1:5000-5015,envs-2:5000-5015 --tls_cert ...

Without --server_addresses this program starts its environment servers (polybeast_env.py) itself. In
this process, the threads of a C++ actor pool hold streams to the servers, inference threads choose
the actions for all streams in batches, and learner threads minimise the IMPALA loss:

    server -> row -> batch -> net -> row -> rollout -> batch -> loss -> weights

Add a model in the place marked FORK HERE, and an environment in that of polybeast_env.py.
"""

import argparse
import contextlib
import functools
import math
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

if __name__ in ("__main__", "__mp_main__"):  # first, because the other imports take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.before_imports(__name__)

import torch
from torch import nn

import atari_wrappers
import libtorchbeast
import polybeast_env
from libtorchbeast import models, program, recipes, workers
from libtorchbeast.accelerator import devices, graphs, lending
from libtorchbeast.accelerator.devices import device_stream
from libtorchbeast.agents import make_net
from libtorchbeast.checkpoint import load_newest, path_of
from libtorchbeast.distributed import ranks
from libtorchbeast.distributions import make_distribution
from libtorchbeast.environment import Environment
from libtorchbeast.flags import (
    LONGEST_S,
    MAX_COUNT,
    Flags,
    Parser,
    UserError,
    real,
    replace,
    require,
    whole,
)
from libtorchbeast.learner import Between, start_learners
from libtorchbeast.loggers.timing import INFERENCE_ACTIVITIES, Clock, latency_percentiles, shares
from libtorchbeast.models import CoreState
from libtorchbeast.past import past_of_run
from libtorchbeast.rpcenv.addresses import parse_addresses
from libtorchbeast.rpcenv.client import StreamMonitor, first_description, spec_of
from libtorchbeast.rpcenv.local_servers import LocalServers
from libtorchbeast.rpcenv.tls import Tls, load_tls
from libtorchbeast.run import Run
from libtorchbeast.seeds import derive_seed, seed_everything
from libtorchbeast.shared_memory import require_descriptors, require_stream_memory
from libtorchbeast.spec import Spec
from libtorchbeast.weights import NewestWeights
from monobeast import add_own_flags, loss, targets  # FORK HERE: a fork may write its own


# ======================================================================================= FORK HERE
class Net(nn.Module):
    """TorchBeast's deep network for images: the residual network of 15 convolutions that the IMPALA
    paper shows in figure 3 (right). It also reads the clipped reward, and the parts of an
    observation that are not images."""

    for_vectors = models.VectorNet  # replaces this class for float vectors if there is no core

    def __init__(self, spec: Spec, flags: Flags):
        super().__init__()
        self.parts = models.Parts(spec)
        if self.parts.image_shape is None:
            said = f"polybeast.Net reads images [C, H, W]; the environment has {spec.observations}"
            raise UserError(f"{said}. Perhaps --net monobeast.Net?")
        self.distribution = make_distribution(spec.actions)
        channels = [self.parts.image_shape[0], 16, 32, 32]
        sections = [Section(*channels[i : i + 2]) for i in range(3)]
        self.trunk = nn.Sequential(*sections, nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            features = self.trunk(torch.zeros(1, *self.parts.image_shape)).shape[1]
        self.fc = nn.Sequential(nn.Linear(features + self.parts.width, 256), nn.ReLU())
        self.core = models.make_core(flags, 256 + 1, 256)  # fc, clipped reward
        core_width = self.core.hidden_size if self.core else 256 + 1
        self.policy = nn.Linear(core_width, self.distribution.num_logits)
        self.baseline = nn.Linear(core_width, 1)
        models.make_orthogonal([self.policy], 0.01)  # as in monobeast.Net
        models.make_orthogonal([self.baseline], 1.0)

    def initial_state(self, batch_size: int) -> CoreState:
        return models.zero_state(self.core, batch_size)

    def forward(self, inputs: dict[str, torch.Tensor], core_state: CoreState = ()):
        T, B = inputs["reward"].shape
        image, vector = self.parts(inputs)  # [T * B, C, H, W], [T * B, F] or None
        x = self.trunk(image)
        x = self.fc(x if vector is None else torch.cat([x, vector], dim=1)).float()  # [T * B, 256]
        clipped_reward = inputs["reward"].clamp(-1, 1).unsqueeze(-1)
        x = torch.cat([x.view(T, B, -1), clipped_reward], dim=-1)
        initial = self.initial_state(B)
        x, core_state = models.unroll(self.core, x, inputs["done"], core_state, initial)
        x = x.float()
        with torch.autocast(x.device.type, enabled=False):  # the heads stay float32
            policy_logits, baseline = self.policy(x), self.baseline(x).squeeze(-1)
        return dict(policy_logits=policy_logits, baseline=baseline), core_state


class Section(nn.Module):
    """A convolution, a max-pooling that halves height and width, and two residual blocks."""

    def __init__(self, in_channels: int, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1),
                nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1),
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        for block in self.blocks:
            x = x + block(x)
        return x


# ============================================================================================ flags
RECIPES = recipes.LEARNING  # defaults for each kind of environment
INFERENCE_TIMEOUT_MS = 10.0  # the longest time that an inference batch waits for environments


# fmt: off
def make_parser() -> Parser:
    parser = Parser("polybeast", __doc__)
    add_acting_flags(parser)
    parser.add_shared("self-play", "learning", "model", "loss", "optimizer", "evaluation", "ranks")
    parser.explain_recipes(RECIPES)
    return parser


def add_acting_flags(parser: Parser) -> None:
    """Adds the flags of every program that learns from environment servers."""
    polybeast_env.add_flags(parser)  # --env, --server_addresses and the servers' other flags
    add_own_flags(parser)
    parser.add_shared("run")
    add = parser.group("acting", "How the servers' environments get their actions.")
    add("--num_actors", type=whole(1),
        help="Number of streams, assigned to the servers in turn. Default: one for each server.")
    add("--server_timeout", type=real(0.1, LONGEST_S), default=300.0, metavar="SECONDS",
        help="If no server can be reached for this long, the run saves a checkpoint and ends. A "
             "server that is opening its environments at that time is waited for.")
    add("--num_inference_threads", type=whole(1, 8), default=1,
        help="Number of inference threads. Each has its own copy of the network.")
    add("--max_learner_queue_size", type=whole(1),
        help="Number of rollouts, each of one environment, that may wait for the learner. When the "
             "queue is full, the streams wait. Default: --batch_size; R2D2 takes two for each "
             "environment, if that is more.")
# fmt: on


def check_flags(draft: argparse.Namespace, spec: Spec | None = None) -> Flags:
    """Fills in the defaults that depend on other flags and on the environment (see `recipes`), and
    freezes the result. Raises UserError if two flags contradict each other."""
    kind = recipes.kind_of(draft, atari_wrappers.is_atari(draft.env), spec)
    recipes.apply(draft, RECIPES, kind)
    return check_acting_flags(draft, spec)


def check_acting_flags(draft: argparse.Namespace, spec: Spec | None = None) -> Flags:
    """The part of `check_flags` that holds for every program that learns from servers."""
    polybeast_env.complete_flags(draft, spec)
    if not draft.num_actors:  # None, or 0 from a run that MonoBeast began
        draft.num_actors = len(ranks.own_part(range(draft.num_servers), draft.server_addresses))
    devices.choose(draft)
    if draft.torch_threads is None:
        # Other networks than the programs' own ones on Atari are probably small.
        is_large = draft.net is None and atari_wrappers.is_atari(draft.env)
        used = workers.share_of_cores() if is_large else workers.share_of_cores() // 2
        on_cpu = any(map(devices.is_cpu, (draft.learner_device, draft.inference_device)))
        draft.torch_threads = max(1, used) if on_cpu else 1
    if draft.max_learner_queue_size is None:
        draft.max_learner_queue_size = ranks.share(draft.batch_size)
    if draft.server_addresses is None:
        most = draft.num_servers * draft.max_streams
        expected = f"at most --num_servers x --max_streams = {most}"
        require(draft, "num_actors", draft.num_actors <= most, expected)
    if not recipes.may_change(draft, "batch_size", spec):
        name, least = "max_learner_queue_size", ranks.share(draft.batch_size)
        expected = f"at least --batch_size {least}" + " of each rank" * (ranks.count() > 1)
        require(draft, name, draft.max_learner_queue_size >= least, expected)
    return Flags(**vars(draft))


# ======================================================================================== inference
Batches = Iterable["libtorchbeast.Batch"]  # of rows that wait for their actions
Act = Callable[..., tuple[dict[str, torch.Tensor], CoreState]]  # as `models.act_on`


def infer(
    run: Run, batcher: Batches, weights: NewestWeights, net: nn.Module, clock: Clock, act: Act
) -> None:
    """Runs in an inference thread. It answers batches of rows with its own network `net`, into
    which it copies the newest weights between two batches."""
    device = next(net.parameters()).device
    with device_stream(device, devices.FIRST), models.autocast(net, run.flags.precision, device):
        version, inputs = weights.copy_to(net), lending.Inputs(device)
        for batch in batcher:
            clock.lap("answer_waiting")
            if weights.version != version:
                version = weights.copy_to(net)
                torch.clear_autocast_cache()  # it holds the old weights
            row, core_state = inputs.of(batch)  # [1, B, ...]
            outputs, core_state = act(net, row, core_state)
            outputs["policy_version"] = torch.full((1, len(batch)), version)
            batch.set_outputs((outputs, core_state))
            run.stats.add_inference(len(batch))
            clock.lap("answering")


def start_inference(
    run: Run, batcher: Batches, weights: NewestWeights, nets: list[nn.Module], act: Act
) -> None:
    """Starts one inference thread for each of `nets`, which chooses actions with `act`."""
    graphs.for_inference(nets, run.flags.num_actors * run.spec.num_envs, run.flags)
    clocks = [Clock(INFERENCE_ACTIVITIES) for _ in nets]
    run.log.sources.append(shares(INFERENCE_ACTIVITIES, lambda: sum(c.seconds for c in clocks)))
    for i, net in enumerate(nets):
        run.threads.start(infer, (run, batcher, weights, net, clocks[i], act), f"inference-{i}")


# ========================================================================================= training
def train(flags: Flags) -> Run:
    """Trains until --total_steps are done or a signal stops the run, and returns the run.

    Raises:
        UserError: the servers, the network or this machine cannot do what the flags ask for.
        ServersLost: no server could be reached for --server_timeout.
        Exception: the first failure of a thread, and what `Run` raises.
    """
    with opened(flags) as (servers, spec):
        flags = recipes.complete(flags, check_flags, spec, RECIPES)
        net = make_net(Net, spec, flags)
        past = past_of_run(Net, spec, flags, flags.num_actors)
        state = past.initial_state(net, 1)
        max_bytes = require_stream_memory(flags, servers.description, state)
        device = torch.device(flags.learner_device)
        with Run(flags, spec, net, device, player, targets, loss) as run:
            run.between = Between()  # FORK HERE: what stands between the rollouts and the learner
            if not run.finished():
                columns = ranks.share(flags.batch_size)
                train_with_servers(run, servers, max_bytes, columns, Net, state, past.act)
    return run


class Servers(NamedTuple):
    """The environment servers of a run."""

    addresses: list[str]
    description: Any  # returned by `libtorchbeast.describe`; the same for all servers
    check: Callable[[], None]  # raises UserError if local servers have ended
    tls: Tls | None = None  # None: they are on this machine, or --insecure


@contextlib.contextmanager
def opened(flags: Flags) -> Iterator[tuple[Servers, Spec]]:
    """Prepares this process for training, and connects it to the servers. Yields them and the spec
    of their environments."""
    tls = load_tls(flags)
    require_descriptors(flags)
    devices.open_each(flags)
    seed_everything(flags.seed)
    # Threads release the GIL sooner. This gave 1.15 times the steps per second on MinAtar.
    sys.setswitchinterval(50e-6)
    with connect(flags, tls) as servers:
        name = servers.description.name
        require(flags, "env", flags.env == name, f"{name}, as the servers have")
        yield servers, spec_of(servers.description)


@contextlib.contextmanager
def connect(flags: Flags, tls: Tls | None) -> Iterator[Servers]:
    """Finds the servers at --server_addresses, or starts local ones that end with this context."""
    if flags.server_addresses is not None:
        addresses = ranks.own_part(parse_addresses(flags.server_addresses), True)
        description = first_description(addresses, flags.server_timeout, tls=tls)
        yield Servers(addresses, description, lambda: None, tls)
        return
    updates = (load_newest(path_of(flags)) or {"updates": 0})["updates"]
    if ranks.rank() > 0:  # other games than other ranks, and, without a checkpoint, than before
        flags = replace(flags, seed=derive_seed(flags.seed, ranks.rank(), time.time_ns()))
    # The default of --envs_per_server depends on the observations, which the servers know, unless
    # the network is recurrent, which they do not know. If it is not, they choose the default.
    if "envs_per_server" in flags.left_out and not flags.core:
        flags = replace(flags, envs_per_server=None)
    with LocalServers(flags, updates) as local:
        description = local.describe(3 * flags.open_timeout + flags.server_timeout)
        yield Servers(local.addresses, description, local.check)


def train_with_servers(
    run: Run, servers: Servers, max_bytes: int, columns: int, own: type, state: CoreState, act: Act
) -> None:
    """Trains with the actor pool's threads, which hold the streams, inference threads, which answer
    them by `act` with networks of the class `own`, and learner threads. This thread supervises them
    all. A stream begins with the core `state` of one environment, and is refused if one of its
    rollouts would have more than `max_bytes`. Each batch of the queue has that many `columns`."""
    flags, learner = run.flags, run.learner
    device = torch.device(flags.inference_device)
    weights = NewestWeights(learner.net.state_dict(), learner.updates, device)
    nets = [make_net(own, run.spec, flags) for _ in range(flags.num_inference_threads)]
    with open_streams(run, servers, max_bytes, columns, state) as (queue, batcher, streams):
        batches = lambda: checked(run.spec, lending.batches(queue, learner.device))
        start_learners(run, batches, weights.publish)
        nets = [models.compile_if_asked(net.to(device), flags) for net in nets]
        start_inference(run, batcher, weights, nets, act)
        while not run.finished():
            select.select([run.wakeup], [], [], min(0.5, run.seconds_to_tick()))
            servers.check()
            streams.check()
            run.tick()


def checked(spec: Spec, batches: Iterator[dict]) -> Iterator[dict]:
    """Yields the batches. Raises UserError if an `action_mask` allows no action or a number is
    beyond its set, which a server in another language may not have checked."""
    for batch in batches:
        spec.check_sets({name: batch[name].numpy() for name in spec.sets})
        if spec.masks:
            names = ("action_mask", "done", "terminated", "truncated")  # also those of agents
            rows = {name: x.numpy() for name, x in batch.items() if name.endswith(names)}
            spec.check_masks(rows, rows["terminated"] | rows["truncated"])
        yield batch


@contextlib.contextmanager
def open_streams(
    run: Run, servers: Servers, max_bytes: int, columns: int, state: CoreState
) -> Iterator[tuple["libtorchbeast.BatchingQueue", "libtorchbeast.DynamicBatcher", StreamMonitor]]:
    """Opens the streams and logs what they do. Yields the queue of their rollouts, the batcher of
    their rows, and their monitor. At the end of the context all threads of the run end, and the
    first failure of one is raised."""
    flags = run.flags
    queue = libtorchbeast.BatchingQueue(columns, flags.max_learner_queue_size)
    # One half of the environments steps while the network chooses actions for the other half.
    half = max(1, flags.num_actors // 2) * servers.description.num_envs
    batcher = libtorchbeast.DynamicBatcher(half, MAX_COUNT, INFERENCE_TIMEOUT_MS)
    pool = libtorchbeast.ActorPool(
        flags.unroll_length, queue, batcher,
        [servers.addresses[i % len(servers.addresses)] for i in range(flags.num_actors)],
        state, servers.description,
        step_timeout=flags.step_timeout, reset_timeout=longest_opening(flags, servers),
        tls=servers.tls, max_rollout_bytes=max_bytes,
    )  # fmt: skip
    try:
        streams = StreamMonitor(pool, flags.server_timeout, flags.server_addresses is None)
        run.log.sources += [
            shares(pool.ACTIVITIES, pool.seconds),
            latency_percentiles(pool.latencies),
            streams.row,
        ]
        yield queue, batcher, streams
    finally:
        pool.close()  # closes the queue and the batcher too, which ends the threads' loops
        run.learner.close()
        run.threads.join(timeout=5.0)
    run.threads.raise_failure()
    pool.take_events()  # raises the error that stopped the pool, if there is one


def longest_opening(flags: Flags, servers: Servers) -> float:
    """Seconds after which a stream that has not begun is given up. A server opens the environments
    of its streams one after the other, and ends itself if one of them takes too long."""
    streams = math.ceil(flags.num_actors / len(servers.addresses))
    opening = streams * servers.description.num_envs * flags.open_timeout
    return min(flags.server_timeout + opening, LONGEST_S)


# ==================================================================================== test and main
def player(flags: Flags, net: type[nn.Module] = Net) -> tuple[nn.Module, Environment]:
    """Makes a network and, on this machine, the environments in which it plays whole games."""
    num_envs = program.games_at_once(flags, flags.envs_per_server)
    env = polybeast_env.make_environment(replace(flags, envs_per_server=num_envs))
    return make_net(net, env.spec, flags), env


parse = functools.partial(program.parse, make_parser, check_flags)
main = functools.partial(program.main, "polybeast", make_parser, check_flags, train, player)


if __name__ == "__main__":
    main()
