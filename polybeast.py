# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast: IMPALA with environment servers, on this machine or on many.

    python -m polybeast --xpid pong                       # trains on Pong; again: goes on
    python -m polybeast --xpid pong --mode test           # plays 10 games with what was learned
    python -m polybeast --xpid pong --mode test_render    # ... and writes a video
    python -m polybeast --server_addresses envs-1:5000-5015,envs-2:5000-5015 --tls_cert ...

Environment servers (polybeast_env.py) step environments. In this process, threads of a C++ actor
pool hold a stream to each, inference threads answer all of them in batches, and learner threads
apply the IMPALA loss:

    server -> row -> batch -> net -> row -> rollout -> batch -> loss -> weights

For a new model edit the place marked FORK HERE; for a new environment the one in polybeast_env.py.
"""

import argparse
import contextlib
import logging
import select
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, NamedTuple

if __name__ in ("__main__", "__mp_main__"):  # before the other imports, which take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.before_imports(__name__)

import torch
from torch import nn

import libtorchbeast
import polybeast_env
from libtorchbeast import devices, evaluate, models, workers
from libtorchbeast.checkpoint import CheckpointError
from libtorchbeast.devices import own_stream, to_device, to_host
from libtorchbeast.distributions import make_distribution
from libtorchbeast.environment import Environment
from libtorchbeast.flags import (
    LONGEST_S,
    MAX_COUNT,
    Flags,
    Parser,
    Recipes,
    UserError,
    add_learner_flags,
    add_run_flags,
    apply_recipe,
    choose_xpid,
    from_settings,
    given,
    parse_args,
    real,
    replace,
    require,
    whole,
)
from libtorchbeast.loggers import display
from libtorchbeast.loggers.bottleneck import PolyBeastAdvisor
from libtorchbeast.loggers.files import RunInUse
from libtorchbeast.loggers.timing import (
    INFERENCE_ACTIVITIES,
    Clock,
    LatencyPercentiles,
    Shares,
    ThreadClocks,
)
from libtorchbeast.models import CoreState, act_on
from libtorchbeast.rpcenv.addresses import parse_addresses
from libtorchbeast.rpcenv.client import ServersLost, StreamMonitor, first_description, spec_of
from libtorchbeast.rpcenv.local_servers import LocalServers
from libtorchbeast.rpcenv.tls import Tls, load_tls
from libtorchbeast.run import Run
from libtorchbeast.seeds import seed_everything
from libtorchbeast.shared_memory import require_descriptors
from libtorchbeast.spec import Spec
from libtorchbeast.tools import autotune
from libtorchbeast.weights import NewestWeights

logger = logging.getLogger("polybeast")


# ======================================================================================= FORK HERE
class Net(nn.Module):
    """TorchBeast's deep network for images, IMPALA's figure 3, right: a ResNet of 15 convolutions,
    with the clipped reward."""

    def __init__(self, spec: Spec, flags: Flags):
        super().__init__()
        shape, _ = spec.observations.get("frame", ((), ""))
        models.check_image(shape)
        if len(shape) != 3:
            raise UserError(
                f"polybeast.Net reads images, `frame` [C, H, W]; the environment has "
                f"{spec.observations}. Perhaps --net monobeast.Net?"
            )
        self.distribution = make_distribution(spec.actions)
        channels = [shape[0], 16, 32, 32]
        sections = [Section(*channels[i : i + 2]) for i in range(3)]
        self.trunk = nn.Sequential(*sections, nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            features = self.trunk(torch.zeros(1, *shape)).shape[1]
        self.fc = nn.Sequential(nn.Linear(features, 256), nn.ReLU())
        self.core = nn.LSTM(256 + 1, 256) if flags.use_lstm else None
        core_width = 256 if flags.use_lstm else 256 + 1  # fc, clipped reward
        self.policy = nn.Linear(core_width, self.distribution.num_logits)
        self.baseline = nn.Linear(core_width, 1)
        for head, gain in ((self.policy, 0.01), (self.baseline, 1.0)):  # as in monobeast.Net
            nn.init.orthogonal_(head.weight, gain)
            nn.init.zeros_(head.bias)

    def initial_state(self, batch_size: int) -> CoreState:
        if self.core is None:
            return ()
        shape = (self.core.num_layers, batch_size, self.core.hidden_size)
        device = self.policy.weight.device
        return (torch.zeros(shape, device=device), torch.zeros(shape, device=device))

    def forward(self, inputs: dict[str, torch.Tensor], core_state: CoreState = ()):
        frame = inputs["frame"]  # [T, B, C, H, W]
        T, B, *shape = frame.shape
        x = models.as_floats(frame.reshape(T * B, *shape))
        x = self.fc(self.trunk(x)).float()  # [T * B, 256]
        clipped_reward = inputs["reward"].clamp(-1, 1).reshape(T * B, 1)
        x = torch.cat([x, clipped_reward], dim=-1)
        if self.core is not None:
            x, core_state = models.unroll(
                self.core, x.view(T, B, -1), inputs["done"], core_state, self.initial_state(B)
            )
            x = x.flatten(0, 1).float()
        with torch.autocast(x.device.type, enabled=False):  # the heads stay float32
            policy_logits, baseline = self.policy(x), self.baseline(x)
        policy_logits = policy_logits.view(T, B, -1)
        return dict(policy_logits=policy_logits, baseline=baseline.view(T, B)), core_state


class Section(nn.Module):
    """Halves height and width: a convolution, a max-pooling, two residual blocks."""

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
# Defaults that depend on the kind of environment, as in MonoBeast.
RECIPES: Recipes = {
    "atari": dict(batch_size=4, learning_rate=4e-4, total_steps=6_000_000, eval_every=1_000_000),
    "other": dict(batch_size=32, learning_rate=3e-3, total_steps=10_000_000, eval_every=2_500_000),
}

# The values that --autotune tries. Servers on other machines stay as they are.
KNOBS: autotune.Knobs = {
    "num_servers": lambda f: [] if f.server_addresses else autotune.worker_counts(f),
    "envs_per_server": lambda f: [] if f.server_addresses else autotune.around(f.envs_per_server),
    "num_actors": lambda f: [2 * f.num_actors],
    "torch_threads": lambda f: [1, workers.available_cores()],
    "min_inference_batch_size": lambda f: [1, f.num_actors * f.envs_per_server],  # any, all
    "inference_timeout_ms": lambda f: [1, 3, 30] if f.min_inference_batch_size != 1 else [],
}


# fmt: off
def make_parser() -> Parser:
    parser = Parser("polybeast", __doc__)
    polybeast_env.add_flags(parser)  # --env, --server_addresses and what else the servers have
    add_run_flags(parser)
    group = parser.add_argument_group("acting", "How the servers' environments get their actions.")
    add = group.add_argument
    add("--num_actors", type=whole(1),
        help="Streams, spread round robin over the servers. Default: one for each server.")
    add("--server_timeout", type=real(0.1, LONGEST_S), default=300.0, metavar="SECONDS",
        help="A run that has had no server for so long saves and ends.")
    add("--num_inference_threads", type=whole(1, 64), default=1,
        help="Inference threads. Each has a copy of the network.")
    add("--inference_device", metavar="DEVICE",
        help="Device of the inference threads. Default: the learner's.")
    add("--learner_device", metavar="DEVICE",
        help="Device of the learner. Default: cuda where there is one, else cpu.")
    add("--max_inference_batch_size", type=whole(1), metavar="B",
        help="Largest number of columns in an inference batch. Default: as many as wait.")
    add("--min_inference_batch_size", type=whole(1), metavar="B",
        help="An inference batch waits for so many columns, but no longer than "
             "--inference_timeout_ms. Default: half of all streams' environments, so that one half "
             "steps while the other half is answered.")
    add("--inference_timeout_ms", type=real(0, 1000 * LONGEST_S), default=10.0, metavar="MS",
        help="Longest time that an inference batch waits for more columns.")
    add("--max_learner_queue_size", type=whole(1),
        help="Columns that may wait for the learner before the streams have to wait. Default: "
             "--batch_size.")
    add_learner_flags(parser, RECIPES)
    return parser
# fmt: on


def parse(argv: list[str]) -> Flags:
    return check_flags(parse_args(make_parser(), argv))


def check_flags(draft: argparse.Namespace) -> Flags:
    """Fills in the defaults that depend on other flags, and refuses what cannot work together."""
    is_atari = polybeast_env.is_atari(draft.env)
    apply_recipe(draft, RECIPES["atari" if is_atari else "other"])
    polybeast_env.complete_flags(draft)
    if draft.num_actors is None:
        draft.num_actors = draft.num_servers
    if draft.torch_threads is None:
        cores = workers.available_cores()
        is_deep = draft.net is None and is_atari  # another network is small, most likely
        draft.torch_threads = cores if is_deep else max(1, cores // 2)
    if draft.max_learner_queue_size is None:
        draft.max_learner_queue_size = draft.batch_size
    if draft.server_addresses is None:
        most = draft.num_servers * draft.max_streams
        expected = f"at most --num_servers x --max_streams = {most}"
        require(draft, "num_actors", draft.num_actors <= most, expected)
    require_at_least(draft, "max_inference_batch_size", "min_inference_batch_size")
    require_at_least(draft, "max_learner_queue_size", "batch_size")
    devices.choose(draft)
    choose_xpid(draft)
    return Flags(**vars(draft))


def require_at_least(draft: argparse.Namespace, name: str, other: str) -> None:
    value, least = getattr(draft, name), getattr(draft, other)
    holds = value is None or least is None or value >= least
    require(draft, name, holds, f"at least --{other} {least}")


# ======================================================================================== inference
def infer(
    run: Run,
    batcher: Iterable[Any],
    weights: NewestWeights,
    net: nn.Module,
    clock: Clock,
) -> None:
    """An inference thread: answers batches of rows with its own `net`, whose weights are always of
    one version, the newest."""
    device = next(net.parameters()).device
    with own_stream(device), models.autocast(run.flags.precision, device):
        version = weights.copy_to(net)
        for batch in batcher:
            clock.lap("answer_waiting")
            if weights.version != version:
                version = weights.copy_to(net)
                torch.clear_autocast_cache()  # it holds the old weights
            row, core_state = (to_device(x, device) for x in batch.get_inputs())  # [1, B, ...]
            outputs, core_state = to_host(*act_on(net, row, core_state))
            outputs["policy_version"] = torch.full((1, len(batch)), version)
            batch.set_outputs((outputs, core_state))
            run.stats.add_inference(len(batch))
            clock.lap("answering")


def start_inference(
    run: Run, batcher: Iterable[Any], weights: NewestWeights, nets: list[nn.Module]
) -> None:
    """Starts a thread for each of the networks."""
    clocks = ThreadClocks(INFERENCE_ACTIVITIES, len(nets))
    run.log.sources.append(clocks.take)
    for i, net in enumerate(nets):
        run.threads.start(infer, (run, batcher, weights, net, clocks[i]), f"inference-{i}")


# ========================================================================================= training
def train(flags: Flags) -> Run:
    """Trains until --total_steps, a signal to stop or a failure, which it raises."""
    require_descriptors(flags)
    devices.open_each(flags)
    tls = load_tls(flags)
    seed_everything(flags.seed)
    torch.set_num_threads(flags.torch_threads)
    # A thread that asks for the interpreter lock gets it sooner: 1.15 x the steps on MinAtar.
    sys.setswitchinterval(50e-6)
    with connect(flags, tls) as servers:
        check_description(flags, servers.description)
        spec = spec_of(servers.description)
        net = models.make_net(Net, spec, flags)
        device = torch.device(flags.learner_device)
        with Run(flags, spec, net, device, PolyBeastAdvisor(flags).advise) as run:
            if not run.finished():
                run.evaluate_with(player)
                train_with_servers(run, servers, tls)
    return run


class Servers(NamedTuple):
    """The environment servers of a run."""

    addresses: list[str]
    description: Any  # what `libtorchbeast.describe` returned: they are all alike
    check: Callable[[], None]  # raises UserError if local ones have ended


@contextlib.contextmanager
def connect(flags: Flags, tls: Tls | None) -> Iterator[Servers]:
    """Finds the servers at --server_addresses, or starts local ones, which live as long as this
    context."""
    if flags.server_addresses is not None:
        addresses = parse_addresses(flags.server_addresses)
        description = first_description(addresses, flags.server_timeout, tls=tls)
        yield Servers(addresses, description, check=lambda: None)
        return
    with LocalServers(flags) as local:
        yield Servers(local.addresses, local.describe(flags.server_timeout), local.check)


def check_description(flags: Flags, description: Any) -> None:
    """Refuses flags that do not suit what the servers have."""
    require(flags, "env", flags.env == description.name, f"what is served: {description.name}")
    name, N = "max_inference_batch_size", description.num_envs
    fits = flags.max_inference_batch_size is None or flags.max_inference_batch_size >= N
    require(flags, name, fits, f"at least one stream's {N} environments")


def train_with_servers(run: Run, servers: Servers, tls: Tls | None) -> None:
    """The pool's threads hold the streams, inference threads answer them, learner threads learn,
    and this thread watches over all."""
    flags, learner = run.flags, run.learner
    device = torch.device(flags.inference_device)
    weights = NewestWeights(learner.net.state_dict(), learner.updates, device)
    nets = [models.make_net(Net, run.spec, flags) for _ in range(flags.num_inference_threads)]
    queue = libtorchbeast.BatchingQueue(flags.batch_size, flags.max_learner_queue_size)
    batcher = make_batcher(flags, servers.description.num_envs)
    pool = libtorchbeast.ActorPool(
        flags.unroll_length, queue, batcher,
        [servers.addresses[i % len(servers.addresses)] for i in range(flags.num_actors)],
        models.initial_state(nets[0], 1), servers.description,
        step_timeout=flags.step_timeout, reset_timeout=flags.server_timeout, tls=tls,
    )  # fmt: skip
    try:
        streams = StreamMonitor(pool, flags.server_timeout)
        run.log.sources += [
            Shares(pool.ACTIVITIES, pool.seconds).take,
            LatencyPercentiles(pool.latencies).take,
            streams.row,
        ]
        run.start_learners(lambda: queue, weights.publish)
        nets = [models.compile_if_asked(net.to(device), flags) for net in nets]
        start_inference(run, batcher, weights, nets)
        while not run.finished():
            select.select([run.wakeup], [], [], min(0.5, run.seconds_to_tick()))
            servers.check()
            streams.check()
            run.tick()
    finally:
        pool.close()  # and the queue and the batcher with it, so that the threads' loops end
        learner.close()  # an update that has begun still publishes its weights
        run.threads.join(timeout=5.0)
    run.threads.raise_failure()
    pool.take_events()  # a pool that could not go on says why


def make_batcher(flags: Flags, envs_per_stream: int) -> Any:
    maximum = flags.max_inference_batch_size or MAX_COUNT
    half = max(1, flags.num_actors // 2) * envs_per_stream
    minimum = flags.min_inference_batch_size or min(half, maximum)
    return libtorchbeast.DynamicBatcher(minimum, maximum, flags.inference_timeout_ms)


# ==================================================================================== test and main
def player(flags: Flags) -> tuple[nn.Module, Environment]:
    """A network, and environments on this machine, to play whole games with."""
    num_envs = evaluate.games_at_once(flags, flags.envs_per_server)
    env = polybeast_env.make_environment(replace(flags, envs_per_server=num_envs))
    return models.make_net(Net, env.spec, flags), env


def test(flags: Flags, given: Container[str]) -> list[evaluate.Game]:
    """Plays --num_episodes whole games with the newest checkpoint of --xpid."""
    flags, net, env = evaluate.load(flags, given, player)
    seed_everything(flags.seed)
    with contextlib.closing(env):
        return evaluate.test(flags, net, env)


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    display.set_up_logging()
    try:
        flags = parse(argv)
        if flags.mode != "train":
            test(flags, given(make_parser(), argv))
            return
        if flags.autotune is not None:
            make = lambda settings: check_flags(from_settings(make_parser(), settings))
            flags = autotune.tune("polybeast", given(make_parser(), argv), make, KNOBS)
        train(flags)
    except (UserError, CheckpointError, RunInUse, ServersLost) as error:
        sys.exit(f"polybeast: error: {error}")
    except KeyboardInterrupt:  # in --autotune
        sys.exit(130)


if __name__ == "__main__":
    main()
