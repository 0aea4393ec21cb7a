# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What must go on, or end in order, when something fails on the device."""

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import monobeast
import polybeast
from libtorchbeast import models
from libtorchbeast.accelerator.devices import to_device
from libtorchbeast.flags import UserError
from tests.faults.harness import Figure
from tests.gpu import work
from tests.gpu.machine import has_transport
from tests.gpu.stages import ROOT, Answers
from tests.support.monobeast import CATCH
from tests.support.polybeast import SMALL
from tests.support.processes import load

LEFT = 64 * 2**20  # bytes of its memory that the drill leaves others: too few to open the device
SETTINGS = "--batch_size 4 --log_every 0.5 --unroll_length 10 --eval_every 0 --torch_threads 1"
MONO = [*CATCH, *SETTINGS.split(), *"--num_actors 2 --envs_per_actor 4".split()]
POLY = [*SMALL, *SETTINGS.split()]


def drills(device: str, quick: bool) -> Answers:
    there = torch.device(device)
    yield held("no memory in publish: the checkpoint is whole", out_of_memory(there))
    yield held("NaN logits: refused, and the device still works", nan_logits(there))
    yield held("a NaN batch: skipped, and the device still works", nan_batch(there))
    for what, said in unopened(device):
        yield f"{what}: {said}"
        is_one_line = "--learner_device" in said and "Traceback" not in said
        yield held(f"{what}: it is said in one line", is_one_line)
    steps, alone = (100, ["--num_actors", "0"]) if quick else (3000, [])
    for name, main, words in programs()[: 1 if quick else None]:
        good, versions = resumed(main, [*words, *alone], device, steps)
        yield f"{name}: the devices and updates of three runs: {versions}"
        yield held(f"{name}: a run goes on from the device to the CPU and back", good)


def held(what: str, is_so: bool) -> Figure:
    return Figure(what, int(is_so), "", None, 1)


def make_trainer(device: torch.device) -> tuple[tuple, dict[str, torch.Tensor]]:
    flags = work.flags_of("shallow", str(device))
    net = work.make_net("shallow", flags)
    return work.trainer(net, flags, device), work.make_batch(net, 5, 2)


def works(device: torch.device) -> bool:
    return float(torch.ones(8, device=device).sum()) == 8.0


def is_finite(state: dict[str, torch.Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in state.values())


# ============================================================================== in this process
def out_of_memory(device: torch.device) -> bool:
    (learner, _), batch = make_trainer(device)

    def publish(state_dict, version):
        torch.empty(2**50, dtype=torch.uint8, device=device)

    try:
        learner.update(batch, publish)
        return False
    except RuntimeError:  # torch.OutOfMemoryError is one
        state = learner.state_dict()
        return state["updates"] == 1 and is_finite(state["model"]) and works(device)


def nan_logits(device: torch.device) -> bool:
    flags = work.flags_of("shallow", str(device))
    net = work.make_net("shallow", flags)
    row = work.row_of(work.make_batch(net, 1, 2))
    net = work.on(net, device)
    with torch.no_grad():
        net.policy.weight.fill_(math.nan)
    try:
        models.act_on(net, *to_device(row, device))
        return False
    except UserError as error:
        return "policy_logits" in str(error) and works(device)


def nan_batch(device: torch.device) -> bool:
    (learner, update), batch = make_trainer(device)
    broken = batch | {"policy_logits": torch.full_like(batch["policy_logits"], math.nan)}
    was_skipped = update(broken) is None and learner.skips.count == 1
    return was_skipped and update(batch) is not None and is_finite(learner.state_dict()["model"])


# ================================================================================= whole programs
def unopened(device: str) -> list[tuple[str, str]]:
    """What the program says of a device that does not exist, and of one without free memory."""
    kind = torch.device(device).type
    absent = f"{kind}:99" if kind in ("cuda", "xpu") else "cuda:99"
    said = [(f"{absent}, which does not exist", refusal(absent))]
    if kind == "cuda":
        free, _ = torch.cuda.mem_get_info()
        hog = torch.empty(free - LEFT, dtype=torch.uint8, device=device)
        said.append((f"{device}, whose memory is taken", refusal(device)))
        del hog
        torch.cuda.empty_cache()
    return said


def refusal(device: str) -> str:
    """The last line that MonoBeast prints when it is told to learn there."""
    words = [sys.executable, "-m", "monobeast", *MONO, "--learner_device", device]
    with tempfile.TemporaryDirectory() as savedir:
        words += ["--savedir", savedir, "--total_steps", "10"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    text = done.stderr.strip() if "Traceback" in done.stderr else done.stderr.strip()[-500:]
    return text.splitlines()[-1] if done.returncode == 1 and text else f"it ran: {text}"


def programs() -> list[tuple[str, Callable, list[str]]]:
    """The programs that run whole on this machine: name, `main`, and words."""
    found = [("MonoBeast", monobeast.main, MONO)]
    if has_transport():
        found.append(("PolyBeast", polybeast.main, POLY))
    return found


def resumed(main: Callable, words: list[str], device: str, steps: int) -> tuple[bool, str]:
    """Whether a run goes on from the device to the CPU and back, and what it did."""
    told, good, before = [], True, 0
    with tempfile.TemporaryDirectory() as savedir:
        for number, where in enumerate((device, "cpu", device), 1):
            run = ["--savedir", savedir, "--xpid", "run", "--learner_device", where]
            main([*words, *run, "--total_steps", str(number * steps)])
            state = load(Path(savedir, "run"))
            good &= is_finite(state["model"]) and state["step"] >= number * steps
            good &= state["updates"] > before and state["skipped"] == 0
            before = state["updates"]
            told.append(f"{where} to {before}")
    return good, ", ".join(told)
