# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A run from its start or resume to its last checkpoint: what it takes up, and what it refuses."""

import contextlib
import json
import math
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import monobeast
from libtorchbeast import checkpoint, run
from libtorchbeast.learner import Learner
from libtorchbeast.loggers import trackers
from libtorchbeast.loggers.columns import FIELDS
from libtorchbeast.loggers.csv_table import read_csv
from libtorchbeast.loggers.files import hold
from tests.support.compare import assert_same
from tests.support.monobeast import IN_ORDER, beast, parse, refusal
from tests.support.processes import load, rows

pytestmark = pytest.mark.usefixtures("as_before")


def test_signals_are_held_until_the_files_are_closed(tmp_path, monkeypatch):
    """A second Ctrl-C while TensorBoard writes its last events would lose them."""
    handlers, close = [], trackers.TensorBoard.close

    def watched_close(self):
        handlers.append(signal.getsignal(signal.SIGINT))
        close(self)

    monkeypatch.setattr(trackers.TensorBoard, "close", watched_close)
    before = signal.getsignal(signal.SIGINT)
    beast(tmp_path, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 200)
    assert len(handlers) == 1 and handlers[0] is not before
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "flags, what_next",
    [
        ([], "{0}/a run resumes with --xpid 'a run' --savedir {0}"),
        (["--disable_checkpoint"], "This step is not saved. {0}/a run"),
    ],
)
def test_a_run_that_a_signal_stops_says_so(tmp_path, capsys, monkeypatch, flags, what_next):
    """It ends after its next update, however far the next barrier is."""

    def tick(own, *late):
        own.state.save()
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(run.Run, "tick", tick)
    if flags:  # then no state is copied, which may take long
        monkeypatch.delattr(Learner, "state_dict")
    forever = ["--barrier_updates", 10**6, "--total_steps", 10**9, "--xpid", "a run"]
    beast(tmp_path, *IN_ORDER, *forever, *flags)
    step = rows(tmp_path / "a run")[-1]["step"]
    assert 0 < step <= 2 * 80
    said, what_next = capsys.readouterr().err, what_next.format(tmp_path)
    assert said.count(f"Step {step:,.0f}: stopped by SIGTERM. {what_next}\n") == 1
    assert said.count("stopped by") == 1 and "complete" not in said


def test_a_run_that_has_not_learned_says_so(tmp_path, capsys, monkeypatch):
    """It has no checkpoint, so there is nothing that --xpid could resume."""
    monkeypatch.setattr(run.Run, "finished", lambda run: True)
    beast(tmp_path, *IN_ORDER, "--total_steps", 10**9)
    said = "Step 0: stopped. Nothing was learned yet, and nothing is saved."
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run/model.tar").exists()


def test_what_else_a_checkpoint_has_is_saved_though_there_is_no_new_update(tmp_path):
    flags = parse(*IN_ORDER, "--total_steps", 80, "--savedir", tmp_path, "--xpid", "run")
    state = monobeast.train(flags).state
    part = SimpleNamespace(changes=lambda: part.blocks, state_dict=lambda: {"blocks": part.blocks})
    part.blocks = 3
    state.also_save("replay", part)
    assert not state.is_unsaved()
    part.blocks = 4
    assert state.is_unsaved()
    state.save()
    assert not state.is_unsaved() and load(tmp_path / "run")["replay"] == {"blocks": 4}


def test_a_resumed_run_keeps_no_second_copy_of_its_weights(tmp_path):
    for steps in (80, 160):
        flags = parse(*IN_ORDER, "--total_steps", steps, "--savedir", tmp_path, "--xpid", "run")
        state = monobeast.train(flags).state
    assert {"stats", "hours"} <= state._resumed.keys()
    assert not {"model", "optimizer"} & state._resumed.keys()
    assert load(tmp_path / "run")["step"] >= 160


def test_weights_and_biases_is_missed_before_the_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    assert refusal(tmp_path, *IN_ORDER, "--wandb") == "monobeast: error: --wandb: pip install wandb"
    assert list(tmp_path.iterdir()) == []


def test_a_last_checkpoint_that_fails_is_not_a_success(tmp_path, capsys, monkeypatch):
    tick = run.Run.tick

    def tick_with_both(self, late=False):
        self.state.due = self._row_due = 0.0  # a row and a checkpoint are always due
        tick(self, True)

    monkeypatch.setattr(run.Run, "tick", tick_with_both)
    (tmp_path / "run" / "model.tar.tmp").mkdir(parents=True)  # no file can be written there
    with pytest.raises(SystemExit, match="could not be saved; there is no other: "):
        beast(tmp_path, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 200)
    assert "not saved" in capsys.readouterr().err
    table = rows(tmp_path / "run")
    assert all(row["step"] < 200 for row in table)  # none says it is complete
    assert table[0]["checkpoint_errors"] == 0 < table[-1]["checkpoint_errors"]


