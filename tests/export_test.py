# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`--mode export`: what a program without this repository computes with the files."""

import contextlib
import importlib.util
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from torch import nn

import monobeast
import polybeast
from libtorchbeast import checkpoint, models
from libtorchbeast.export import _save
from libtorchbeast.flags import UserError, as_plain
from libtorchbeast.spec import ROW_FIELDS
from tests.support.monobeast import IN_ORDER, beast
from tests.support.processes import ROOT, load
from tests.support.run_files import file_size_limit
from tests.support.small_nets import Recurrent

pytestmark = pytest.mark.usefixtures("as_before")

CATCH, GAMES = "--env tests.support.envs:Catch-v0", "--env tests.support.games:"
CASES = {  # program, flags of the run, flags of the export
    "image": (monobeast, CATCH, "--greedy"),
    "PolyBeast, minGRU": (polybeast, f"{CATCH} --core mingru", ""),
    "dict, multi-discrete": (monobeast, f"{GAMES}Pairs-v0 --use_lstm", ""),
    "mask": (monobeast, f"{GAMES}Allowed-v0", ""),
    "box, LSTM": (monobeast, f"{GAMES}Target-v0 --use_lstm", "--greedy"),
    "own": (monobeast, f"{CATCH} --net tests.export_test.OwnNet --precision fp32", ""),
}
SAMPLED = {name for name, case in CASES.items() if "--greedy" not in case[2]}
STEPS = 12  # an episode has 8 or 9
STRANGER = """
import importlib.util, pathlib, sys, torch
assert not any(map(importlib.util.find_spec, ("monobeast", "libtorchbeast", "tests")))
for folder in map(pathlib.Path, sys.argv[1:]):
    policy = torch.export.load(folder / "policy.pt2").module()
    rows, core_state = torch.load(folder / "rows.pt")
    results = []
    for t, row in enumerate(rows):
        torch.manual_seed(t)
        outputs, core_state = policy(row, core_state)
        results.append((outputs, core_state))
    torch.save(results, folder / "results.pt")
"""


class OwnNet(Recurrent):
    """It reads more of a row than others, and returns more outputs."""

    def forward(self, inputs, core_state=()):
        steps = inputs["episode_step"].float().unsqueeze(-1)
        outputs, core_state = super().forward(inputs | {"frame": steps}, core_state)
        return outputs | {"features": steps / 2}, core_state


class BranchingNet(monobeast.Net):
    def forward(self, inputs, core_state=()):
        return None if inputs["reward"].sum() > 0 else super().forward(inputs, core_state)


class CountingNet(monobeast.Net):
    def forward(self, inputs, core_state=()):
        outputs, core_state = super().forward(inputs, core_state)
        columns = torch.arange(len(inputs["reward"][0]))
        return outputs | {"baseline": outputs["baseline"] + 0 * columns}, core_state


def save_run(folder, program, words):
    """Saves the checkpoint of a new network, whose actions are not all equally probable. Returns
    the network and environments."""
    torch.manual_seed(0)
    flags = program.parse([*words.split(), "--mode", "test", "--num_episodes", "3"])
    net, env = program.player(flags)
    with torch.no_grad():
        [*net.policy.modules()][-1].weight.mul_(100)  # of the last layer, or the only one
    folder.mkdir(exist_ok=True)
    state = {
        "model": dict(net.state_dict()), "step": 0, "flags": as_plain(vars(flags)),
        "env": env.spec.name, "net": models.name_of(net), "spec": env.spec.signature(),
    }  # fmt: skip
    checkpoint.save(str(folder / "model.tar"), state)
    return net, env


def export(folder, program, words=""):
    """Runs the command for the run in `folder` and returns what it prints."""
    where = ["--savedir", str(folder.parent), "--xpid", folder.name]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        program.main([*where, "--mode", "export", *words.split()])
    return printed.getvalue()


