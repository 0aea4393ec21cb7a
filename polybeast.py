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
import threading
from collections.abc import Callable, Iterable
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # before the other imports, which take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.begin(__name__)

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
    MAX_COUNT,
    HelpFormatter,
    UserError,
    apply_recipe,
    check_ranges,
    choose_xpid,
    given_names,
    require,
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
from libtorchbeast.rpcenv.client import ServersLost, Streams, first_description, spec_of
from libtorchbeast.rpcenv.local_servers import LocalServers
from libtorchbeast.rpcenv.tls import load_tls
from libtorchbeast.run import Run
from libtorchbeast.seeds import seed_everything
from libtorchbeast.shared_memory import require_descriptors
from libtorchbeast.spec import Spec
from libtorchbeast.tools import autotune
from libtorchbeast.weights import NewestWeights

logger = logging.getLogger("polybeast")


# Defaults that depend on the kind of environment, as in MonoBeast.
RECIPES = {
    "atari": dict(batch_size=4, learning_rate=4e-4, total_steps=6_000_000, eval_every=1_000_000),
    "other": dict(batch_size=32, learning_rate=3e-3, total_steps=10_000_000, eval_every=2_500_000),
}


# What --autotune tries; servers elsewhere are as they are.
KNOBS: autotune.Knobs = {
    "num_servers": lambda f: [] if f.server_addresses else autotune.worker_counts(f),
    "envs_per_server": lambda f: [] if f.server_addresses else autotune.around(f.envs_per_server),
    "num_actors": lambda f: [2 * f.num_actors],
    "torch_threads": lambda f: [1, workers.available_cores()],
    "min_inference_batch_size": lambda f: [1, f.num_actors * f.envs_per_server],  # any, all
    "inference_timeout_ms": lambda f: [1, 3, 30] if f.min_inference_batch_size != 1 else [],
}


