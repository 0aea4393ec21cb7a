# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast with environment servers that are Ray actors, wherever the cluster has free cores, and
the learner here. Flags that are not below go to the learner.

    python -m examples.ray.launch --xpid pong --servers 64               # in the cluster that runs
    python -m examples.ray.launch --xpid pong --servers 2 --ray local    # without a cluster

Ray starts a server again that dies, there or, if its machine is gone, elsewhere.
"""

import argparse
import logging
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray

import polybeast
import polybeast_env
from libtorchbeast.rpcenv.server import Server
from libtorchbeast.rpcenv.tls import Tls
from libtorchbeast.seeds import derive_seed
from libtorchbeast.tools import certificates

ROOT = Path(__file__).resolve().parent.parent.parent
DAYS = 365  # that the certificates hold
POLL_S = 1.0

logger = logging.getLogger("examples.ray")


@ray.remote(num_cpus=1, max_restarts=-1)
class EnvServer:
    """One address that serves environments: what a process of `python -m polybeast_env` is."""

    def __init__(self, flags: argparse.Namespace, port: int, ca: tuple[bytes, bytes]):
        polybeast_env.set_up_logging(flags)
        host = ray.util.get_node_ip_address()
        self.address = f"{host}:{port}"
        pair = certificates.certify_host(certificates.Pair.from_texts(*ca), host, DAYS)
        self.server = Server(
            lambda: polybeast_env.make_environment(flags),
            self.address,
            max_streams=flags.max_streams,
            seed=derive_seed(flags.seed, port, time.time_ns()),  # another one in its next life
            step_timeout=flags.step_timeout,
            tls=Tls(*pair.texts(), ca[0]),
        )
        self.server.start()

    def where(self) -> str:
        return self.address


def where(server: "ray.actor.ActorHandle", before: str) -> str:
    """Its address; while Ray starts it again, the one that it had before.

    Raises:
        ray.exceptions.ActorDiedError: it cannot be started; says why.
    """
    try:
        return ray.get(server.where.remote(), timeout=5.0)
    except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
        return before


def train(flags: argparse.Namespace, servers: list, tls: list[str]) -> int:
    """Runs the learner, and returns its exit code. It is given its servers when it starts: where
    one has come back elsewhere, the learner saves and, by its --xpid, goes on with all of them."""
    logger.info("Waiting for %d free cores", len(servers))
    addresses = ray.get([server.where.remote() for server in servers])
    while True:
        words = [
            "--env",
            flags.env,
            "--server_addresses",
            ",".join(addresses),
            "--xpid",
            flags.xpid,
        ]
        command = [sys.executable, "-m", "polybeast", *words, *tls, *flags.learner_flags]
        logger.info("%s", shlex.join(command))
        learner = subprocess.Popen(command, cwd=ROOT)
        try:
            while learner.poll() is None:
                time.sleep(POLL_S)
                before, addresses = addresses, list(map(where, servers, addresses))
                if addresses != before:
                    break
            else:
                return learner.returncode
        finally:
            learner.terminate()
            learner.wait()


def write_tls(ca: certificates.Pair, folder: Path) -> list[str]:
    """The learner's flags, and the files that they name."""
    (folder / "ca.crt").write_bytes(ca.texts()[0])
    certificates.certify_learner(ca, DAYS).write(folder, "learner")
    files = dict(cert="learner.crt", key="learner.key", ca="ca.crt")
    return [word for name, file in files.items() for word in (f"--tls_{name}", f"{folder}/{file}")]


# ============================================================================================= main
def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "examples.ray.launch", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--xpid", required=True, help="Name of the run; one that exists is resumed.")
    add("--env", default="PongNoFrameskip-v4")
    add("--servers", type=int, default=16, help="Each has a core.")
    add("--server_flags", default="", metavar='"--FLAG VALUE ..."', help="As for polybeast_env.")
    add("--first_port", type=int, default=5000, help="The servers' ports count from here.")
    add("--ray", default="auto", metavar="ADDRESS", help="auto: the cluster that runs here; local.")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    flags, flags.learner_flags = make_parser().parse_known_args(argv)
    polybeast.make_parser().parse_args(flags.learner_flags)
    words = ["--env", flags.env, *shlex.split(flags.server_flags)]
    flags.of_servers = polybeast_env.parse(words)
    return flags


def main(argv: list[str] | None = None) -> None:
    flags = parse(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    only_here = {"_node_ip_address": "127.0.0.1"} if flags.ray == "local" else {}
    ray.init(flags.ray, **only_here)
    ca = certificates.make_ca(DAYS)
    ports = range(flags.first_port, flags.first_port + flags.servers)
    servers = [EnvServer.remote(flags.of_servers, port, ca.texts()) for port in ports]
    with tempfile.TemporaryDirectory() as folder:
        try:
            code = train(flags, servers, write_tls(ca, Path(folder)))
        except KeyboardInterrupt:
            code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
