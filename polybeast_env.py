# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast's environment servers step environments for a learner on this or another machine.

    python -m polybeast_env                           # Pong, on unix:/tmp/polybeast-UID/server.0
    python -m polybeast_env --env CartPole-v1 --num_servers 4
    python -m polybeast_env --server_addresses 0.0.0.0:5000-5015 --tls_cert ...

Each server is a process that listens on one address. The learner (polybeast.py) opens streams to
it. Each stream has its own environments, which it steps as one batch:

    learner -> actions -> stream -> environments -> rows -> learner

A server that crashes or hangs is restarted. Without --server_addresses the learner starts its
servers itself, so run this program only if a learner should connect to servers that you start, for
example on other machines. Those machines need only the packages of requirements-env.txt.

To add an environment, edit the place marked FORK HERE and nothing else.
"""

import argparse
import contextlib
import itertools
import logging
import os
import shutil
import socket
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # first, because the other imports take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.before_imports(__name__)

import gymnasium

import atari_wrappers
import minatar_wrappers
from libtorchbeast import recipes, workers
from libtorchbeast.environment import Environment
from libtorchbeast.errors import cause, errors_of
from libtorchbeast.flags import Flags, Parser, UserError, parse_args, replace, require, whole
from libtorchbeast.rpcenv.addresses import check_local, parse_addresses
from libtorchbeast.rpcenv.server import Server
from libtorchbeast.rpcenv.sockets import make_private, private_folder
from libtorchbeast.rpcenv.supervisor import StartFailure, Supervisor
from libtorchbeast.rpcenv.tls import Tls, load_tls, uses_tls
from libtorchbeast.seeds import MOST_ACTORS, derive_seed, seeded
from libtorchbeast.spec import Spec

logger = logging.getLogger("polybeast_env")


# ======================================================================================= FORK HERE
def create_env(flags: Flags) -> Any:
    """Makes the environment that --env names.

    If this function returns a `gymnasium.Env`, it is called once for each environment. It may also
    return a vector environment that holds `flags.envs_per_server` environments; then it is called
    once for each stream. docs/fork.md says what else is accepted.
    """
    if atari_wrappers.is_atari(flags.env):
        if flags.mode == "train":
            return atari_wrappers.make_atari_vector(flags.env, flags.envs_per_server)
        env = atari_wrappers.make_atari(flags.env, render_mode="rgb_array")
        return atari_wrappers.wrap_deepmind(env)
    options: dict[str, Any] = {"render_mode": "rgb_array"} if flags.mode == "test_render" else {}
    if minatar_wrappers.is_minatar(flags.env):
        return minatar_wrappers.make_minatar(flags.env, **options)
    return gymnasium.make(flags.env, disable_env_checker=True, **options)


# ============================================================================================ flags
# Defaults for each kind of environment.
RECIPES = recipes.with_environments("envs_per_server", learning=False)


# fmt: off
def add_flags(parser: Parser) -> None:
    """Adds the flags of environments and their servers. The learner's parser calls this too."""
    parser.add_shared("environment")
    add = parser.group("servers", "Which servers step the environments.")
    add("--envs_per_server", type=whole(1),
        help="Number of environments that a stream steps as one batch.")
    add("--num_servers", type=whole(1),
        help="Number of server processes on this machine. Default: half the cores.")
    add("--max_streams", type=whole(1), default=16,
        help="Largest number of streams that a server accepts at once.")
    add("--server_addresses", metavar="ADDRESS,...",
        help="Addresses of the servers, one for each: unix:/path, host:port or host:first-last. "
             "polybeast_env starts servers that listen there (default: "
             "unix:/tmp/polybeast-UID/server.0, server.1 and so on, in a folder that only this "
             "user may enter); polybeast connects to them instead of starting servers itself.")
    add("--tls_cert", metavar="FILE",
        help="Certificate of this program, a PEM file. With it all addresses except Unix sockets "
             "use TLS, and learner and servers check each other's certificate. `python -m "
             "libtorchbeast.tools.certificates` makes the files.")
    add("--tls_key", metavar="FILE", help="The private key of --tls_cert.")
    add("--tls_ca", metavar="FILE",
        help="Certificates of the authority that signed the other side's certificate.")
    add("--insecure", action="store_true",
        help="Allow addresses that other machines can reach even without TLS.")
    parser.explain_recipes(RECIPES)


def make_parser() -> Parser:
    parser = Parser("polybeast_env", __doc__)
    add_flags(parser)
    # For programs that start this one: it ends when standard input is closed, so that the servers
    # do not outlive them. Until then this folder, which only this user may enter, has the sockets.
    parser.add_argument("--until_stdin_closes", help=argparse.SUPPRESS)
    # The command line has no flags for these. `updates` is how many updates the run had made when
    # this program started.
    parser.set_defaults(mode="train", updates=0)
    return parser
# fmt: on


def parse(argv: list[str]) -> Flags:
    """The checked flags of a command line. Raises UserError for a wrong one."""
    return check_flags(parse_args(make_parser(), argv))


def check_flags(draft: argparse.Namespace, spec: Spec | None = None) -> Flags:
    """Does what `complete_flags` does, and freezes the result. Raises the same errors."""
    complete_flags(draft, spec)
    return Flags(**vars(draft))


