# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Trains a run for every combination of flag values, as many at a time as fit on the machine.

    python -m libtorchbeast.tools.sweep NAME --env MinAtar/Breakout-v1,MinAtar/Seaquest-v1 \\
        --seed 1-5 --learning_rate 1e-3,3e-3 -- python -m monobeast --total_steps 5_000_000

The words after `--` are the program of each run. Flags before `--` that are not listed below are
swept. The runs are in SAVEDIR/NAME, and the same command resumes all of them. docs/studies.md says
more.
"""

import argparse
import contextlib
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import rich.live
import rich.table

from libtorchbeast import linux, workers
from libtorchbeast.flags import (
    SAVEDIR,
    Parser,
    UserError,
    choose_xpid,
    is_folder_name,
    run_path,
    whole,
)
from libtorchbeast.loggers.csv_table import last_row
from libtorchbeast.loggers.display import console, duration, number, say
from libtorchbeast.loggers.files import RunInUse, hold
from libtorchbeast.tools.study import Run, add_to_plan, make_runs, parse_factors

POLL_S = 0.2  # time between two looks at the runs


# ============================================================================================ slots
class Slot(NamedTuple):
    """Cores and GPUs that only one run uses. In a job of Slurm, which assigns them, it is None."""

    cores: list[int]
    gpus: list[str]


def make_slots(cores_per_run: int, gpus_per_run: int, runs_per_gpu: int) -> list[Slot]:
    """Divides the cores and GPUs that this process may use into as many slots as fit. Raises
    UserError if not even one fits."""
    cores = linux.own_cores()
    gpus = [gpu for gpu in _gpus() for _ in range(runs_per_gpu)] if gpus_per_run else []
    count = len(cores) // cores_per_run
    if gpus_per_run:
        count = min(count, len(gpus) // gpus_per_run)
    if not count:
        wanted = f"{cores_per_run} cores and {gpus_per_run} GPUs"
        raise UserError(f"a run needs {wanted}; there are {len(cores)} and {len(gpus)}")
    of = lambda items, size, i: items[i * size : (i + 1) * size]
    return [Slot(of(cores, cores_per_run, i), of(gpus, gpus_per_run, i)) for i in range(count)]


def _gpus() -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, or else all."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # no driver, or no GPU
            listed = subprocess.check_output(command, text=True)
    return re.findall(r"[^\s,]+", listed)


# ======================================================================================== launching
class Launcher:
    """Keeps every slot busy with a run until none waits."""

    def __init__(self, runs: list[Run], slots: list[Slot], retries: int):
        self.waiting, self.free, self.retries = list(runs), list(slots), retries
        self.num_slots = len(slots)
        self.running: dict[Run, tuple[Slot, subprocess.Popen]] = {}
        self.complete: list[Run] = []
        self.failed: list[Run] = []
        self._failures: Counter[Run] = Counter()

    def work(self, stop: workers.PipeEvent, signals: list[str]) -> None:
        """Returns when each run is complete or given up, or has stopped because `stop` was set. A
        later SIGINT among the `signals` kills the runs that have not."""
        stopping, early = False, sys.maxsize  # SIGINTs, of which `timeout` sends two at once
        while self.running or (self.waiting and not stopping):
            if not stopping:
                self._start_some()
            time.sleep(POLL_S)
            if stop.is_set() and not stopping:
                stopping, early = True, signals.count("SIGINT")
                say("Stopping. Each run saves a checkpoint; the same command resumes.")
                say("A second Ctrl-C kills the runs that take too long.")
                for _, process in self.running.values():
                    process.terminate()
            for _, process in self.running.values() if signals.count("SIGINT") > early else ():
                process.kill()
            for run, (slot, process) in list(self.running.items()):
                if process.poll() is not None:
                    del self.running[run]
                    self.free.insert(0, slot)
                    self._ended(run, process.returncode, stopping)

    def _start_some(self) -> None:
        for run in [*self.waiting]:
            if not self.free:
                return
            slot = self.free[0]
            try:
                with hold(run.path):
                    complete = run.is_complete()
                if complete:
                    self.complete.append(run)
                else:
                    self.running[run] = slot, start(run, slot)
                    self.free.remove(slot)
                    gpus = f", GPUs {', '.join(slot.gpus)}" if slot.gpus else ""
                    say(f"{run.path.name}: starts on cores {', '.join(map(str, slot.cores))}{gpus}")
            except RunInUse:  # by a run of a killed launcher that still saves, or by the user
                continue
            except (OSError, UserError, subprocess.SubprocessError) as error:
                self.failed.append(run)
                say(f"{run.path.name}: cannot be started: {error}")
            self.waiting.remove(run)

    def _ended(self, run: Run, code: int, stopping: bool) -> None:
        row = last_row(run.path)
        score = number(row.get("mean_game_return"), ".3g")
        at = f"at step {row.get('step', 0):,.0f}, return {score}"
        if run.is_complete():
            self.complete.append(run)
            say(f"{run.path.name}: complete {at} in {duration(3600 * row.get('hours', 0))}")
        elif stopping:
            say(f"{run.path.name}: stopped {at}, exit code {code}")
        else:
            self._failures[run] += 1
            # An error of one line, as for a misspelt flag, does not get better by itself.
            refused = code == 1 and re.match(r" +\w+: error: ", last_lines(run, 1))
            again = self._failures[run] <= self.retries and not refused
            (self.waiting if again else self.failed).append(run)
            then = "will be tried again" if again else "given up"
            seen = last_lines(run, 1 if refused else 5)
            say(f"{run.path.name}: failed {at}, exit code {code}, {then}:\n{seen}")
            if refused and "unrecognized flag" in seen and self.waiting:
                self.waiting.clear()
                say("The other runs have the same flags and are not tried.")

    def table(self) -> rich.table.Table:
        """The runs that are running, and how many are not."""
        counts = {name: len(getattr(self, name)) for name in ("complete", "waiting", "failed")}
        left = estimate(self.complete, [*self.running, *self.waiting], self.num_slots)
        caption = ", ".join(f"{count} {name}" for name, count in counts.items()) + left
        table = rich.table.Table("run", "progress", "return", "time left", caption=caption)
        for run in [*self.running]:  # rich calls this from a thread of its own
            row, total = last_row(run.path), run.total_steps()
            progress = f"{row.get('step', 0) / total:.1%}" if total else "-"
            score = number(row.get("mean_game_return"), ".3g")
            until = "-" if (seconds := run.seconds_left()) is None else duration(seconds)
            table.add_row(run.path.name, progress, score, until)
        return table


def start(run: Run, slot: Slot | None) -> subprocess.Popen:
    """Starts the run's program. It gets SIGTERM, and saves a checkpoint, if this process ends."""
    launcher = os.getpid()

    def set_up() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # this process's handler would swallow it
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm may send the sweep's to all
        linux.end_with_parent(signal.SIGTERM)
        if os.getppid() != launcher:  # it ended before the line above
            os._exit(1)
        if slot is not None:
            linux.use_cores(slot.cores)

    run.path.mkdir(parents=True, exist_ok=True)
    with open(run.path / "printed.txt", "a") as printed:
        return subprocess.Popen(
            run.command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
            env=os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(slot.gpus)} if slot else {}),
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the runs
            preexec_fn=set_up,
        )  # fmt: skip


