# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
import contextlib
import subprocess
import sys

import grpc
import numpy as np
import pytest

from libtorchbeast.rpcenv import rpcenv_pb2
from libtorchbeast.spec import Actions, Spec
from tests.support.client import Client, free_port
from tests.support.forks import command, copy_repository
from tests.support.processes import ROOT, Command, rows

N = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example in a clean copy of the repository, with the packages that its lock file names."""
    copy = copy_repository(tmp_path_factory.mktemp("nodejs") / "copy")
    folder = copy / "examples" / "nodejs"
    subprocess.run(["npm", "ci"], cwd=folder, check=True, capture_output=True, text=True)
    return folder


@contextlib.contextmanager
def server(folder, num_envs):
    """Runs the server and yields its address once it answers."""
    address = f"127.0.0.1:{free_port()}"
    words = ["node", folder / "server.js", "--address", address, "--num_envs", num_envs]
    with Command(folder, words) as process:
        process.wait_for(lambda: "Serving" in process.printed())
        yield address


def test_rows_are_as_the_proto_says(folder):
    with server(folder, N) as address, Client(address) as client:
        stream = client.stream()
        assert stream.spec == Spec(
            "Catch", N, {"frame": ((1, 10, 5), "uint8")}, Actions("discrete", (3,))
        )
        before, seen = stream.read(), []
        assert before["done"].all() and not before["reward"].any()
        for action in np.random.default_rng(0).integers(3, size=(60, N)):
            row = stream.step(action)
            check_next(before, row)
            before, seen = row, [*seen, row]
        rewards = np.stack([row["reward"] for row in seen])
        assert set(np.unique(rewards)) == {-1, 0, 1}
        assert stream.end() == grpc.StatusCode.OK


def check_next(before, row):
    """Checks that `row` may follow `before`, in a game of nine steps."""
    done = row["done"]
    np.testing.assert_array_equal(done, before["terminated"])
    np.testing.assert_array_equal(row["terminated"], row["episode_step"] == 9)
    np.testing.assert_array_equal(row["episode_over"], row["terminated"])
    assert not row["truncated"].any() and not row["reward"][done].any()
    assert (row["reward"][row["terminated"]] != 0).all()
    steps = np.where(done, 0, before["episode_step"] + 1)
    np.testing.assert_array_equal(row["episode_step"], steps)
    returns = np.where(done, 0, before["episode_return"] + row["reward"])
    np.testing.assert_array_equal(row["episode_return"], returns)
    assert (row["frame"].astype(bool).sum(axis=(1, 2, 3)) <= 2).all() and row["frame"].max() == 255
    np.testing.assert_array_equal(row["frame"][done, 0, 0].sum(axis=1), np.full(done.sum(), 255))


@pytest.mark.parametrize("actions", [[0] * (N - 1), [3] * N, [-1] * N], ids=str)
def test_wrong_actions_end_their_stream_only(folder, actions):
    with server(folder, N) as address, Client(address) as client:
        stream, other = client.stream(), client.stream()
        stream.read()
        other.read()
        stream.step([0] * N)
        stream.send(rpcenv_pb2.Action(actions=actions).SerializeToString())
        code, text = stream.failure()
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "expected 8 numbers from 0 to 2, seen" in text
        other.step([0] * N)


def test_the_learner_learns_it(folder, tmp_path):
    with server(folder, 64) as address:
        flags = ["--xpid", "run", "--savedir", tmp_path, "--server_addresses", address]
        learner = [sys.executable, *command(folder, "polybeast"), *flags]
        run = subprocess.run(learner, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Stream failed" not in run.stderr
    assert rows(tmp_path / "run")[-1]["mean_game_return"] > 0.9
