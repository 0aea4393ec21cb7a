# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""PolyBeast as Slurm jobs: an array of CPU jobs with environment servers, and a learner job with a
GPU. Flags that are not below go to the learner.

    python -m examples.slurm.launch --xpid pong --server_jobs 4 --servers_per_job 16
    python -m examples.slurm.launch --xpid pong --server_jobs 2 --servers_per_job 1 --cluster local

Before its time limit each job ends its program, which saves, and is queued again (submitit sees to
both); where it begins again, it goes on.
"""

import argparse
import contextlib
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import submitit

import polybeast
import polybeast_env
from libtorchbeast.tools import certificates

ROOT = Path(__file__).resolve().parent.parent.parent

# CHANGE HERE what your cluster wants to know: whatever submitit's AutoExecutor takes.
SERVER_JOB = dict(mem_gb=16, slurm_partition="cpu")
LEARNER_JOB = dict(mem_gb=32, slurm_partition="gpu", cpus_per_task=8, gpus_per_node=1)

DAYS = 365  # that the certificates hold
REQUEUES = 1000  # after time-outs; submitit's default is 3
POLL_S = 1.0
FAILED = "failed"
OVER = "over"  # a file that is there when the learner has ended for good


# =========================================================================================== a job
class Job:
    """One program, on the machine that Slurm found. submitit pickles this object and calls it
    there; on the signal before the time limit it calls `checkpoint` and queues the job again."""

    def __init__(self, flags: argparse.Namespace):
        self.flags, self.program = flags, None
        self.over = flags.folder / OVER

    def __call__(self) -> None:
        signal.signal(signal.SIGTERM, _exit)  # scancel's; submitit would only log it
        try:
            self.work()
        finally:
            self.end()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `scontrol requeue` sends it
        self.end()
        self.program = None
        return submitit.helpers.DelayedSubmission(self)

    def start(self, module: str, *words: str) -> None:
        command = [sys.executable, "-m", module, "--env", self.flags.env, *words]
        print(shlex.join(command), flush=True)
        # Some clusters send the signal to all processes; the program would die of it, unsaved.
        ignore = lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        self.program = subprocess.Popen(command, cwd=ROOT, preexec_fn=ignore)

    def end(self) -> None:
        """Asks the program to end, and waits; a learner saves."""
        if self.program is not None:
            self.program.terminate()
            # `wait()` would wait for ever if the signal came in the middle of a `poll()`.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.program.pid, os.WEXITED | os.WNOWAIT)

    def has_ended(self) -> bool:
        """Whether the program has, by itself. Raises RuntimeError if it failed."""
        code = self.program.poll()
        if code:
            raise RuntimeError(f"{shlex.join(self.program.args)}: exit code {code}")
        return code == 0


def _exit(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # more of them may come
    sys.exit(128 + number)


def tls_flags(folder: Path, pair: Path) -> list[str]:
    return ["--tls_cert", f"{pair}.crt", "--tls_key", f"{pair}.key", "--tls_ca", f"{folder}/ca.crt"]


# ============================================================================= environment servers
class Servers(Job):
    """A job of the array. Where it runs is known only then: a file says its addresses, or FAILED,
    or nothing while it does not run."""

    def __init__(self, flags: argparse.Namespace, index: int):
        super().__init__(flags)
        self.file = flags.folder / "servers" / str(index)

    def work(self) -> None:
        said = ""
        try:
            with tempfile.TemporaryDirectory() as own:  # on this machine, for this user only
                self.serve(Path(own))
        except RuntimeError:
            said = FAILED
            raise
        finally:
            self.say(said)

    def serve(self, own: Path) -> None:
        where, host = "0.0.0.0", socket.gethostname()
        if self.flags.cluster == "local":
            where = host = "127.0.0.1"
        ca = certificates.Pair.read(self.flags.folder, "ca")
        certificates.certify_host(ca, host, DAYS).write(own, "server")
        tls = tls_flags(self.flags.folder, own / "server")
        ports = free_ports(self.flags.servers_per_job)
        more = shlex.split(self.flags.server_flags)
        self.start("polybeast_env", "--server_addresses", f"{where}:{ports}", *tls, *more)
        self.say(f"{host}:{ports}")
        while not self.has_ended() and not self.over.exists():
            time.sleep(POLL_S)
        self.end()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        self.say("")
        return super().checkpoint()

    def say(self, text: str) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)  # a reader sees all of it or what was there before


def free_ports(count: int) -> str:
    """first-last, where nobody listens now; below those that the system gives to connections."""
    while True:
        first = random.randrange(10_000, 32_000 - count)
        with contextlib.suppress(OSError):
            for port in range(first, first + count):
                socket.create_server(("", port)).close()
            return f"{first}-{first + count - 1}"


# ========================================================================================= learner
class Learner(Job):
    """Learns from the servers that there are. PolyBeast is given them when it starts; where others
    come up, it is ended and started again with those, and its --xpid lets it go on."""

    def work(self) -> None:
        try:
            while not self.learn_from(self.settled_servers()):
                pass
        except RuntimeError:
            self.over.touch()
            raise
        self.over.touch()

    def learn_from(self, servers: set[str]) -> bool:
        """Whether it has learned to the end; else there are other servers, or none."""
        self.end()
        folder = self.flags.folder
        # A server whose machine failed cannot say so: wait for its job to come back elsewhere.
        words = ["--xpid", self.flags.xpid, "--server_timeout", "1e6", *self.flags.learner_flags]
        tls = tls_flags(folder, folder / "learner")
        self.start("polybeast", "--server_addresses", ",".join(sorted(servers)), *tls, *words)
        while not self.has_ended():
            now = self.servers()
            if not now or now - servers:
                return False
            time.sleep(POLL_S)
        return True

    def settled_servers(self) -> set[str]:
        """Waits until there are some, and the same as --settle seconds ago: each change costs a
        start of the learner."""
        before: set[str] = set()
        while not before or before != self.servers():
            before = self.servers()
            time.sleep(self.flags.settle)
        return before

    def servers(self) -> set[str]:
        """Addresses of the server jobs that run. Raises RuntimeError if all have failed."""
        texts = [file.read_text() for file in (self.flags.folder / "servers").glob("*[0-9]")]
        if texts.count(FAILED) == self.flags.server_jobs:
            raise RuntimeError(f"all server jobs have failed; {self.flags.folder}/jobs says why")
        return set(texts) - {"", FAILED}


# ======================================================================================= submission
def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "examples.slurm.launch", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--xpid", required=True, help="Name of the run; one that exists is resumed.")
    add("--env", default="PongNoFrameskip-v4")
    add("--server_jobs", type=int, default=4)
    add("--servers_per_job", type=int, default=16, help="Each has a core.")
    add("--server_flags", default="", metavar='"--FLAG VALUE ..."', help="For polybeast_env.")
    add(
        "--minutes", type=int, default=24 * 60, help="Time limit of each job, until it is requeued."
    )
    add("--settle", type=float, default=30.0, metavar="SECONDS",
        help="The learner starts when no server job came or went for as long.")  # fmt: skip
    add("--folder", type=Path, default="~/torchbeast-jobs",
        help="Of the jobs' files, on a file system that all machines share.")  # fmt: skip
    add("--cluster", default="slurm", choices=["slurm", "local"], help="local: on this machine.")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Refuses now what the programs would refuse in the queue."""
    flags, flags.learner_flags = make_parser().parse_known_args(argv)
    polybeast.make_parser().parse_args(flags.learner_flags)
    polybeast_env.make_parser().parse_args(shlex.split(flags.server_flags))
    return flags