def test_a_run_whose_folder_is_another_runs_now_saves_nothing_more(tmp_path, monkeypatch):
    tick = run.Run.tick

    def tick_with_a_thief(self, late=False):
        if self.learner.step >= 100 and not (tmp_path / "old").exists():
            os.rename(tmp_path / "run", tmp_path / "old")
            (tmp_path / "run").mkdir()
            (tmp_path / "run/lock").touch()
        tick(self, late)

    monkeypatch.setattr(run.Run, "tick", tick_with_a_thief)
    with pytest.raises(SystemExit, match="was renamed or deleted, and is another run's now"):
        beast(tmp_path, *IN_ORDER, "--total_steps", 1000, "--keep_checkpoints_every", 20)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]


def test_a_row_before_the_last_checkpoint_is_not_that_of_a_complete_run():
    """The learner completes the run while the main thread keeps weights."""
    learner, written = SimpleNamespace(step=10), []
    keep = SimpleNamespace(keep=lambda: vars(learner).update(step=20))
    state = SimpleNamespace(require_folder=lambda: None, kept=keep, due=math.inf)
    flags = SimpleNamespace(total_steps=20, log_every=1.0)
    log = SimpleNamespace(write=written.append)
    one = SimpleNamespace(learner=learner, state=state, flags=flags, log=log, _row_due=0.0)
    one._disk = contextlib.nullcontext
    run.Run.tick(one)
    run.Run.tick(one)
    assert written == [10]


def test_a_resumed_run_is_not_evaluated_before_the_next_is_due(tmp_path, monkeypatch):
    start = Mock()
    monkeypatch.setattr(run.Evaluator, "_start", start)
    flags = [*IN_ORDER, "--eval_every", 2000, "--log_every", 0.1, "--total_steps"]
    beast(tmp_path, *flags, 2500)
    assert start.called
    start.reset_mock()
    beast(tmp_path, *flags, 3500)
    assert not start.called


def test_a_run_whose_checkpoint_is_damaged_resumes_from_the_one_before_it(savedir, capsys):
    before = torch.load(savedir / "run/model.tar.previous", weights_only=True)["step"]
    newest = savedir / "run/model.tar"
    newest.write_bytes(newest.read_bytes()[:-1])
    beast(savedir, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 1100)
    assert f"Resuming from step {before}" in capsys.readouterr().err
    assert load(savedir / "run")["step"] >= 1100
    table = rows(savedir / "run")
    assert [row["_tick"] for row in table] == list(range(len(table)))


class OtherNet(monobeast.Net):
    pass


@pytest.mark.parametrize(
    "flags, what",
    [
        (["--env", "tests.support.envs:EndlessCatch-v0"], "another env: "),
        (["--env", "no.such_module:Env-v0"], "another env: "),  # it is not even opened
        (["--net", f"{__name__}.OtherNet"], "another net: "),
        (["--use_lstm"], ""),
    ],
)
def test_another_environment_or_network_is_refused_on_resume(savedir, flags, what):
    before = (savedir / "run/model.tar").read_bytes()
    message = refusal(savedir, *IN_ORDER, *flags, "--total_steps", 1100)
    assert f"model.tar has {what}" in message and "--xpid" in message
    assert (savedir / "run/model.tar").read_bytes() == before


def test_a_run_that_another_process_may_still_save_is_refused_before_its_flags_are_read(savedir):
    """Else it would take over the weights of a later checkpoint, but flags of an earlier one."""
    with hold(savedir / "run"):
        assert "is in use by process" in refusal(savedir, "--env", "no.such_module:Env-v0")


def test_a_resume_logs_the_flags_that_it_changes_and_the_others_are_the_runs_own(
    savedir, monkeypatch, capsys
):
    """Whatever the recipes and defaults of a later version are."""
    before = load(savedir / "run")
    before["flags"]["num_servers"] = 2  # a flag of PolyBeast, which MonoBeast does not change
    checkpoint.save(str(savedir / "run/model.tar"), before)
    recipe = monobeast.RECIPES["other"] | dict(learning_rate=0.5, batch_size=7, envs_per_actor=3)
    monkeypatch.setitem(monobeast.RECIPES, "other", recipe)
    later = lambda parser: parser.set_defaults(discounting=0.5)
    monkeypatch.setattr(monobeast, "add_own_flags", later)
    changes = dict(entropy_cost=0.03, learning_rate=0.002, total_steps=1100)
    words = [word for name, value in changes.items() for word in (f"--{name}", value)]
    beast(savedir, "--no_learning_rate_decay", *words)  # it is not even told the environment
    changes |= dict(learning_rate_decay=False, savedir=str(savedir))
    now = load(savedir / "run")["flags"]
    assert {k: now.get(k) for k, v in before["flags"].items() if now.get(k, v) != v} == changes
    said = capsys.readouterr().err
    assert sorted(re.findall(r"--(\w+) changes", said)) == sorted(changes)
    assert "--entropy_cost changes from 0.02 to 0.03" in (savedir / "run/out.log").read_text()
    meta = json.loads((savedir / "run/meta.json").read_text())
    assert meta["resumed"][-1]["changed_flags"]["entropy_cost"] == {"old": 0.02, "new": 0.03}
    assert rows(savedir / "run")[-1]["learning_rate"] == pytest.approx(0.002)


