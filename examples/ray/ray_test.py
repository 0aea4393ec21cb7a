# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Tests the example with Ray on this machine alone, and in a cluster of three nodes, which are this
machine with three loopback addresses."""

import contextlib
import os
import re
import shlex
import signal
import sys
import tempfile
import uuid
from pathlib import Path

import psutil
import pytest

from tests.support.client import free_port
from tests.support.forks import command
from tests.support.processes import Command, Program, load, wait_for

LOCAL = command(Path(__file__).parent, "examples.ray.launch --ray local")
SMALL = (
    "--env tests.support.envs:Catch-v0 --server_flags='--envs_per_server 4' --batch_size 4 "
    "--log_every 0.5 --learning_rate 5e-3"
)


AUTHENTICATION = dict(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=uuid.uuid4().hex)


class Launch(Program):
    """Runs the README's command without a cluster, with small settings."""

    def __init__(self, tmp_path, *flags):
        module, *words = LOCAL[1:]
        ports = ["--first_port", free_port()]  # and the one after it
        super().__init__(
            tmp_path, *words, "--xpid", "run", *shlex.split(SMALL), *ports, *flags,
            module=module, **AUTHENTICATION,
        )  # fmt: skip

    def streams(self):
        return self.rows()[-1:] and self.rows()[-1].get("streams")


class Cluster(contextlib.ExitStack):
    """A cluster whose nodes all run on this machine, with the addresses 127.0.0.1 (without cores),
    127.0.0.2 and so on."""

    def __init__(self):
        super().__init__()
        self.address = f"127.0.0.1:{free_port()}"
        self.nodes = []

    def __enter__(self):
        # tmp_path is too long, because the path of a Unix socket may have 107 bytes at most.
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="ray")))
        port = self.address.split(":")[1]
        self.add("--head", "--port", port, "--include-dashboard", "false", cores=0)
        return self

    def add(self, *words, cores=2):
        """Starts the next node and waits until it is ready. Ray gives up after 30 s, which is too
        short while other tests use all cores, so this tries three times."""
        for attempt in range(3):
            node = self.start(f"127.0.0.{len(self.nodes) + 1}", attempt, words, cores)
            wait_for(lambda: started(node) or node.process.poll() is not None)  # noqa: B023
            if started(node):
                self.nodes.append(self.enter_context(node))
                return node
            with node:  # ends the node's remaining processes
                pass
        raise AssertionError(node.printed())

    def start(self, host, attempt, words, cores):
        folder = self.folder / f"{host}.{attempt}"
        folder.mkdir()
        words = words or ["--address", self.address]
        return Command(
            folder,
            [
                sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words,
                "--node-ip-address", host, "--num-cpus", cores, "--disable-usage-stats",
                "--object-store-memory", 10**8, "--temp-dir", folder,
            ],
            **AUTHENTICATION,
        )  # fmt: skip


def started(node):
    return "Ray runtime started" in node.printed()


def actors(*commands):
    """The process ids of the servers among the processes that the commands have started."""
    pids = [pid for command in commands for pid in command.session()]
    return [pid for pid in pids if _title(pid).startswith("ray::EnvServer")]


def _title(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def stop(launch):
    """Stops the program as Ctrl-C in a terminal does, and checks that the run was saved."""
    os.killpg(launch.pid, signal.SIGINT)
    assert launch.wait_for_end() == 130, launch.printed()
    assert load(launch.path)["step"] == launch.rows()[-1]["step"] > 0
    assert "Traceback" not in launch.printed()


def test_without_a_cluster(tmp_path):
    with Launch(tmp_path, "--total_steps", 10_000) as launch:
        assert launch.wait_for_end() == 0, launch.printed()
    last = launch.rows()[-1]
    assert last["step"] >= 10_000 and last["stream_failures"] == 0


@pytest.mark.timeout(600)  # Ray takes most of it to start, where cores are busy
def test_a_killed_server_is_started_again(tmp_path):
    with Launch(tmp_path, "--total_steps", 1_000_000_000) as launch:
        launch.wait_for(lambda: launch.streams() == 2)
        before = actors(launch)
        os.kill(before[0], signal.SIGKILL)
        launch.wait_for(lambda: launch.rows()[-1]["stream_failures"])
        launch.wait_for(lambda: launch.streams() == 2)
        assert len(actors(launch)) == 2 and before[1] in actors(launch)
        launch.wait_for_step(launch.rows()[-1]["step"])
        assert launch.printed().count(" -m polybeast ") == 1  # the learner went on
        stop(launch)


@pytest.mark.timeout(600)  # Ray takes most of it to start, where cores are busy
def test_servers_move_with_a_machine_that_goes(tmp_path):
    with Cluster() as cluster:
        machines = [cluster.add(), cluster.add()]
        flags = ["--ray", cluster.address, "--total_steps", 1_000_000_000]
        with Launch(tmp_path, *flags) as launch:
            launch.wait_for(lambda: launch.streams() == 2)
            going, staying = sorted(machines, key=lambda machine: -len(actors(machine)))
            with going:  # ends all its processes
                pass
            launch.wait_for(lambda: len(actors(staying)) == 2)
            resumed = launch.wait_for(lambda: re.search(r"from step (\d+)", launch.printed()))
            launch.wait_for_step(int(resumed[1]))
            launch.wait_for(lambda: launch.streams() == 2)
            stop(launch)


def test_servers_that_cannot_start_are_explained(tmp_path):
    with Launch(tmp_path, "--env", "Missing-v0") as launch:
        assert launch.wait_for_end() == 1
    assert "Environment `Missing` doesn't exist" in launch.printed()


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("--batch_sise 4", "--batch_sise"),
        ("--server_flags=--envs_per_sever=4", "--envs_per_sever"),
    ],
)
def test_a_wrong_flag_is_refused_before_ray_starts(words, wrong, tmp_path):
    with Launch(tmp_path, *words.split()) as launch:
        assert launch.wait_for_end() == 2
    assert f"unrecognized flag {wrong}: did you mean --" in launch.printed()
