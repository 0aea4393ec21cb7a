# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast's environment servers, for a learner on this machine or on another.

    python -m polybeast_env                           # Pong, on unix:/tmp/polybeast-UID/server.0
    python -m polybeast_env --env CartPole-v1 --num_servers 4
    python -m polybeast_env --server_addresses 0.0.0.0:5000-5015 --tls_cert ...

Each server is a process that listens on one address. The learner (polybeast.py) opens streams to
it; each stream steps environments of its own as one batch:

    learner -> actions -> stream -> environments -> rows -> learner

A server that crashes or hangs is started again. The learner starts local servers itself: this
program is for those it does not. A machine that runs it needs requirements-env.txt only.

For a new environment edit the place marked FORK HERE, and nothing else.
"""

import argparse
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import zlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # before the other imports, which take seconds
    import libtorchbeast.workers

    libtorchbeast.workers.before_imports(__name__)

from libtorchbeast import workers
from libtorchbeast.environment import Environment
from libtorchbeast.flags import HelpFormatter, UserError, apply_recipe, check_ranges, require
from libtorchbeast.rpcenv import mock
from libtorchbeast.rpcenv.addresses import check_local, parse_addresses
from libtorchbeast.rpcenv.server import Server
from libtorchbeast.rpcenv.sockets import make_private, private_folder
from libtorchbeast.rpcenv.supervisor import StartFailure, Supervisor
from libtorchbeast.rpcenv.tls import load_tls
from libtorchbeast.seeds import derive_seed

logger = logging.getLogger("polybeast_env")


# Defaults that depend on the kind of environment, as in MonoBeast.
RECIPES = {"atari": dict(envs_per_server=16), "other": dict(envs_per_server=64)}


# fmt: off
def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of environments and their servers, which the learner has too."""
    add = parser.add_argument
    atari, other = (RECIPES[kind]["envs_per_server"] for kind in ("atari", "other"))

    add("--env", default="PongNoFrameskip-v4",
        help="A Gymnasium environment's id. Mock or Mock/4x10x10: costs nothing, for benchmarks.")
    add("--seed", type=int, default=0, help="Of all that is random.")
    add("--envs_per_server", type=int,
        help="Environments that one stream steps as one batch. "
             f"Default: {atari:,} on Atari, {other:,} elsewhere.")
    add("--num_servers", type=int,
        help="Server processes on this machine. Default: half the cores.")
    add("--pipes_basename", metavar="BASENAME",
        help="They listen on BASENAME.0, BASENAME.1, ... Default: "
             "unix:/tmp/polybeast-UID/server, where only this user may enter; or, for those that "
             "a learner starts, a folder of their own.")
    add("--server_addresses", metavar="ADDRESS,...",
        help="Where servers listen instead: unix:/path, host:port, host:first-last.")
    add("--tls_cert", metavar="FILE",
        help="This side's certificate, in PEM form: all but Unix sockets use TLS, and both sides "
             "show theirs. `python -m libtorchbeast.tools.certificates` makes them.")
    add("--tls_key", metavar="FILE", help="The key of --tls_cert.")
    add("--tls_ca", metavar="FILE", help="The certificates that the other side's is signed by.")
    add("--insecure", action="store_true",
        help="Allow addresses that other machines can reach, without TLS.")
    add("--max_streams", type=int, default=16, help="Streams that a server accepts.")
    add("--step_timeout", type=float, default=60.0, metavar="SECONDS",
        help="A server whose environments take longer for one step or reset is started again; "
             "opening them is not timed.")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "polybeast_env", description=__doc__, allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    add_flags(parser)
    parser.add_argument("--until_stdin_closes", metavar="FOLDER",
        help="End when standard input does; until then keep a private FOLDER, for sockets. So "
             "nothing outlives a learner that started this.")
    parser.set_defaults(mode="train")
    return parser
# fmt: on


