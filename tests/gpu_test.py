# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`make gpu` without a GPU: its limits and its report, and its stages on the simulated device."""

import importlib
import json
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from tests.gpu import __main__ as program
from tests.gpu import stages
from tests.gpu.stages import STAGES, Stage
from tests.support import simulated_device as sim
from tests.support.processes import GUARD_S, wait_for

pytestmark = pytest.mark.usefixtures("as_before")

HERE = "tests.support.gpu_stages"


# ====================================================================================== the harness
def test_a_stage_that_hangs_is_killed_with_its_children_and_what_it_said_is_kept(
    tmp_path, monkeypatch
):
    """Its time is over as soon as it has answered."""
    over, heard = [], []

    def timer(seconds, function):
        return SimpleNamespace(start=lambda: over.append(function), cancel=lambda: None)

    def hear(answer):
        heard.append(answer)
        over[0]()

    monkeypatch.setattr(stages.threading, "Timer", timer)
    log = tmp_path / "hung.log"
    result = stages.run(Stage("hung", 60, f"{HERE}.hangs"), {"device": "cpu"}, 60.0, hear, log)
    assert result == {"error": "it was killed after 60 s", "printed": "it hangs now"}
    wait_for(lambda: not psutil.pid_exists(heard[0]["measured"]))


def test_what_fails_or_cannot_run_is_reported_and_the_next_stage_runs(
    tmp_path, monkeypatch, capsys
):
    names = ("fails", "lacks", "is_wrong", "is_well")
    needs = {"lacks": "no_such_package"}
    rows = [Stage(name, 60, f"{HERE}.{name}", needs.get(name, "")) for name in names]
    monkeypatch.setattr(program, "STAGES", rows)
    assert program.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "gpu.json").read_text())
    fails, lacks, is_wrong, is_well = report["stages"]
    assert fails["answers"] == [{"say": "It runs on cpu."}]
    assert fails["error"] == "it ended with exit code 1"
    assert "RuntimeError: the driver does not answer" in fails["printed"]
    assert lacks["error"] == "not run, because packages are missing: no_such_package"
    assert not is_wrong["answers"][0]["held"] and "error" not in is_wrong
    assert is_well["answers"][0]["measured"] == 5.0
    text = (tmp_path / "gpu.md").read_text()
    assert "| error | 0.5 m | at most 0.1 m | NO |" in text
    assert "| speed | 5 m/s |  |  |" in text
    printed = capsys.readouterr().out
    for words in ("Good: is_well. fails: it ended with exit code 1.", "is_wrong: not held: error."):
        assert words in text and words in printed
    log = tmp_path / "is_wrong.log"  # of a failed test, for example, it is all that tells why
    assert "the first of many lines" in log.read_text()
    assert f"All that it printed: {log}" in text and f"All that it printed: {log}" in printed
    assert not (tmp_path / "is_well.log").exists()


def test_a_stage_is_not_begun_without_time(tmp_path):
    assert program.main(["--device", "cpu", "--minutes", "0", "--out", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "gpu.json").read_text())
    errors = {row["error"] for row in report["stages"]}
    assert errors == {"not run, because no time was left"} and len(report["stages"]) == len(STAGES)


def test_without_an_accelerator_it_says_so(tmp_path, monkeypatch):
    """torch is asked for the device in another process."""
    name, exists, found = program.torch_finds("nonsense")
    assert (name, exists) == ("nonsense", False) and found.startswith("torch ")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(SystemExit, match="/bin/false cannot use torch 2.11 or newer"):
            program.torch_finds("nonsense")
    finds = {"": ("", False, "torch 2 finds no accelerator"), "cuda:7": ("cuda:7", False, "no")}
    monkeypatch.setattr(program, "torch_finds", finds.__getitem__)
    (tmp_path / "file").touch()
    for words, said in {
        "": "torch 2 finds no accelerator; --device cpu tries",
        "--device cuda:7": "--device cuda:7: expected cpu, sim or an accelerator",
        "--only xyz": "--only xyz: no stage's name matches",
        "--only [": r"--only \[: unterminated character set",
        f"--device cpu --out {tmp_path}/file": "--out .*/file: .*File exists",
    }.items():
        with pytest.raises(SystemExit, match=said):
            program.main(["--out", str(tmp_path / "out"), *words.split()])
    assert not (tmp_path / "out").exists()


def test_a_stage_that_is_stopped_is_not_among_the_good(tmp_path):
    """SIGTERM ends it and its children, too."""
    code = "import runpy; from tests.gpu import stages; stages.STAGES[:] = [stages.Stage("
    code += f"'hangs', 60, '{HERE}.hangs', '')]; runpy.run_module('tests.gpu', None, '__main__')"
    words = [sys.executable, "-c", code, "--device", "cpu", "--out", str(tmp_path)]
    process = subprocess.Popen(words, cwd=stages.ROOT, stderr=subprocess.PIPE, text=True)
    report = tmp_path / "gpu.md"
    wait_for(lambda: report.exists() and "the child's number" in report.read_text())
    process.terminate()
    assert process.communicate(timeout=GUARD_S)[1].startswith("tests.gpu: stopped")
    (row,) = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    wait_for(lambda: not psutil.pid_exists(row["answers"][0]["measured"]))
    assert row["error"] == "it has not ended"
    assert "Good: nothing. hangs: it has not ended." in report.read_text()


# ======================================================================================= the stages
# It runs pytest, and this is a test.
IN_PROCESS = [stage for stage in STAGES if stage.name != "tests"]


@pytest.mark.parametrize("stage", IN_PROCESS, ids=[stage.name for stage in IN_PROCESS])
def test_each_stage_runs_without_a_gpu(stage):
    """Here on the simulated device, which also checks the order of events. The slow ones start
    programs: they take ten seconds of a core together."""
    device = sim.NAME if sim.is_possible else "cpu"
    module, _, name = stage.function.rpartition(".")
    with stages.prepared(device):
        answers = [*getattr(importlib.import_module(module), name)(device, quick=True)]
    assert answers
    assert [a for a in answers if isinstance(a, stages.Figure) and not a.is_held()] == []