def last_lines(run: Run, count: int = 5) -> str:
    """The last that the run has printed, unless its file cannot be read."""
    printed = b""
    with contextlib.suppress(OSError), open(run.path / "printed.txt", "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 100_000))
        printed = file.read()
    lines = printed.decode(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-count:])


# ============================================================================================ Slurm
class SlurmJob:
    """A run in a job of Slurm. submitit calls `checkpoint` when the job must leave its machine."""

    def __init__(self, run: Run):
        self._run = run
        self._process: subprocess.Popen | None = None

    def __call__(self) -> None:
        if not self._run.is_complete():  # or an earlier job has completed it
            self._process = start(self._run, None)
            self._wait(self._process.pid)
            if not self._run.is_complete():
                raise RuntimeError(f"{self._run.path} failed:\n{last_lines(self._run)}")

    def checkpoint(self) -> Any:
        """Stops the run, and returns what submitit runs when Slurm starts the job again."""
        import submitit

        if self._process is not None:
            os.kill(self._process.pid, signal.SIGTERM)
            self._wait(self._process.pid)
        return submitit.helpers.DelayedSubmission(SlurmJob(self._run))

    def _wait(self, pid: int) -> None:
        """Popen.wait would not do: it holds a lock while `checkpoint` interrupts it."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def submit(folder: Path, runs: list[Run], flags: argparse.Namespace) -> None:
    """Sends the runs to Slurm, as jobs of one array. Raises UserError if submitit or Slurm is not
    installed, or a parameter is none of submitit's."""
    try:
        import submitit

        options: dict[str, Any] = {"name": folder.name, "cpus_per_task": flags.cores_per_run}
        options["gpus_per_node"] = flags.gpus_per_run or None
        for word in flags.slurm:
            name, equals, text = word.partition("=")
            if not equals:
                raise UserError(f"expected KEY=VALUE, seen {word}")
            options[name] = int(text) if text.isdigit() else text
        cluster = options.pop("cluster", "slurm")  # the tests have another one
        place = folder / "slurm"
        executor = submitit.AutoExecutor(place, cluster=cluster, slurm_max_num_timeout=10**6)
        executor.update_parameters(**options)
        with executor.batch():
            jobs = [executor.submit(SlurmJob(run)) for run in runs]
    except ImportError:
        raise UserError("--slurm: pip install submitit==1.5.4") from None
    except (RuntimeError, NameError, ValueError, AssertionError) as error:
        raise UserError(f"--slurm: {error}") from error
    ids = " ".join(job.job_id for job in jobs)
    say(f"Submitted {len(jobs)} jobs: {ids}. Their output goes to {place} and {folder}/*/.")


