# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Measures the upper bound of PolyBeast's transport: gRPC C++ at both ends that ignores the data.

    python -m benchmarks.bare_stream --observation_bytes 28224 --num_envs 32

It compiles bare_stream.cc into build/benchmarks/ if that has changed, and prints one line of JSON.
Speeds are agent steps per second. Compare ratios, not speeds: machines differ, and the speed of a
shared machine varies.
"""

import argparse
import json
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "benchmarks" / "bare_stream.cc"
PROTO = ROOT / "libtorchbeast" / "rpcenv" / "rpcenv.proto"
BUILD = ROOT / "build" / "benchmarks"
PACKAGES = "libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc pkg-config g++"
PATIENCE = 30.0  # the longest time in seconds until a server listens; only guards against a hang


def run(*command: str | Path) -> str:
    """Returns a command's standard output. If it fails, RuntimeError has its standard error."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


def check_tools() -> None:
    tools = ("g++", "pkg-config", "protoc", "grpc_cpp_plugin")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if "pkg-config" not in missing:
        found = lambda name: subprocess.run(["pkg-config", "--exists", name]).returncode == 0
        missing += [name for name in ("grpc++", "protobuf") if not found(name)]
    if missing:
        raise RuntimeError(
            f"benchmarks/bare_stream.cc needs {', '.join(missing)}: apt-get install {PACKAGES}"
        )


def build() -> Path:
    """Returns the program's path. Compiles it if it is missing or older than its sources."""
    program = BUILD / "bare_stream"
    newest = max(path.stat().st_mtime for path in (SOURCE, PROTO))
    if program.exists() and program.stat().st_mtime > newest:
        return program
    check_tools()
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as work:  # two processes may build at once
        run("protoc", f"-I{PROTO.parent}", f"--cpp_out={work}", f"--grpc_out={work}",
            f"--plugin=protoc-gen-grpc={shutil.which('grpc_cpp_plugin')}", PROTO)  # fmt: skip
        options = run("pkg-config", "--cflags", "--libs", "grpc++", "protobuf").split()
        sources = [SOURCE, Path(work, "rpcenv.pb.cc"), Path(work, "rpcenv.grpc.pb.cc")]
        new = Path(work, "bare_stream")
        run("g++", "-std=c++17", "-O2", "-Wall", "-pthread", f"-I{work}", *sources, "-o", new,
            *options)  # fmt: skip
        new.replace(program)
    return program


def wait_until_it_accepts(server: subprocess.Popen, path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended early: {server.stderr.read().strip()}")
        try:
            with socket.socket(socket.AF_UNIX) as client:
                return client.connect(str(path))
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no server listens on {path} after {PATIENCE:.0f} s") from error
            time.sleep(0.01)


def measure(
    observation_bytes: int,
    num_envs: int,
    servers: int = 2,
    streams_per_server: int = 1,
    seconds: float = 5.0,
) -> float:
    """Measures the agent steps per second of all streams together, over Unix sockets.

    A Step carries `num_envs` observations of `observation_bytes` bytes each.

    Raises:
        ValueError: an argument is out of range.
        RuntimeError: the program cannot be built, or it fails.
    """
    for name, value in locals().copy().items():
        if value <= 0:
            raise ValueError(f"{name}: expected more than 0, seen {value}")
    if num_envs * observation_bytes > 2**30:  # protobuf messages are limited to 2 GiB
        raise ValueError(
            f"num_envs x observation_bytes: expected at most 1 GiB, seen "
            f"{num_envs * observation_bytes} bytes"
        )
    program = build()
    with tempfile.TemporaryDirectory(prefix="bare_stream-") as directory:
        paths = [Path(directory, f"server{i}") for i in range(servers)]
        sizes = [str(observation_bytes), str(num_envs)]
        processes = []
        try:
            for path in paths:
                command = [program, "serve", f"unix:{path}", *sizes]
                processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            for process, path in zip(processes, paths, strict=True):
                wait_until_it_accepts(process, path)
            addresses = [f"unix:{path}" for path in paths]
            return float(run(program, "drive", str(seconds), str(streams_per_server),
                             str(num_envs), *addresses))  # fmt: skip
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--observation_bytes", type=int, default=28224, help="Size of one observation."
    )
    parser.add_argument("--num_envs", type=int, default=32, help="Environments per message.")
    parser.add_argument("--servers", type=int, default=2, help="Server processes.")
    parser.add_argument("--streams_per_server", type=int, default=1, help="Streams per server.")
    parser.add_argument("--seconds", type=float, default=5.0, help="Time to measure.")
    flags = parser.parse_args()
    try:
        speed = measure(**vars(flags))
    except (RuntimeError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    result = {
        "benchmark": "bare_stream",
        "steps_per_second": round(speed),
        "settings": vars(flags),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
