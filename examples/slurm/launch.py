# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Runs PolyBeast as Slurm jobs: an array of CPU jobs with environment servers, and a learner job
with a GPU. Flags that are not listed below are passed on to the learner.

    python -m examples.slurm.launch --xpid pong --server_jobs 4 --servers_per_job 16
    python -m examples.slurm.launch --xpid pong --server_jobs 2 --servers_per_job 1 --cluster local

Shortly before a job's time limit, submitit tells it to stop. The job ends its program, which saves
a checkpoint, and submitit queues the job again. When the job starts again, the run is resumed.
"""

import argparse
import contextlib
import json
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
from libtorchbeast.flags import UserError, is_folder_name, real, require, whole
from libtorchbeast.tools import certificates

ROOT = Path(__file__).resolve().parent.parent.parent

# CHANGE HERE the parameters for your cluster. submitit's AutoExecutor documents them.
SERVER_JOB = dict(mem_gb=16, slurm_partition="cpu")
# What the job of one learner asks for.
LEARNER_JOB = dict(mem_gb=32, slurm_partition="gpu", cpus_per_task=8, gpus_per_node=1)

DAYS = 365  # the certificates are valid for this long
RESTARTS = 10  # how many times torchrun starts several learners again after the loss of one
REQUEUES = 1000  # the largest number of time-outs of a job; submitit's default is 3
POLL_S = 1.0
FAILED = "failed"
OVER = "over"  # the name of a file that exists once the learner has ended for good


# =========================================================================================== a job
class Job:
    """Runs one program on the machine that Slurm chooses.

    submitit pickles this object and calls it there. When Slurm signals that the time limit is near,
    submitit calls `checkpoint` and queues the job again.
    """

    def __init__(self, flags: argparse.Namespace):
        self.flags, self.program = flags, None
        self.over = flags.folder / OVER

    def __call__(self) -> None:
        signal.signal(signal.SIGTERM, _exit)  # scancel sends SIGTERM, and submitit only logs it
        try:
            self.work()
        finally:
            self.end()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `scontrol requeue` sends it
        self.end()
        self.program = None
        return submitit.helpers.DelayedSubmission(self)

    def start(self, *modules: str, words: list[str]) -> None:
        """Runs `python -m MODULES --env ENV WORDS`."""
        command = [sys.executable, "-m", *modules, "--env", self.flags.env, *words]
        print(shlex.join(command), flush=True)
        # Some clusters send the signal to all processes. It would end the program without a save.
        ignore = lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        self.program = subprocess.Popen(command, cwd=ROOT, preexec_fn=ignore)

    def end(self) -> None:
        """Asks the program to end and waits for it. A learner saves a checkpoint."""
        if self.program is not None:
            self.program.terminate()
            # `wait()` would wait for ever if the signal came in the middle of a `poll()`.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.program.pid, os.WEXITED | os.WNOWAIT)

    def has_ended(self) -> bool:
        """Whether the program has ended by itself. Raises RuntimeError if it failed."""
        code = self.program.poll()
        if code:
            raise RuntimeError(f"{shlex.join(self.program.args)}: exit code {code}")
        return code == 0


def _exit(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # the same signal may arrive several times
    sys.exit(128 + number)


def tls_flags(folder: Path, pair: Path) -> list[str]:
    return ["--tls_cert", f"{pair}.crt", "--tls_key", f"{pair}.key", "--tls_ca", f"{folder}/ca.crt"]


# ============================================================================= environment servers
class Servers(Job):
    """A job of the array, which runs environment servers.

    The machine is known only when the job runs. So the job writes its addresses into a file, from
    which the learner reads them. The file says FAILED if the job has failed, and it is empty while
    the job does not run.
    """

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
        texts = [(self.flags.folder / name).read_bytes() for name in ("ca.crt", "ca.key")]
        ca = certificates.Pair.from_texts(*texts)
        certificates.certify_host(ca, host, DAYS).write(own, "server")
        tls = tls_flags(self.flags.folder, own / "server")
        ports = free_ports(self.flags.servers_per_job)
        words = ["--server_addresses", f"{where}:{ports}", *tls]
        self.start("polybeast_env", words=[*words, *shlex.split(self.flags.server_flags)])
        self.say(f"{host}:{ports}")
        while not self.has_ended() and not self.over.exists():
            time.sleep(POLL_S)
        self.end()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        self.say("")
        return super().checkpoint()

    def say(self, text: str) -> None:
        replace(self.file, text)


def replace(file: Path, text: str) -> None:
    """A reader sees either the old text of the file or the whole new one."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def free_ports(count: int) -> str:
    """Returns a range "first-last" of ports that are free now. They lie below the ports that the
    system gives to outgoing connections."""
    while True:
        first = random.randrange(10_000, 32_000 - count)
        with contextlib.suppress(OSError):
            for port in range(first, first + count):
                socket.create_server(("", port)).close()
            return f"{first}-{first + count - 1}"