# fmt: off
def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "polybeast", description=__doc__, allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    add = parser.add_argument

    def recipe(name: str) -> str:
        atari, other = RECIPES["atari"][name], RECIPES["other"][name]
        return f" Default: {atari:,} on Atari, {other:,} elsewhere."

    # --env, --server_addresses, ...: the flags of the environments and their servers
    polybeast_env.add_flags(parser)

    add("--mode", default="train", choices=["train", "test", "test_render"],
        help="test plays whole games with the newest checkpoint; test_render films them.")
    add("--xpid",
        help="Name of the run; one that exists is resumed. Default: the time of day; of the test "
             "modes: the newest run.")
    add("--savedir", default="~/logs/torchbeast", help="Folder of all runs.")
    add("--disable_checkpoint", action="store_true", help="Save nothing to resume from.")
    add("--log_every", type=float, default=10.0, metavar="SECONDS",
        help="Between two rows of the log.")
    add("--wandb", action="store_true", help="Log to Weights & Biases too (pip install wandb).")
    add("--checkpoint_every", type=float, default=300.0, metavar="SECONDS",
        help="Between two checkpoints; a stop saves too.")

    # Acting
    add("--num_actors", type=int,
        help="Streams, spread round robin over the servers. Default: one each.")
    add("--server_timeout", type=float, default=300.0, metavar="SECONDS",
        help="Without any server for as long, the run saves and ends.")
    add("--num_inference_threads", type=int, default=1, help="Each with a copy of the network.")
    add("--max_inference_batch_size", type=int, metavar="B",
        help="Columns in an inference batch. Default: as many as wait.")
    add("--min_inference_batch_size", type=int, metavar="B",
        help="Wait for as many columns, but not longer than --inference_timeout_ms. Default: half "
             "of all streams' environments, so that one half steps while the other is answered.")
    add("--inference_timeout_ms", type=float, default=10.0, metavar="MS")
    add("--max_learner_queue_size", type=int,
        help="Columns that wait for the learner before actors do. Default: --batch_size.")

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
    add("--learner_device", metavar="DEVICE", help="Default: cuda where there is one, else cpu.")
    add("--inference_device", metavar="DEVICE", help="Default: the learner's.")
    add("--precision", default="auto", choices=["auto", "bf16", "fp32"],
        help="Of convolutions and matrix products; auto: bf16 where the hardware has it.")
    add("--compile", action="store_true",
        help="torch.compile for the network. Takes minutes at the start; on a CPU it gained "
             "nothing.")

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
    apply_recipe(flags, RECIPES["atari" if polybeast_env.is_atari(flags.env) else "other"])
    polybeast_env.check_flags(flags)
    if flags.num_actors is None:
        flags.num_actors = flags.num_servers
    if flags.torch_threads is None:
        cores = workers.available_cores()
        is_deep = flags.net is None and polybeast_env.is_atari(flags.env)  # else small, most likely
        flags.torch_threads = cores if is_deep else max(1, cores // 2)
    if flags.max_learner_queue_size is None:
        flags.max_learner_queue_size = flags.batch_size
    check_ranges(flags)
    require(flags, "num_actors", flags.num_actors > 0, "at least 1")
    if flags.server_addresses is None:
        most = flags.num_servers * flags.max_streams
        expected = f"at most --num_servers x --max_streams = {most}"
        require(flags, "num_actors", flags.num_actors <= most, expected)
    require_at_least(flags, "max_inference_batch_size", "min_inference_batch_size")
    require_at_least(flags, "max_learner_queue_size", "batch_size")
    choose_devices(flags)
    choose_xpid(flags)


def require_at_least(flags: argparse.Namespace, name: str, other: str) -> None:
    value, least = getattr(flags, name), getattr(flags, other)
    holds = value is None or least is None or value >= least
    require(flags, name, holds, f"at least --{other} {least}")


def choose_devices(flags: argparse.Namespace) -> None:
    if flags.learner_device is None:
        use_cuda = torch.cuda.is_available() and not flags.disable_cuda
        flags.learner_device = "cuda" if use_cuda else "cpu"
    if flags.inference_device is None:
        flags.inference_device = flags.learner_device
    for name in ("learner_device", "inference_device"):
        usable = f"cpu, or one of the {torch.cuda.device_count()} GPUs that torch can use"
        require(flags, name, devices.exists(getattr(flags, name)), usable)


# ======================================================================================= FORK HERE
class Net(nn.Module):
    """TorchBeast's deep network for images, IMPALA's figure 3, right: a ResNet of 15 convolutions,
    with the clipped reward."""

    def __init__(self, spec: Spec, flags: argparse.Namespace):
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


# ======================================================================================== inference
# What the streams' time goes to, as ActorPool.seconds has it.
SHARES = ["environment", "transport", "batching", "inference", "actor_waiting"]


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
            inputs, core_state = batch.get_inputs()
            row = {k: v.squeeze(0) for k, v in to_device(inputs, device).items()}
            outputs, core_state = to_host(*act_on(net, row, to_device(core_state, device)))
            outputs["policy_version"] = torch.full((len(batch),), version)
            outputs = {k: v.unsqueeze(0) for k, v in outputs.items()}
            batch.set_outputs((outputs, core_state))
            run.stats.add_inference(len(batch))
            clock.lap("answering")


def start_inference(
    run: Run, batcher: Iterable[Any], weights: NewestWeights, nets: list[nn.Module]
) -> list[threading.Thread]:
    """Starts a thread for each of the networks."""
    clocks = ThreadClocks(INFERENCE_ACTIVITIES, len(nets))
    run.sources.append(clocks.take)
    return [
        run.start_thread(infer, (run, batcher, weights, net, clocks[i]), f"inference-{i}")
        for i, net in enumerate(nets)
    ]


# ========================================================================================= training
def train(flags: argparse.Namespace) -> Run:
    """Trains until --total_steps, a signal to stop or a failure, which it raises."""
    require_descriptors(flags)
    for name in ("learner_device", "inference_device"):
        try:
            torch.empty(0, device=getattr(flags, name))  # opens it
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            require(flags, name, False, f"a device that can be opened ({why})")
    seed_everything(flags.seed)
    torch.set_num_threads(flags.torch_threads)
    # Inference soon gets the GIL when it asks for it: 1.15 x the steps on MinAtar.
    sys.setswitchinterval(50e-6)
    with servers(flags) as (addresses, description, check_servers):
        require(flags, "env", flags.env == description.name, f"what is served: {description.name}")
        most, N = flags.max_inference_batch_size, description.num_envs
        name = "max_inference_batch_size"
        require(flags, name, most is None or most >= N, f"at least one stream's {N} environments")
        spec = spec_of(description)
        net = models.make_net(Net, spec, flags)
        device = torch.device(flags.learner_device)
        with Run(flags, spec, net, device, PolyBeastAdvisor(flags).advise) as run:
            if not run.was_complete():
                run.evaluate_with(player)
                train_with(run, addresses, description, check_servers)
    return run


@contextlib.contextmanager
def servers(flags: argparse.Namespace):
    """Yields the servers' addresses, what they have, and a function that raises if they ended:
    those at --server_addresses, else local ones, which live as long as this context."""
    if flags.server_addresses is not None:
        addresses = parse_addresses(flags.server_addresses)
        description = first_description(addresses, flags.server_timeout, tls=load_tls(flags))
        yield addresses, description, lambda: None
        return
    with LocalServers(polybeast_env.make_parser(), flags) as local:
        yield local.addresses, local.describe(flags.server_timeout), local.check


def train_with(
    run: Run, addresses: list[str], description: Any, check_servers: Callable[[], None]
) -> None:
    """The pool plays, inference threads answer, learner threads learn, this thread watches."""
    flags, learner = run.flags, run.learner
    device = torch.device(flags.inference_device)
    weights = NewestWeights(learner.net.state_dict(), learner.updates, device)
    nets = [models.make_net(Net, run.spec, flags) for _ in range(flags.num_inference_threads)]
    addresses = [addresses[i % len(addresses)] for i in range(flags.num_actors)]
    queue = libtorchbeast.BatchingQueue(flags.batch_size, flags.max_learner_queue_size)
    maximum = flags.max_inference_batch_size or MAX_COUNT
    half = max(1, len(addresses) // 2) * description.num_envs
    minimum = flags.min_inference_batch_size or min(half, maximum)
    batcher = libtorchbeast.DynamicBatcher(minimum, maximum, flags.inference_timeout_ms)
    pool = libtorchbeast.ActorPool(
        flags.unroll_length, queue, batcher, addresses,
        models.initial_state(nets[0], 1), description,
        step_timeout=flags.step_timeout, reset_timeout=flags.server_timeout, tls=load_tls(flags),
    )  # fmt: skip
    threads = []
    try:
        streams = Streams(pool, flags.server_timeout)
        run.sources += [Shares(SHARES, pool.seconds).take, streams.row]
        run.sources += [LatencyPercentiles(pool.latencies).take]
        threads += run.start_learners(lambda: queue, weights.publish)
        nets = [models.compile_if_asked(net.to(device), flags) for net in nets]
        threads += start_inference(run, batcher, weights, nets)
        while not run.finished():
            select.select([run.wakeup], [], [], min(0.5, run.seconds_to_tick()))
            check_servers()
            streams.check()
            run.tick()
    finally:
        pool.close()  # and the queue and the batcher: the threads' loops end
        learner.close()  # the update that runs still publishes its weights
        for thread in threads:
            thread.join(timeout=5.0)
    run.raise_failure()
    pool.take_events()  # a pool that could not go on says why


# ==================================================================================== test and main
def player(flags: argparse.Namespace) -> tuple[nn.Module, Environment]:
    """A network, and environments on this machine, to play whole games with."""
    flags.envs_per_server = evaluate.games_at_once(flags, flags.envs_per_server)
    env = polybeast_env.make_environment(flags)
    return models.make_net(Net, env.spec, flags), env


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
            argv = autotune.tune("polybeast", argv, parse, KNOBS)
            flags = parse(argv)
        if flags.mode == "train":
            train(flags)
        else:
            test(flags, given_names(make_parser(), argv))
    except (UserError, CheckpointError, RunInUse, ServersLost) as error:
        sys.exit(f"polybeast: error: {error}")
    except KeyboardInterrupt:  # in --autotune
        sys.exit(130)


if __name__ == "__main__":
    main()
