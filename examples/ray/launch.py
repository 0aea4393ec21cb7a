# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Runs PolyBeast's learner on this machine, with environment servers that are Ray actors. Flags
that are not listed below are passed to the learner.

    python -m examples.ray.launch --xpid pong --servers 64               # on the running cluster
    python -m examples.ray.launch --xpid pong --servers 2 --ray local    # without a cluster

Ray places the servers on the cluster's free cores. If a server dies, Ray starts it again, and on
another machine if its machine is gone.
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
from libtorchbeast.errors import errors_of
from libtorchbeast.flags import Flags, UserError, replace
from libtorchbeast.rpcenv.server import Server
from libtorchbeast.rpcenv.tls import Tls
from libtorchbeast.seeds import derive_seed
from libtorchbeast.tools import certificates

ROOT = Path(__file__).resolve().parent.parent.parent
DAYS = 365  # the certificates are valid for this long
POLL_S = 1.0

logger = logging.getLogger("examples.ray")


@ray.remote(num_cpus=1, max_restarts=-1)
class EnvServer:
    """Serves environments on one address, like a process of `python -m polybeast_env`."""

    def __init__(self, flags: Flags, index: int, port: int, ca: tuple[bytes, bytes]):
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        host = ray.util.get_node_ip_address()
        self.address = f"{host}:{port}"
        pair = certificates.certify_host(certificates.Pair.from_texts(*ca), host, DAYS)
        seed = derive_seed(flags.seed, port, time.time_ns())  # another seed after a restart
        with errors_of(flags.env):
            flags = polybeast_env.try_environment(flags)
        self.server = Server(
            polybeast_env.maker(flags, seed, index),
            self.address,
            max_streams=flags.max_streams,
            seed=seed,
            step_timeout=flags.step_timeout,
            open_timeout=flags.open_timeout,
            tls=Tls(*pair.texts(), ca[0]),
        )
        self.server.start()

    def where(self) -> str:
        return self.address


def where(server: "ray.actor.ActorHandle", before: str) -> str:
    """Returns the server's address, or `before` while Ray starts the server again.

    Raises:
        ray.exceptions.ActorDiedError: the server cannot be started. The text says why.
    """
    try:
        return ray.get(server.where.remote(), timeout=5.0)
    except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
        return before


def train(flags: argparse.Namespace, servers: list, tls: list[str]) -> int:
    """Runs the learner and returns its exit code.

    The learner gets the servers' addresses when it starts. When a server has a new address, the
    learner is stopped, which saves a checkpoint, and started again with all addresses. It resumes
    because its --xpid is the same.
    """
    logger.info("Waiting for %d free cores", len(servers))
    addresses = ray.get([server.where.remote() for server in servers])
    while True:
        words = ["--env", flags.env, "--xpid", flags.xpid]
        words += ["--server_addresses", ",".join(addresses)]
        torchrun = f"torch.distributed.run --nproc_per_node {flags.learners} --max_restarts 10 -m"
        modules = [*(torchrun.split() if flags.learners > 1 else []), "polybeast"]
        command = [sys.executable, "-m", *modules, *words, *tls, *flags.learner_flags]
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
    """Writes the learner's certificate and key into `folder`, and returns the flags for them."""
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
    add("--xpid", required=True, help="Name of the run. If it exists, it is resumed.")
    add("--env", default="PongNoFrameskip-v4", help="Id of a Gymnasium environment.")
    add("--servers", type=int, default=16, help="Number of servers. Each takes one core.")
    add("--learners", type=int, default=1, help="Number of learners, which torchrun starts here.")
    add("--server_flags", default="", metavar='"--FLAG VALUE ..."', help="Flags of polybeast_env.")
    add("--first_port", type=int, default=5000, help="Port of the first server. The others follow.")
    add("--ray", default="auto", metavar="ADDRESS",
        help="Address of the cluster. auto finds one that runs on this machine; local starts Ray "
             "on this machine only.")  # fmt: skip
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    parser = make_parser()
    flags, flags.learner_flags = parser.parse_known_args(argv)
    words = ["--env", flags.env, *shlex.split(flags.server_flags)]
    try:
        polybeast.make_parser().parse_args(flags.learner_flags)
        flags.of_servers = polybeast_env.parse(words)
    except UserError as error:
        parser.error(str(error))
    return flags


def main(argv: list[str] | None = None) -> None:
    flags = parse(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    only_here = {"_node_ip_address": "127.0.0.1"} if flags.ray == "local" else {}
    ray.init(flags.ray, **only_here)
    ca = certificates.make_ca(DAYS)
    ports = range(flags.first_port, flags.first_port + flags.servers)
    of_servers = replace(flags.of_servers, num_servers=flags.servers)
    own = enumerate(ports)
    servers = [EnvServer.remote(of_servers, index, port, ca.texts()) for index, port in own]
    with tempfile.TemporaryDirectory() as folder:
        try:
            code = train(flags, servers, write_tls(ca, Path(folder)))
        except KeyboardInterrupt:
            code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