def complete_flags(draft: argparse.Namespace, spec: Spec | None = None) -> None:
    """Fills in the defaults that depend on other flags and on the environment. Raises UserError if
    two flags contradict each other, or an address that other machines can reach has no TLS."""
    recipes.apply(draft, RECIPES, recipes.kind_of(draft, atari_wrappers.is_atari(draft.env), spec))
    if draft.server_addresses is not None:
        count = len(parse_addresses(draft.server_addresses))
        given = draft.num_servers
        require(draft, "num_servers", given in (None, count), f"{count}, one for each address")
        draft.num_servers = count
    if draft.num_servers is None:
        draft.num_servers = max(1, workers.share_of_cores() // 2)
    if not uses_tls(draft) and not draft.insecure:
        check_local(addresses(draft))


def addresses(flags: argparse.Namespace) -> list[str]:
    """Returns the addresses of the servers, in their order."""
    if flags.server_addresses is not None:
        return parse_addresses(flags.server_addresses)
    return [f"unix:{private_folder()}/server.{i}" for i in range(flags.num_servers)]


# ========================================================================================== serving
def make_environment(flags: Flags, seed: int | None = None, stream: int = 0) -> Environment:
    """The environments of one stream, behind the adapter that makes rows of them."""
    N = flags.envs_per_server
    return Environment(seeded(create_env, flags, N, seed, stream), N, flags.env)


def maker(flags: Flags, seed: int, index: int = 0) -> Callable[[], Environment]:
    """Returns a function that makes the environments of a server's streams 0, 1, 2 and so on. Each
    stream has a number that no stream of another local server has, whichever rank started it."""
    first = MOST_ACTORS * int(os.environ.get("RANK", "0"))  # ranks may have unequally many servers
    numbers = itertools.count(first + index, flags.num_servers)
    streams = itertools.count()
    return lambda: make_environment(flags, derive_seed(seed, next(streams)), next(numbers))


def serve(
    inbox: Iterator[bytes],
    outbox: Connection,
    index: int,
    life: int,
    address: str,
    flags: Flags,
    tls: Tls | None,
) -> None:
    """Runs in a server process. It serves until `inbox` ends. Until then it sends b"." to `outbox`
    at least twice a second, as its sign of life."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    # The folder of a learner's own sockets has a random name, and seeds should repeat.
    where = os.path.basename(address) if flags.until_stdin_closes else address
    seed = server_seed(flags.seed, where, index, life, flags.updates)
    with errors_of(flags.env):
        if index == life == 0 or recipes.may_change(flags, "envs_per_server", None):
            flags = try_environment(flags)
        server = Server(
            maker(flags, seed, index),
            address,
            max_streams=flags.max_streams,
            seed=seed,
            step_timeout=flags.step_timeout,
            open_timeout=flags.open_timeout,
            tls=tls,
            sign_of_life=lambda: outbox.send_bytes(b"."),
        )
    server.start()
    what = f"{flags.env}, {flags.envs_per_server} environments per stream"
    logger.info("Serving %s, on %s", what, address)
    for _ in inbox:
        pass
    server.stop()


def try_environment(flags: Flags) -> Flags:
    """Plays one step in one environment, so that a faulty one is found before a learner trains.
    Returns the flags, completed for what the environment observes (see `recipes.complete`)."""
    with contextlib.closing(make_environment(replace(flags, envs_per_server=1))) as env:
        row = env.initial(seed=0)
        if not any(name.endswith("action_mask") for name in row):  # any action is allowed
            env.step(env.spec.actions.zeros(1))
        return recipes.complete(flags, check_flags, env.spec, RECIPES)


def server_seed(seed: int, where: str, index: int, life: int, updates: int = 0) -> int:
    """Returns a seed that differs between servers, also on different machines, between the lives of
    a server, and between the starts of a run, each of which comes after more `updates`."""
    place = f"{socket.gethostname()} {where}"
    return derive_seed(seed, zlib.crc32(place.encode()), index, life, updates)


def supervise(flags: Flags) -> None:
    """Serves until a signal stops it or, with --until_stdin_closes, standard input is closed.
    Raises StartFailure if a server could not be started, and FileExistsError if the folder of
    --until_stdin_closes is there already."""
    tls = load_tls(flags)
    if flags.server_addresses is None:
        make_private(private_folder())
    stop, where, folder = workers.PipeEvent(), addresses(flags), flags.until_stdin_closes

    def start(index: int, life: int) -> workers.Process:
        args = (index, life, where[index], flags, tls)
        return workers.Process(serve, args, name=f"Server {index} ({where[index]})")

    with workers.stop_signals_set(stop), contextlib.ExitStack() as cleanup:
        if folder is not None:
            os.mkdir(folder, 0o700)
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            threading.Thread(target=_set_at_end_of_stdin, args=(stop,), daemon=True).start()
        silence = workers.longest_silence(flags.step_timeout)
        # A server imports, tries an environment and opens the first one.
        Supervisor(start, len(where), silence, 3 * flags.open_timeout).run(stop)


def _set_at_end_of_stdin(stop: workers.PipeEvent) -> None:
    with contextlib.suppress(OSError):  # standard input is closed already
        while os.read(0, 4096):
            pass
    stop.set()


# ============================================================================================= main
def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    # Many servers share the machine, so one thread per process is the most efficient.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        flags = parse(argv)
        # Each line begins with the time, or with the level if a learner adds the time.
        start = "%(levelname)s" if flags.until_stdin_closes else "[%(asctime)s]"
        workers.make_stderr_patient()
        logging.basicConfig(level=logging.INFO, format=f"{start} %(message)s", force=True)
        supervise(flags)
    except UserError as error:
        sys.exit(f"polybeast_env: error: {error}")
    except StartFailure as failure:
        why = cause(str(failure))
        if str(failure).endswith(f"\n{why}"):  # no UserError, of which a line says all
            logger.error("A server failed: %s", failure)
        sys.exit(f"polybeast_env: error: {why}")


if __name__ == "__main__":
    main()
