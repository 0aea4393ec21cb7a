# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Learner and environment servers on two machines, joined by a cable that breaks.

Needs root and iproute2. Nothing leaves the namespaces, which end with the test.
"""

import os
import signal
import sys

import pytest

from tests.support.network import HOSTS, NoNamespaces, ip, on, two_machines
from tests.support.processes import Command, Program

PORTS = (5000, 5001)


@pytest.fixture
def machines():
    try:
        with two_machines() as names:
            yield names
    except NoNamespaces as error:
        pytest.skip(str(error))


def test_training_over_a_network_that_breaks_and_comes_back(tmp_path, machines):
    addresses = f"{HOSTS['envs']}:{PORTS[0]}-{PORTS[1]}"
    shared = "--env tests.support.envs:Catch-v0 --envs_per_server 4 --insecure".split()
    shared += ["--server_addresses", addresses]
    servers = Command(
        tmp_path, [*on(machines["envs"]), sys.executable, "-m", "polybeast_env", *shared]
    )
    (tmp_path / "learner").mkdir()
    flags = "--net monobeast.Net --batch_size 4 --log_every 0.5 --step_timeout 2".split()
    learner = Program(
        tmp_path / "learner", *shared, *flags, "--total_steps", 1_000_000_000,
        module="polybeast", before=on(machines["learner"]),
    )  # fmt: skip
    with servers, learner:
        learner.wait_for_step(1000)
        learner.wait_for(lambda: last(learner)["streams"] == 2)
        assert last(learner)["stream_failures"] == 0
        for _ in range(2):
            before = last(learner)["stream_failures"]
            ip("-n", machines["envs"], "link", "set", "cable", "down")
            learner.wait_for(lambda: last(learner)["streams"] == 0)
            learner.wait_for(lambda: last(learner)["stream_failures"] >= before + 2)  # noqa: B023
            ip("-n", machines["envs"], "link", "set", "cable", "up")
            learner.wait_for(lambda: last(learner)["streams"] == 2)
            learner.wait_for_step(last(learner)["step"])
        assert servers.process.poll() is None
        os.killpg(learner.pid, signal.SIGINT)
        assert learner.wait_for_end() == 0, learner.printed()
        os.killpg(servers.pid, signal.SIGINT)
        assert servers.wait_for_end() == 0, servers.printed()
    log = (learner.path / "out.log").read_text()
    for port in PORTS:
        where = f"{HOSTS['envs']}:{port}"
        assert f"{where}: DEADLINE_EXCEEDED: the server took too long for one answer" in log
    assert learner.step() == last(learner)["step"]
    assert "Traceback" not in learner.printed() + servers.printed()


def last(learner):
    return learner.rows()[-1]


def test_a_port_that_only_another_machine_has(tmp_path, machines):
    """An unreachable learner's side is one message with the reason, in time."""
    address = f"{HOSTS['envs']}:{PORTS[0]}"
    flags = "--env tests.support.envs:Catch-v0 --server_timeout 1 --insecure".split()
    flags += ["--server_addresses", address]
    command = dict(module="polybeast", before=on(machines["learner"]))
    with Program(tmp_path, *flags, **command) as learner:
        assert learner.wait_for_end() == 1
        last_line = learner.printed().strip().splitlines()[-1]
        assert last_line.startswith(f"  {address}: UNAVAILABLE: ")
        assert "Connection refused" in last_line
    assert "Traceback" not in learner.printed()
