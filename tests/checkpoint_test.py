# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A checkpoint either loads exactly or is refused; something to resume from is never lost."""

import logging
import os
import random
import shutil
from pathlib import Path
from signal import SIGINT  # an enum's member

import numpy as np
import pytest
import torch

import monobeast
from libtorchbeast import checkpoint
from libtorchbeast.checkpoint import CheckpointError, RunCheckpoints
from libtorchbeast.flags import Flags, UserError, as_plain
from tests.support.compare import assert_same
from tests.support.run_files import file_size_limit


def make_state(step):
    """Model, optimizer with its moments, counters, random states: what a beast saves."""
    torch.manual_seed(step)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.RMSprop(model.parameters(), momentum=0.9)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return dict(
        step=step,
        model=model.state_dict(),
        bf16=torch.randn(5).bfloat16(),
        optimizer=optimizer.state_dict(),
        flags=dict(env="Pong", lr=6e-4, lstm=False, name=None, sizes=(1, [2, 3])),
        random=checkpoint.random_states(),
    )


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "model.tar")


def test_a_state_is_loaded_as_it_was_saved_also_by_plain_torch(path):
    assert checkpoint.load_newest(path) is None
    Path(path + ".tmp").write_bytes(b"left by a kill")
    assert checkpoint.load_newest(path) is None
    state = make_state(7)
    checkpoint.save(path, state)
    assert_same(checkpoint.load(path), state)
    assert_same(checkpoint.load_newest(path), state)
    assert_same(torch.load(path), state)
    assert_same(torch.load(path, weights_only=True, mmap=True), state)
    assert os.listdir(os.path.dirname(path)) == ["model.tar"]


@pytest.mark.parametrize("value", [np.float64(1), np.zeros(2), SIGINT, {1, 2}, len, b"bytes"])
def test_save_refuses_what_could_not_be_loaded(path, value):
    with pytest.raises(ValueError, match=r"state\['flags'\]\[1\] is a .*a checkpoint holds"):
        checkpoint.save(path, dict(step=1, flags=["fine", value]))
    assert os.listdir(os.path.dirname(path)) == []


def damage(path):
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 16
    Path(path).write_bytes(data)


def test_damaged_or_missing_newest_is_noticed_and_the_previous_used(path, caplog):
    checkpoint.save(path, make_state(1))
    checkpoint.save(path, make_state(2))
    damage(path)
    assert_same(checkpoint.load_newest(path), make_state(1))
    [(_, level, said)] = caplog.record_tuples
    assert level == logging.ERROR and f"{path}: damaged" in said
    assert f"The run uses {path}.previous, at step 1" in said
    checkpoint.save(path, make_state(3))  # the damaged file does not push out the good one
    assert checkpoint.load(path)["step"] == 3
    assert checkpoint.load(path + ".previous")["step"] == 1
    os.remove(path)  # as if killed between the two renames
    assert checkpoint.load_newest(path)["step"] == 1
    assert "No such file" in caplog.text
    torch.save(make_state(4), path)
    damage(path + ".previous")
    with pytest.raises(CheckpointError, match="model.tar: .*not a checkpoint.*previous: damaged"):
        checkpoint.load_newest(path)  # no silent start from scratch
    os.remove(path + ".previous")
    with pytest.raises(CheckpointError, match="not a checkpoint.*No such file"):
        checkpoint.load_newest(path)


def test_a_flipped_bit_and_a_cut_anywhere_are_noticed(path):
    checkpoint.save(path, {"step": 7, "weight": torch.randn(4, 3)})
    data = Path(path).read_bytes()
    flipped = [data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :] for i in range(len(data))]
    cut = [data[:size] for size in range(0, len(data), 7)]
    for damaged in (*flipped, *cut, data + b"x"):
        Path(path).write_bytes(damaged)
        with pytest.raises(CheckpointError):
            checkpoint.load(path)