def test_other_environments_to_evaluate_in_are_taken_on_resume(savedir):
    """Each has its column behind the usual ones; those of the last start come first."""
    names = [f"tests.support.envs:{name}-v0" for name in ("OneStepCatch", "ShortOrLong")]
    before = rows(savedir / "run")
    for total_steps, name in zip((1100, 1200), names, strict=True):
        beast(savedir, *IN_ORDER, "--eval_env", name, "--total_steps", total_steps)
    header, _ = read_csv(savedir / "run/logs.csv")
    assert header[2:] == [*FIELDS, *(f"mean_eval_return/{name}" for name in reversed(names))]
    assert rows(savedir / "run")[: len(before)] == before
    said = f"--eval_env changes from '{names[0]}' to '{names[1]}'"
    assert said in (savedir / "run/out.log").read_text()


STILL = [*IN_ORDER, "--learning_rate", 1e-300]  # too small to change any weight


@pytest.mark.parametrize("file", ["model.tar", "model.tar.previous"])
def test_a_new_run_begins_with_the_weights_of_another(savedir, file, capsys):
    """In another environment, at step 0, with a new optimizer. A resume ignores the flag."""
    source = (savedir / "run").rename(savedir / "finished") / file
    named = "finished" if file == "model.tar" else f"finished/{file}"
    flags = ["--env", "tests.support.envs:EndlessCatch-v0", "--init_from", named]
    beast(savedir, *STILL, *flags, "--total_steps", 100)
    old, new = (torch.load(p, weights_only=True) for p in (source, savedir / "run/model.tar"))
    assert_same(new["model"], old["model"])
    assert new["step"] == 160 and new["updates"] == 2
    assert new["optimizer"]["state"][0]["step"] == 2
    said = f"--init_from: the weights of {source}, trained for {old['step']} steps"
    assert said in capsys.readouterr().err
    beast(savedir, *STILL, *flags[:2], "--init_from", "no-such-run", "--total_steps", 200)
    assert_same(load(savedir / "run")["model"], old["model"])  # it has resumed
    assert "Beginning" not in capsys.readouterr().err


def test_a_run_without_a_checkpoint_does_not_begin_again_as_another_game(savedir):
    """It was stopped before its first update, and --xpid alone began a run of Pong in its place."""
    begun = savedir / "begun"
    begun.mkdir()
    meta = json.dumps({"flags": {"env": "CartPole-v1"}})
    (begun / "meta.json").write_text(meta)
    words = ["--savedir", str(savedir), "--xpid", "begun", "--num_actors", "0"]
    with pytest.raises(SystemExit, match="run begun of CartPole-v1 has no checkpoint.*give --env"):
        monobeast.main(words)
    assert [path.name for path in begun.iterdir()] == ["meta.json"]
    assert (begun / "meta.json").read_text() == meta


def test_a_complete_run_started_again_stays_and_gets_the_last_row_that_a_kill_took(savedir, capsys):
    (savedir / "run/meta.json").write_text("")  # after a power failure
    logs = savedir / "run/logs.csv"
    logs.write_text("".join(logs.read_text().splitlines(keepends=True)[:-1]))
    before = load(savedir / "run")["step"]
    for _ in range(2):
        beast(savedir, *IN_ORDER, "--barrier_updates", 1, "--total_steps", 1000)
        said = capsys.readouterr().err
        assert f"{savedir}/run already has its {before:,} steps (last game return " in said
        steps = [row["step"] for row in rows(savedir / "run")]
        assert steps.count(before) == 1 and load(savedir / "run")["step"] == before


def test_a_flag_of_a_forks_own_may_be_anything(tmp_path, monkeypatch):
    """A Path, say: it is saved as a string, and a resume knows it."""
    add = lambda parser: parser.add_argument("--maps", type=Path)
    monkeypatch.setattr(monobeast, "add_own_flags", add)
    for total_steps in (80, 160):
        beast(tmp_path, *IN_ORDER, "--maps", tmp_path / "maps", "--total_steps", total_steps)
    assert load(tmp_path / "run")["flags"]["maps"] == str(tmp_path / "maps")
    assert "--maps changes" not in (tmp_path / "run/out.log").read_text()
