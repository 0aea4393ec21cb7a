# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A bonus like RIDE's: how far an action moves a learned embedding, over the square root of how
often the episode has seen the place. The environment counts the visits, for the loss alone."""

from tests.support.forks import PROGRAMS, RUNS, in_programs

ROOM = "--env tests.forks.envs:CountedRoom-v0 --learning_rate 1e-2"
TRAIN = (
    ROOM, "--core mingru", 240, 1200,
    "monobeast --xpid ppo --mode export",
    "monobeast --xpid impala --mode test --num_episodes 2",
    *in_programs(ROOM, 240),
)  # fmt: skip


def test_the_models_learn_and_the_bonus_is_what_the_values_predict(fork):
    """Without knowledge the action of four is guessed with a loss of log 4, 1.39. The room gives no
    reward."""
    for run in RUNS:
        first, last = fork.rows(run)
        assert last["inverse_loss"] < first["inverse_loss"] < 1.4, (first, last)
        assert last["dynamics_loss"] > 0  # it grows with the embedding
        assert last["bonus"] > 0 and last["mean_value"] > max(0.1, first["mean_value"]), last
    for program in PROGRAMS:
        last = fork.rows(program)[-1]
        assert last["inverse_loss"] > 0 and last["bonus"] > 0


def test_only_the_learner_has_its_parts_and_only_the_loss_sees_the_visits(fork):
    checkpoint = fork.checkpoint("monobeast")
    assert {name.split(".")[1] for name in checkpoint["loss"]} == {"embed", "dynamics", "inverse"}
    assert not [name for name in checkpoint["model"] if "ride" in name]
    export, tested, *_ = fork.said
    assert "'image': torch.zeros" in export and "visits" not in export
    assert "Mean return 0" in tested