def check_flags(flags: argparse.Namespace) -> None:
    """Refuses what cannot work, naming flag, value and range. Afterwards flags are read-only."""
    apply_recipe(flags, RECIPES["atari" if is_atari(flags.env) else "other"])
    if flags.server_addresses is not None:
        count = len(parse_addresses(flags.server_addresses))
        given = flags.num_servers
        require(flags, "num_servers", given in (None, count), f"{count}, one for each address")
        flags.num_servers = count
    if flags.num_servers is None:
        flags.num_servers = max(1, workers.available_cores() // 2)
    check_ranges(flags)
    if load_tls(flags) is None and not flags.insecure:
        check_local(addresses(flags))


def addresses(flags: argparse.Namespace) -> list[str]:
    """One for each server."""
    if flags.server_addresses is not None:
        return parse_addresses(flags.server_addresses)
    basename = flags.pipes_basename or f"unix:{private_folder()}/server"
    require(flags, "pipes_basename", basename.startswith("unix:"), "unix:/path")
    return parse_addresses(",".join(f"{basename}.{i}" for i in range(flags.num_servers)))


def is_atari(env: str) -> bool:
    if mock.is_mock(env):
        return False
    import atari_wrappers

    return atari_wrappers.is_atari(env)


# ======================================================================================= FORK HERE
def create_env(flags: argparse.Namespace) -> Any:
    """Returns a `gymnasium.Env` (this is then called once per environment) or a vector environment
    of `flags.envs_per_server` (called once per stream). See libtorchbeast/environment.py."""
    if mock.is_mock(flags.env):
        return mock.make_mock(flags.env, flags.envs_per_server)

    import gymnasium

    import atari_wrappers

    if atari_wrappers.is_atari(flags.env):
        if flags.mode == "train":
            return atari_wrappers.make_atari_vector(flags.env, flags.envs_per_server)
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


# ========================================================================================== serving
def make_environment(flags: argparse.Namespace) -> Environment:
    return Environment(lambda: create_env(flags), flags.envs_per_server, flags.env)


def serve(
    inbox: Iterator[bytes],
    outbox: Connection,
    index: int,
    life: int,
    address: str,
    flags: argparse.Namespace,
) -> None:
    """A server process: says b"." again and again while it serves, and ends when `inbox` does."""
    set_up_logging(flags)
    server = Server(
        lambda: make_environment(flags),
        address,
        max_streams=flags.max_streams,
        seed=server_seed(flags.seed, address, index, life),
        step_timeout=flags.step_timeout,
        tls=load_tls(flags),
        sign_of_life=lambda: outbox.send_bytes(b"."),
    )
    server.start()
    logger.info(
        "Serving %s, %d environments a stream, on %s", flags.env, flags.envs_per_server, address
    )
    for _ in inbox:
        pass
    server.stop()


def server_seed(seed: int, address: str, index: int, life: int) -> int:
    """Another one for each server, wherever it runs, and for each of its lives. Folders of sockets
    do not count: those of local servers are new in each run."""
    where = f"{socket.gethostname()} {os.path.basename(address)}"
    return derive_seed(seed, zlib.crc32(where.encode()), index, life)


def supervise(flags: argparse.Namespace) -> None:
    """Serves until a signal to stop, or, if so asked, the end of standard input."""
    if flags.server_addresses is None and flags.pipes_basename is None:
        make_private(private_folder())
    stop = workers.PipeEvent()
    for number in workers.stop_signals():
        signal.signal(number, lambda number, frame: stop.set())
    if flags.until_stdin_closes:
        threading.Thread(target=_set_at_end_of_stdin, args=(stop,), daemon=True).start()
    where = addresses(flags)

    def start(index: int, life: int) -> workers.Process:
        args = (index, life, where[index], flags)
        return workers.Process(serve, args, name=f"Server {index} ({where[index]})")

    with new_folder(flags.until_stdin_closes):
        Supervisor(start, len(where), workers.longest_silence(flags.step_timeout)).run(stop)


@contextlib.contextmanager
def new_folder(path: str | None) -> Iterator[None]:
    """Makes a folder that only this user may enter, and removes it, but none that was there."""
    if path is None:
        yield
        return
    os.mkdir(path, 0o700)
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _set_at_end_of_stdin(stop: workers.PipeEvent) -> None:
    with contextlib.suppress(OSError):  # there is none
        while os.read(0, 4096):
            pass
    stop.set()


# ============================================================================================= main
def set_up_logging(flags: argparse.Namespace) -> None:
    """Lines with the time, or, for a learner that logs them itself, with their level."""
    form = "%(levelname)s %(message)s" if flags.until_stdin_closes else "[%(asctime)s] %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, force=True)


def explain(failure: str) -> str:
    """The last line of a traceback. The rest is logged, unless that line says it all."""
    last = failure.splitlines()[-1]
    kind, _, text = last.partition(": ")
    if kind.endswith((".UserError", ".UnknownGame")) or kind.startswith(
        ("gymnasium.error.", "ModuleNotFoundError")
    ):
        return text
    logger.error("A server failed: %s", failure)
    return last


def main(argv: list[str] | None = None) -> None:
    flags = make_parser().parse_args(argv)
    set_up_logging(flags)
    # Many servers share the machine: one thread a process is the most efficient.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        check_flags(flags)
        supervise(flags)
    except UserError as error:
        sys.exit(f"polybeast_env: error: {error}")
    except StartFailure as failure:
        sys.exit(f"polybeast_env: error: {explain(str(failure))}")
    except KeyboardInterrupt:  # before the servers began
        sys.exit(130)


if __name__ == "__main__":
    main()