def test_an_intact_file_that_torch_refuses_is_an_error(path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_check_types", lambda *args: None)
    checkpoint.save(path, {"step": Path("a pickled object")})
    with pytest.raises(CheckpointError, match="model.tar: intact, but torch.load refuses it: "):
        checkpoint.load(path)


def test_a_module_in_the_runs_folder_is_imported_for_the_command_line_only(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "runs/own").mkdir(parents=True)
    words = ["--savedir", str(tmp_path / "runs"), "--xpid", "own"]
    for flag, name in (
        ("env", "runs.own.mine:My-v0"), ("env", "runs.own.mine:/x.My-v0"),
        ("eval_env", "Pong-v5, runs.own:My"), ("net", "runs.own.mine.Net"),
    ):  # fmt: skip
        flags = vars(monobeast.parse([])) | {flag: name}
        state = dict(flags=as_plain(flags), env=flags["env"], optimizer={})
        checkpoint.save(str(tmp_path / "runs/own/model.tar"), state)
        with pytest.raises(UserError, match=f"--{flag} .*runs.own.* names a module in the run's"):
            checkpoint.parse_for_run(monobeast.make_parser, words)
        draft = checkpoint.parse_for_run(monobeast.make_parser, [*words, f"--{flag}", name])
        assert getattr(draft, flag) == name


def test_random_states_round_trip(path):
    def draw():
        return random.random(), random.gauss(0, 1), np.random.randn(), torch.rand(3)

    random.seed(3)
    np.random.seed(3)
    draw()  # Leaves the second half of a Gaussian pair in both generators.
    checkpoint.save(path, checkpoint.random_states())
    expected = draw()
    draw()
    checkpoint.set_random_states(checkpoint.load(path))
    assert_same(draw(), expected)


# ----------------------------------------------------------------------------- those of one run
IDENTITY = {"env": "Pong", "net": {"conv.weight": [16, 4, 8, 8], "core.bias": [256], "old": [1]}}


def checkpoints(path, enabled=True, **changes):
    return RunCheckpoints(path, IDENTITY | changes, enabled)


def resumed(path):
    run = checkpoints(path)
    run.load()
    return run


def updated(updates):
    return {"updates": updates, "step": 10 * updates}


def evaluated(updates):
    return updated(updates) | {"model": {"w": torch.full((3,), float(updates))}}


def best(path):
    state = checkpoint.load(path.replace("model.tar", "model.best.tar"))
    return state["updates"], state["mean_eval_return"], state["env"]


def test_a_checkpoint_of_another_identity_is_refused_with_what_differs(path):
    checkpoints(path).save(updated(7))
    said = "model.tar has another {}: it has {}, the run now has {}. Choose"
    other = checkpoints(path, env="Pong-v5")
    with pytest.raises(UserError, match=said.format("env", "Pong", "Pong-v5")):
        other.load()
    assert other.saved_updates == 0
    net = {"conv.weight": [16, 4, 8, 8], "core.bias": [512], "new": [1]}
    seen = "{'core.bias': [256], 'new': 'missing', 'old': [1]}"
    now = "{'core.bias': [512], 'new': [1], 'old': 'missing'}"
    with pytest.raises(UserError) as error:
        checkpoints(path, net=net).load()
    assert said.format("net", seen, now) in str(error.value)
    seen = (
        r"another net \(6 entries differ\): it has {'a': 'missing', 'b': 'missing', 'c': 'missing'}"
    )
    with pytest.raises(UserError, match=seen):
        checkpoints(path, net={name: [1] for name in "cab"}).load()


def test_a_full_disk_is_counted_and_costs_no_older_checkpoint(path, caplog):
    caplog.set_level("INFO")
    run = checkpoints(path)
    assert run.load() is None and run.saved_updates == 0
    for updates in (6, 7):
        assert run.save(updated(updates)) and run.saved_updates == updates
    assert f"Checkpoint saved at step 70: {path}" in caplog.text
    run.save_if_best(1.0, evaluated(7))
    size = os.path.getsize(path)
    for errors, limit in ((2, 0), (4, size // 2), (6, size - 1)):
        with file_size_limit(limit):
            assert not run.save(updated(8))
            run.save_if_best(5.0, evaluated(8))
        assert (run.errors, run.saved_updates) == (errors, 7) and best(path)[0] == 7
        files = ["model.best.tar", "model.tar", "model.tar.previous"]
        assert sorted(os.listdir(os.path.dirname(path))) == files
        again = checkpoints(path)
        assert again.load() == updated(7) | IDENTITY and again.saved_updates == 7
        assert checkpoint.load(path + ".previous")["updates"] == 6
    assert caplog.text.count("Checkpoint not saved, and no file replaced") == 6
    assert run.save(updated(9)) and (run.errors, run.saved_updates) == (6, 9)
    run.save_if_best(4.0, evaluated(9))
    assert best(path) == (9, 4.0, "Pong")


def test_weights_of_other_shapes_are_refused_with_the_first(path):
    model = {"a": torch.ones(2), "b": torch.ones(3, 1)}
    checkpoint.save(path, dict(step=1, env="A-v0", net="own.Net", model=model))
    flags = Flags(savedir=os.path.dirname(path), init_from="model.tar", env="B-v0")
    same = {"b": torch.zeros(3, 1), "a": torch.zeros(2)}
    assert_same(checkpoint.initial_weights(flags, same)["a"], torch.ones(2))
    for own, said in [
        (same | {"b": torch.zeros(3, 2)}, r"b is \[3, 1\] there and \[3, 2\] here"),
        ({"a": torch.zeros(2)}, r"b is \[3, 1\] there and missing here"),
        (same | {"c": torch.zeros(())}, r"c is missing there and \[\] here"),
    ]:
        told = f"--init_from model.tar: .*, own.Net trained on A-v0, .* for B-v0: {said}$"
        with pytest.raises(UserError, match=told):
            checkpoint.initial_weights(flags, own)
    nobody = Flags(savedir=flags.savedir, init_from="nobody")
    with pytest.raises(UserError, match="there is no checkpoint nobody, and no run nobody in"):
        checkpoint.initial_weights(nobody, same)


def test_the_best_weights_are_kept_over_a_resume(path, caplog):
    """But not those that are damaged, or of an earlier run whose checkpoints were deleted."""
    checkpoints(path).save_if_best(9.0, evaluated(9))
    first = resumed(path)
    for updates, score in ((1, 3.0), (2, float("nan")), (3, 2.0), (4, 3.0)):
        first.save_if_best(score, evaluated(updates))
    assert best(path) == (1, 3.0, "Pong")
    first.save_if_best(5.0, evaluated(5))
    first.save(updated(6))
    assert sorted(os.listdir(os.path.dirname(path))) == ["model.best.tar", "model.tar"]
    second = resumed(path)
    second.save_if_best(4.0, evaluated(7))
    assert best(path) == (5, 5.0, "Pong")
    second.save_if_best(6.0, evaluated(8))
    assert best(path) == (8, 6.0, "Pong")
    damage(path.replace("model.tar", "model.best.tar"))
    third = resumed(path)
    assert "model.best.tar: damaged" in caplog.text
    third.save_if_best(4.0, evaluated(9))
    assert best(path) == (9, 4.0, "Pong")
    shutil.copy(path, path.replace("model.tar", "model.best.tar"))  # to play it with --best
    resumed(path).save_if_best(2.0, evaluated(10))
    assert best(path) == (10, 2.0, "Pong")


@pytest.mark.parametrize("flags", [{"eval_env": "Other-v0"}, {"past_share": 0.5}])
def test_the_best_weights_are_those_against_the_opponents_of_now(path, flags, caplog):
    """A rating is no mean return, and that of other environments is another one."""
    first = checkpoints(path)
    first.save_if_best(5.0, evaluated(1))
    first.save(updated(1))
    against = lambda updates: evaluated(updates) | {"flags": flags}
    second = resumed(path)
    second.save_if_best(float("nan"), against(2))
    second.save_if_best(4.0, evaluated(2))
    assert best(path) == (1, 5.0, "Pong")
    caplog.set_level(logging.INFO)
    second.save_if_best(0.5, against(3))
    assert f"Best so far, 0.5 ({flags.get('eval_env', 'rating')}) at step" in caplog.text
    second.save_if_best(0.4, against(4))
    assert best(path) == (3, 0.5, "Pong")
    resumed(path).save_if_best(0.4, against(5))
    assert best(path) == (3, 0.5, "Pong")


def test_a_run_without_checkpoints_keeps_nothing(path):
    run = checkpoints(path, enabled=False)
    assert not run.save(updated(7))
    run.save_if_best(5.0, evaluated(1))
    assert os.listdir(os.path.dirname(path)) == []