# ========================================================================================= learner
class Learner(Job):
    """The job that learns from the servers that run.

    PolyBeast gets the servers' addresses when it starts. When other servers come up, this job stops
    PolyBeast and starts it again with the new addresses. It resumes because its --xpid is the same.

    With --learner_nodes this runs once on each machine. The first one decides, and writes what it
    starts into a file, from which the others read it. When it stops its learners, those of the
    others stop with them.
    """

    def __init__(self, flags: argparse.Namespace):
        super().__init__(flags)
        self.order = flags.folder / "order"

    def work(self) -> None:
        if node := submitit.JobEnvironment().global_rank:
            self.follow(node)
            return
        try:
            while not self.learn_from(self.settled_servers()):
                pass
        except RuntimeError:
            self.over.touch()
            raise
        self.over.touch()

    def learn_from(self, servers: set[str]) -> bool:
        """Returns True if training has ended, and False if there are new servers or none at all."""
        self.end()
        folder = self.flags.folder
        # A server whose machine failed cannot report it, so wait until its job runs elsewhere.
        words = ["--xpid", self.flags.xpid, "--server_timeout", "1e6", *self.flags.learner_flags]
        tls = tls_flags(folder, folder / "learner")
        words = ["--server_addresses", ",".join(sorted(servers)), *tls, *words]
        host = "127.0.0.1" if self.flags.cluster == "local" else socket.gethostname()
        order = json.dumps([host, free_ports(1).split("-")[0], words])
        replace(self.order, order)
        self.start_learners(0, order)
        while not self.has_ended():
            now = self.servers()
            if not now or now - servers:
                return False
            time.sleep(POLL_S)
        return True

    def start_learners(self, node: int, order: str) -> None:
        nodes, learners = self.flags.learner_nodes, self.flags.learners
        host, port, words = json.loads(order)
        torchrun = f"torch.distributed.run --nnodes {nodes} --node_rank {node} --nproc_per_node"
        torchrun += f" {learners} --master_addr {host} --master_port {port} --max_restarts"
        several = [*torchrun.split(), str(RESTARTS), "-m"] if nodes * learners > 1 else []
        self.start(*several, "polybeast", words=words)

    def follow(self, node: int) -> None:
        """Starts this machine's learners whenever those of the first machine start."""
        before = ""
        while not self.over.exists():
            order = self.order.read_text() if self.order.exists() else ""
            if order != before:
                self.end()
                before = order
                self.start_learners(node, order)
            time.sleep(POLL_S)

    def settled_servers(self) -> set[str]:
        """Waits until there are servers and they have not changed for --settle seconds, because the
        learner must be started again after each change."""
        before: set[str] = set()
        while not before or before != self.servers():
            before = self.servers()
            time.sleep(self.flags.settle)
        return before

    def servers(self) -> set[str]:
        """The addresses of the server jobs that run. Raises RuntimeError if all have failed."""
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
    add("--xpid", required=True, help="Name of the run. If it exists, it is resumed.")
    add("--env", default="PongNoFrameskip-v4", help="Id of a Gymnasium environment.")
    add("--server_jobs", type=whole(1), default=4, help="Number of jobs that run servers.")
    add("--servers_per_job", type=whole(1), default=16,
        help="Number of servers, and of cores, per job.")  # fmt: skip
    add("--learners", type=whole(1), default=1,
        help="Number of learners on each of their machines.")  # fmt: skip
    add("--learner_nodes", type=whole(1), default=1, help="Number of machines with learners.")
    add("--server_flags", default="", metavar='"--FLAG VALUE ..."', help="Flags of polybeast_env.")
    add("--minutes", type=whole(1), default=24 * 60,
        help="Time limit of a job, which is then requeued.")  # fmt: skip
    add("--settle", type=real(0), default=30.0, metavar="SECONDS",
        help="The learner starts when the server jobs have not changed for this long.")  # fmt: skip
    add("--folder", type=Path, default="~/torchbeast-jobs",
        help="Folder for the jobs' files, on a file system that all machines share.")  # fmt: skip
    add("--cluster", default="slurm", choices=["slurm", "local"],
        help="Where the jobs run. local runs them on this machine.")  # fmt: skip
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Parses the flags, also those of the programs, so that wrong ones are refused before the jobs
    are queued."""
    parser = make_parser()
    flags, flags.learner_flags = parser.parse_known_args(argv)
    try:
        is_name = is_folder_name(flags.xpid) and flags.xpid != "latest"
        require(flags, "xpid", is_name, "a plain folder name, and not latest")
        learner = polybeast.make_parser().parse_args(flags.learner_flags)
        require(learner, "mode", learner.mode == "train", "train")
        polybeast_env.make_parser().parse_args(shlex.split(flags.server_flags))
    except UserError as error:
        parser.error(str(error))
    return flags


def make_folder(flags: argparse.Namespace) -> Path:
    """Makes a new folder for these jobs, which only this user may enter. It contains private keys
    and submitit's pickles, and whoever could write those could run code as this user."""
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
    """Submits the array and, to start after it, the learner's job. Returns the ids of both."""
    array = executor(flags, cpus_per_task=flags.servers_per_job, **SERVER_JOB)
    with array.batch():
        jobs = [array.submit(Servers(flags, i)) for i in range(flags.server_jobs)]
    ids = sorted({job.job_id.split("_")[0] for job in jobs})
    try:
        each = {name: LEARNER_JOB[name] for name in ("mem_gb", "cpus_per_task", "gpus_per_node")}
        job = LEARNER_JOB | {name: flags.learners * count for name, count in each.items()}
        nodes = dict(nodes=flags.learner_nodes, tasks_per_node=1)
        if flags.cluster == "local":  # submitit then has one machine only
            nodes = dict(tasks_per_node=flags.learner_nodes)
        learner = executor(flags, slurm_dependency="after:" + ":".join(ids), **nodes, **job)
        return [*ids, learner.submit(Learner(flags)).job_id]
    except BaseException:  # for example, the partition does not exist
        (flags.folder / OVER).touch()
        raise


def main(argv: list[str] | None = None) -> None:
    flags = parse(sys.argv[1:] if argv is None else argv)
    os.chdir(ROOT)  # the jobs start in the folder in which they are submitted
    flags.folder = make_folder(flags)
    ids = submit(flags)
    cancel = "scancel" if flags.cluster == "slurm" else "kill"
    print(f"To watch the jobs: tail -F {flags.folder}/jobs/*.out")
    print(f"To save and stop: {cancel} {' '.join(ids)}")


if __name__ == "__main__":
    main()