# ============================================================================================= main
# fmt: off
def make_parser() -> Parser:
    parser = Parser("python -m libtorchbeast.tools.sweep", __doc__)
    add = parser.add_argument
    add("name", metavar="NAME", help="Name of the study, and of its folder in --savedir.")
    add("--savedir", default=SAVEDIR, help="Folder that holds all studies.")
    add("--cores_per_run", type=whole(1), default=1, help="Number of cores of each run.")
    add("--gpus_per_run", type=whole(0), default=0, help="Number of GPUs of each run.")
    add("--runs_per_gpu", type=whole(1), default=1, help="Number of runs that share a GPU.")
    add("--retries", type=whole(0), default=1, help="How many times a failed run is retried.")
    add("--dry_run", action="store_true", help="Only print the commands of incomplete runs.")
    add("--slurm", nargs="*", metavar="KEY=VALUE",
        help="Submit the runs to Slurm. KEY=VALUE are parameters of submitit, for example "
             "timeout_min=600 slurm_partition=gpu.")
    return parser
# fmt: on


def main(argv: list[str] | None = None) -> None:
    """The command. It exits with 0 if all runs are complete or were sent to Slurm."""
    workers.make_stderr_patient()
    try:
        sys.exit(sweep(sys.argv[1:] if argv is None else argv))
    except (UserError, OSError) as error:
        sys.exit(f"sweep: error: {error}")
    except RunInUse as error:
        sys.exit(f"sweep: error: another launcher is at work: {str(error).partition(';')[0]}")


def sweep(argv: list[str]) -> int:
    """Does what the command says; returns the exit code."""
    cut = argv.index("--") if "--" in argv else len(argv)
    program = argv[cut + 1 :]
    flags, words = make_parser().parse_known_args(argv[:cut])
    if argv[0] != flags.name or not is_folder_name(flags.name) or not program:
        raise UserError("expected NAME, flags, and `-- python -m PROGRAM`, in this order")
    if flags.runs_per_gpu > 1 and flags.gpus_per_run != 1:
        raise UserError(f"--runs_per_gpu {flags.runs_per_gpu}: expected --gpus_per_run 1 with it")
    place = argparse.Namespace(mode="train", savedir=flags.savedir, xpid=flags.name)
    choose_xpid(place)
    folder = Path(run_path(place))
    factors = parse_factors(words)
    runs = make_runs(folder, factors, program)
    here = flags.slurm is None
    slots = make_slots(flags.cores_per_run, flags.gpus_per_run, flags.runs_per_gpu) if here else []
    complete = [run for run in runs if run.is_complete()]
    others = [run for run in runs if run not in complete]
    left = estimate(complete, others, len(slots) or 1)
    say(f"{folder}: {len(complete)} of {len(runs)} runs are complete{left}")
    if flags.dry_run:
        print("".join(f"{shlex.join(run.command)}\n" for run in others), end="")
        return 0
    with hold(folder):
        command = shlex.join(["python", "-m", "libtorchbeast.tools.sweep", *argv])
        for name in add_to_plan(folder, command, factors, runs):
            say(f"{name}: its command has changed. If it is complete, it stays as it is.")
        if here:
            return launch(Launcher(runs, slots, flags.retries))
        submit(folder, others, flags)
        return 0


def estimate(complete: list[Run], others: list[Run], slots: int) -> str:
    """How long the others will take, in words. Those that have not begun will take as long as the
    complete ones have taken; without any of these the text is empty."""
    done = [3600 * last_row(run.path).get("hours", 0.0) for run in complete]
    if not done or not others:
        return ""
    left = [statistics.fmean(done) if (s := run.seconds_left()) is None else s for run in others]
    return f", about {duration(max(max(left), sum(left) / slots))}"


def launch(launcher: Launcher) -> int:
    """Works with a live table, if there is a terminal. Returns the exit code."""
    live = rich.live.Live(
        console=console, get_renderable=launcher.table, refresh_per_second=0.5, transient=True
    )
    stop, shown = workers.PipeEvent(), live if console.is_terminal else contextlib.nullcontext()
    with workers.stop_signals_set(stop) as signals, shown:
        launcher.work(stop, signals)
    if stop.is_set():
        return 130
    for run in launcher.failed:
        say(f"{run.path.name}: failed; see {run.path}/printed.txt")
    say(f"{len(launcher.complete)} runs are complete, {len(launcher.failed)} failed.")
    return int(bool(launcher.failed))


if __name__ == "__main__":
    main()