def play(net, env, greedy):
    """Returns rows, and the outputs and core states that this repository computes from them."""
    rows, expected, core_state = [], [], models.initial_state(net, env.spec.num_envs)
    row = env.initial(seed=5)
    for t in range(STEPS):
        tensors = {k: torch.from_numpy(v.copy()) for k, v in row.items()}
        rows.append(tensors)
        torch.manual_seed(t)
        outputs, core_state = models.act_on(
            net, {k: x[None] for k, x in tensors.items()}, core_state, greedy
        )
        outputs = {k: x[0] for k, x in outputs.items()}
        expected.append((outputs, core_state))
        row = env.step(outputs["action"].numpy())
    return rows, expected


class Exported(NamedTuple):
    folder: Path
    printed: str
    rows: list  # what the exported policy read
    expected: list  # outputs and core states that this repository computes


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Exports each case, and has a program that knows torch only play all of them."""
    savedir, cases = tmp_path_factory.mktemp("runs"), {}
    rare = ROW_FIELDS.keys() - {"reward", "done"}
    for i, (name, (program, words, more)) in enumerate(CASES.items()):
        folder = savedir / f"run{i}"
        net, env = save_run(folder, program, words)
        with contextlib.closing(env):
            rows, expected = play(net, env, greedy="--greedy" in more)
        if name != "own":
            rows = [{k: x for k, x in row.items() if k not in rare} for row in rows]
        torch.save((rows, models.initial_state(net, 3)), folder / "rows.pt")
        cases[name] = Exported(folder, export(folder, program, more), rows, expected)
    folders = [case.folder for case in cases.values()]
    subprocess.run([sys.executable, "-I", "-c", STRANGER, *folders], cwd="/", check=True)
    return cases


def ran(code, folder):
    """Runs Python code as a program does, and returns its variables."""
    (folder / "program.py").write_text(code)
    return runpy.run_path(str(folder / "program.py"))


@pytest.mark.parametrize("name", CASES)
def test_a_program_with_torch_only_computes_the_same(exported, name):
    case = exported[name]
    assert [bool(row["done"].all()) for row in case.rows].count(True) == 2  # two episodes
    for seen, expected in zip(
        torch.load(case.folder / "results.pt", weights_only=True), case.expected, strict=True
    ):
        torch.testing.assert_close(seen, expected)
    assert len({str(outputs["policy_logits"]) for outputs, _ in case.expected}) > 1


@pytest.mark.parametrize("name", CASES)
def test_the_printed_example_runs(exported, name, tmp_path):
    """It has a batch of another size than the trace. Where an episode begins, nothing that was
    before counts."""
    _, example = exported[name].printed.split("\n\n", 1)
    scope = ran(example, tmp_path)
    outputs, core_state = scope["outputs"], scope["core_state"]
    assert example.rstrip().endswith("# " + ", ".join(outputs)) and next(iter(outputs)) == "action"
    inputs = scope["inputs"] | {
        name: scope["inputs"][name] + 1 for name in ("reward", "last_action")
    }
    seen, next_state = scope["policy"](inputs, tuple(x + 1 for x in core_state))
    torch.testing.assert_close(seen["policy_logits"], outputs["policy_logits"])
    torch.testing.assert_close(next_state, core_state)


@pytest.mark.parametrize("name", CASES)
def test_onnx_computes_the_same(exported, name):
    runtime = onnx_runtime()
    case = exported[name]
    session = runtime.InferenceSession(case.folder / "policy.onnx")
    names = [output.name for output in session.get_outputs()]
    states = [name for name in names if name.startswith("next_")]
    _, core_state = torch.load(case.folder / "rows.pt", weights_only=True)
    core_state = [x.numpy() for x in core_state]
    for row, (outputs, next_state) in zip(case.rows, case.expected, strict=True):
        inputs = {k: x.numpy() for k, x in row.items()}
        inputs |= {f"core_state/{i}": x for i, x in enumerate(core_state)}
        seen = dict(zip(names, session.run(None, inputs), strict=True))
        core_state = [seen.pop(name) for name in states]
        assert seen["action"].shape == outputs["action"].shape
        if name in SAMPLED:  # with other random numbers
            seen.pop("action")
        seen = {k: torch.from_numpy(x) for k, x in seen.items()}
        states_seen = tuple(map(torch.from_numpy, core_state))
        expected = {k: outputs[k] for k in seen}, next_state
        torch.testing.assert_close((seen, states_seen), expected, rtol=1e-4, atol=1e-4)


def onnx_runtime():
    for name in ("onnx", "onnxscript", "onnxruntime"):
        runtime = pytest.importorskip(name, reason="ONNX takes 120 MB; make test-examples has it")
    return runtime


@pytest.mark.parametrize(
    "net, why",
    [
        ("BranchingNet", r"Your network raised .* \(.*export_test.py:\d+\)"),
        ("CountingNet", r"A size became a constant: take sizes as x.shape\[0\], not len\(x\)\. Y"),
    ],
)
def test_a_network_that_torch_cannot_trace_is_refused(net, why, tmp_path):
    save_run(tmp_path / "run", monobeast, f"{CATCH} --net tests.export_test.{net}")
    with pytest.raises(SystemExit) as refused:
        export(tmp_path / "run", monobeast)
    start = r"monobeast: error: torch.export cannot trace this network\. "
    assert re.fullmatch(start + why + ".*", refused.value.code)  # in one line
    assert not (tmp_path / "run/policy.pt2").exists()


def test_a_full_disk_leaves_the_older_policy(tmp_path):
    (tmp_path / "policy.pt2").write_text("older")
    program = torch.export.export(nn.Identity(), (torch.zeros(1),))
    with pytest.raises(UserError, match="was not written: .*File too large"), file_size_limit(100):
        _save(program, tmp_path / "policy.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt2"]
    assert (tmp_path / "policy.pt2").read_text() == "older"
    (tmp_path / "policy.onnx").mkdir()  # and so cannot be removed
    with pytest.raises(UserError, match="policy.pt2 was not written"):
        _save(program, tmp_path / "policy.pt2")
    assert (tmp_path / "policy.pt2").read_text() == "older"


@pytest.mark.parametrize(
    "is_there, why",
    [(False, "pip install onnx onnxscript"), (True, "ValueError: no such operator")],
)
def test_why_there_is_no_onnx_is_told(tmp_path, monkeypatch, is_there, why):
    """An older file does not stay, because its weights are others."""
    folder, refuse = tmp_path / "run", mock.Mock(side_effect=ValueError("no such\noperator"))
    save_run(folder, monobeast, CATCH)
    (folder / "policy.onnx").write_text("older")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: is_there)
    monkeypatch.setattr(torch.onnx, "export", refuse)
    assert f"Policy: {folder}/policy.onnx was not written: {why}\n" in export(folder, monobeast)
    assert not (folder / "policy.onnx").exists() and (folder / "policy.pt2").exists()


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """The Python blocks of docs/export.md, in a folder where they run."""
    scaled = "--observation_scaling moments --reward_scaling returns"
    save_run(tmp_path, monobeast, f"--env CartPole-v1 {scaled}")
    monkeypatch.chdir(tmp_path)
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/export.md").read_text(), re.DOTALL)


def test_the_page_plays_a_game(blocks, tmp_path, capsys):
    export(tmp_path, monobeast)
    ran(blocks[0], tmp_path)
    assert re.fullmatch(r"Return \d+\n", capsys.readouterr().out)


def test_the_page_runs_onnx(blocks, tmp_path):
    onnx_runtime()
    export(tmp_path, monobeast)
    scope = ran(blocks[1], tmp_path)
    assert scope["action"].shape == (1,) and scope["policy_logits"].shape == (1, 2)


def test_the_page_reads_a_checkpoint(blocks, tmp_path, capsys):
    ran(blocks[2], tmp_path)
    said = capsys.readouterr().out
    assert "CartPole-v1 libtorchbeast.models.VectorNet 0\npolicy.0.weight [64, 4]\n" in said
    assert "moments.mean [4]\n" in said
    run = f"--savedir {tmp_path.parent} --xpid {tmp_path.name}"
    text = blocks[3].replace("--xpid cartpole", run)
    first = f"observation, reward = [0.1, 0.2, 0.3, 0.4], 1.0\n{text}"
    assert ran(first, tmp_path)["action"] in (0, 1)


def test_the_page_names_every_key_of_a_checkpoint(tmp_path):
    beast(tmp_path, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 100)
    _, table = (ROOT / "docs/export.md").read_text().split("| key | what it holds |")
    keys = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", "".join(keys))) == load(tmp_path / "run").keys()