def make_folder(flags: argparse.Namespace) -> Path:
    """A new one for these jobs, which only this user may enter: whoever reads it has the keys, and
    whoever writes it can run code, because submitit's files are pickles."""
    parent = flags.folder.expanduser().absolute()
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{flags.xpid}-", dir=parent))
    (folder / "servers").mkdir()
    ca = certificates.make_ca(DAYS)
    ca.write(folder, "ca")
    certificates.certify_learner(ca, DAYS).write(folder, "learner")
    return folder


def executor(flags: argparse.Namespace, **parameters: object) -> submitit.AutoExecutor:
    requeues = dict(slurm_max_num_timeout=REQUEUES, local_max_num_timeout=REQUEUES)
    made = submitit.AutoExecutor(flags.folder / "jobs", flags.cluster, **requeues)
    made.update_parameters(
        name=f"torchbeast-{flags.xpid}", timeout_min=flags.minutes, stderr_to_stdout=True,
        slurm_additional_parameters={"requeue": True}, **parameters,
    )  # fmt: skip
    return made


def submit(flags: argparse.Namespace) -> list[str]:
    """Returns the ids of the array and of the learner's job, which begins after the array has."""
    array = executor(flags, cpus_per_task=flags.servers_per_job, **SERVER_JOB)
    with array.batch():
        jobs = [array.submit(Servers(flags, i)) for i in range(flags.server_jobs)]
    ids = sorted({job.job_id.split("_")[0] for job in jobs})
    try:
        learner = executor(flags, slurm_dependency="after:" + ":".join(ids), **LEARNER_JOB)
        return [*ids, learner.submit(Learner(flags)).job_id]
    except BaseException:  # no such partition, say
        (flags.folder / OVER).touch()
        raise


def main(argv: list[str] | None = None) -> None:
    flags = parse(sys.argv[1:] if argv is None else argv)
    os.chdir(ROOT)  # the jobs begin where they were submitted
    flags.folder = make_folder(flags)
    ids = submit(flags)
    cancel = "scancel" if flags.cluster == "slurm" else "kill"
    print(f"Watch: tail -F {flags.folder}/jobs/*.out")
    print(f"Stop, and save: {cancel} {' '.join(ids)}")


if __name__ == "__main__":
    main()
