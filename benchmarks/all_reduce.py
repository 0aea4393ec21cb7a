# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Measures the all-reduce of several learners (libtorchbeast/distributed) between two processes on
one machine, and between two network namespaces whose cable carries 1 or 10 Gbit/s.

    sudo .venv/bin/python -m benchmarks.all_reduce

It prints the median and the fastest of the repetitions. Other work of the machine slows them down.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import torch

from tests.support.network import HOSTS, on, two_machines

SIZES = {"MinAtar": 133_000, "shallow": 1_700_000, "deep": 1_100_000}  # parameters, rounded
RATES = ("1gbit", "10gbit")


def one_rank(repetitions: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for name, size in SIZES.items():
        flat, seconds = torch.ones(size), []
        for _ in range(repetitions):
            began = time.perf_counter()
            dist.all_reduce(flat)
            seconds.append(time.perf_counter() - began)
        if dist.get_rank() == 0:
            median, least = statistics.median(seconds), min(seconds)
            ms = f"median {1e3 * median:.1f} ms, fastest {1e3 * least:.1f} ms"
            print(f"  {name}, {size:,} parameters: {ms}", flush=True)
    dist.destroy_process_group()


def both(where: str, hosts: list[list[str]], address: str, repetitions: int, **variables: str):
    load = os.getloadavg()[0]
    print(f"{where} (load {load:.1f}):", flush=True)
    command = [sys.executable, "-m", "benchmarks.all_reduce", "--repetitions", str(repetitions)]
    env = os.environ | variables | {"MASTER_ADDR": address, "MASTER_PORT": "29519"}
    ranks = [
        subprocess.Popen([*host, *command], env=env | {"RANK": str(i), "WORLD_SIZE": "2"})
        for i, host in enumerate(hosts)
    ]
    for rank in ranks:
        rank.wait()


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.all_reduce", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=30)
    flags = parser.parse_args()
    if "RANK" in os.environ:
        one_rank(flags.repetitions)
        return
    both("one machine", [[], []], "127.0.0.1", flags.repetitions)
    with two_machines() as names:
        for rate in RATES:
            for namespace in names.values():
                limit = f"qdisc replace dev cable root tbf rate {rate} burst 4mb latency 50ms"
                subprocess.run([*on(namespace), "tc", *limit.split()], check=True)
            hosts = [on(namespace) for namespace in names.values()]
            address = HOSTS[next(iter(names))]
            both(
                f"a cable of {rate}", hosts, address, flags.repetitions, GLOO_SOCKET_IFNAME="cable"
            )


if __name__ == "__main__":
    main()
