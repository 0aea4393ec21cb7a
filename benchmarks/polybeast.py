# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""How fast PolyBeast is, beside a ceiling measured in the same run on the same machine.

    python -m benchmarks.polybeast --task transport          # 28,224-byte observations
    python -m benchmarks.polybeast --task transport_stacked  # ... of which a quarter travels
    python -m benchmarks.polybeast --task transport_small    # 400-byte observations
    python -m benchmarks.polybeast --task pong               # deep network
    python -m benchmarks.polybeast --task pong_shallow       # MonoBeast's network

Prints one JSON line. All speeds are agent steps per second; `ratio` = figure / ceiling. Compare
ratios, not speeds: machines differ, and a shared one differs from itself.

    transport     figure: two server processes (Python) with a mock environment, the actor pool, an
                  inference thread that answers with constant actions, a drained learner queue;
                  ceiling: the bare gRPC C++ stream (bare_stream.cc), messages of the same size
    transport_stacked  the same with stacks of 4 frames at the network, 28,224 bytes, of which the
                  newest travels; ceiling: the bare stream, all 28,224 bytes
    pong          figure: the program itself, trained; ceiling: the learner alone, plain fp32, both
                  cores, batches of 80 x 8
    pong_shallow  figure: the program itself with --net monobeast.Net; ceiling: MonoBeast
"""

import argparse
import threading
import time

import torch

import libtorchbeast
import polybeast
import polybeast_env
from benchmarks import bare_stream
from benchmarks.common import measure_training, report, steps_per_second
from libtorchbeast.learner import Learner
from libtorchbeast.local_servers import LocalServers

TRANSPORT = {  # observation: environments a message, streams a server, both as in the ceiling
    "transport": ("Mock/4x84x84", 28_224, 32, 1),
    "transport_stacked": ("Mock", 28_224, 32, 1),
    "transport_small": ("Mock/10x10x4", 400, 64, 2),
}
SERVERS = 2
T = 20


def measure_transport(env: str, num_envs: int, streams: int, seconds: float) -> float:
    arguments = ["--env", env, "--envs_per_server", str(num_envs), "--num_servers", str(SERVERS)]
    flags = polybeast_env.make_parser().parse_args(arguments)
    polybeast_env.check_flags(flags)
    columns = SERVERS * streams * num_envs
    batcher = libtorchbeast.DynamicBatcher(1, columns, timeout_ms=10)
    queue = libtorchbeast.BatchingQueue(num_envs, columns)
    learned = [0]

    def answer() -> None:
        for batch in batcher:
            batch.get_inputs()
            batch.set_outputs(({"action": torch.zeros(1, len(batch), dtype=torch.int64)}, ()))

    def drain() -> None:
        for batch in queue:
            learned[0] += T * batch["reward"].shape[1]

    threads = [threading.Thread(target=target, daemon=True) for target in (answer, drain)]
    for thread in threads:
        thread.start()
    with LocalServers(polybeast_env.make_parser(), flags) as servers:
        description = servers.describe(timeout=60)
        addresses = servers.addresses * streams
        pool = libtorchbeast.ActorPool(T, queue, batcher, addresses, (), description)
        while not all(stream.connected for stream in pool.status()):
            time.sleep(0.05)
        time.sleep(1.0)  # warm
        before, start = learned[0], time.perf_counter()
        time.sleep(seconds)
        speed = (learned[0] - before) / (time.perf_counter() - start)
        if events := pool.take_events():
            raise RuntimeError(f"streams failed: {events}")
        pool.close()
    for thread in threads:
        thread.join()
    return speed


def measure_plain_learner(seconds: float) -> float:
    """The deep network's learner alone on 81 x 8 frames: fp32, channels first, both cores."""
    flags = polybeast.make_parser().parse_args(["--precision", "fp32", "--disable_cuda"])
    polybeast.check_flags(flags)
    torch.set_num_threads(2)
    T, B, A = 80, 8, 6
    frame = ((4, 84, 84), "uint8")
    actions = libtorchbeast.spec.Actions("discrete", (A,))
    spec = libtorchbeast.spec.Spec("Pong", B, {"frame": frame}, actions)
    never = torch.zeros(T + 1, B, dtype=torch.bool)
    batch = {
        "frame": torch.randint(0, 256, (T + 1, B, 4, 84, 84), dtype=torch.uint8),
        "reward": torch.zeros(T + 1, B),
        "done": never,
        "terminated": never,
        "truncated": never,
        "action": torch.randint(0, A, (T + 1, B)),
        "policy_logits": torch.zeros(T + 1, B, A),
        "policy_version": torch.zeros(T + 1, B, dtype=torch.int64),
    }
    learner = Learner(polybeast.Net(spec, flags), flags, torch.device("cpu"), dump_dir=None)

    def learn() -> int:
        learner.update(batch, publish=lambda state_dict, version: None)
        return T * B

    return steps_per_second(learn, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=[*TRANSPORT, "pong", "pong_shallow"], required=True)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each part alone")
    parser.add_argument("--training_seconds", type=float, default=60.0)
    own, rest = parser.parse_known_args()
    settings: dict = {"flags": rest}
    if own.task in TRANSPORT:
        env, size, num_envs, streams = TRANSPORT[own.task]
        ceiling = bare_stream.measure(size, num_envs, SERVERS, streams, own.seconds)
        figure = measure_transport(env, num_envs, streams, own.seconds)
        settings |= {"observation_bytes": size, "envs_per_server": num_envs}
        settings |= {"servers": SERVERS, "streams_per_server": streams}
    elif own.task == "pong":
        ceiling = measure_plain_learner(own.seconds)
        figure = measure_training("polybeast", rest, own.training_seconds)
    else:
        ceiling = measure_training("monobeast", rest, own.training_seconds)
        poly = ["--net", "monobeast.Net", *rest]
        figure = measure_training("polybeast", poly, own.training_seconds)
    report({
        "benchmark": f"polybeast-{own.task}",
        "ratio": round(figure / ceiling, 3),
        "steps_per_second": {"figure": round(figure), "ceiling": round(ceiling)},
        "settings": settings,
    })  # fmt: skip


if __name__ == "__main__":
    main()
