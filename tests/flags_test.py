# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Flags with the same name are the same in both beasts, and in the learner and its servers."""

import argparse
import json
import os
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

import monobeast
import polybeast
import polybeast_env
from libtorchbeast import flags as flags_module
from libtorchbeast.flags import (
    OF_ONE_START,
    OF_ONE_TEST,
    Flags,
    UserError,
    from_settings,
    given,
    real,
    replace,
    run_path,
    take_over,
    to_json,
    whole,
)

# What users of TorchBeast have in their scripts.
TORCHBEAST = (
    "--env PongNoFrameskip-v4 --mode test_render --xpid x --disable_checkpoint --savedir s "
    "--num_actors 4 --total_steps 100000 --batch_size 8 --unroll_length 80 --num_learner_threads 2 "
    "--use_lstm --entropy_cost 0.0006 --baseline_cost 0.5 --discounting 0.99 "
    "--reward_clipping none --learning_rate 0.00048 --epsilon 0.01 "
    "--grad_norm_clipping 40.0 "
)


def flags_of(program):
    """All parts of each flag."""
    return {
        action.dest: vars(action) | {"container": type(action), "type": range_of(action)}
        for action in program.make_parser()._actions
    }


def range_of(action):
    """What the type says of a word that is no number: the kind of number and its bounds."""
    assert action.type not in (int, float), f"{action.dest} has no range"
    try:
        return action.type and action.type("word") and action.type
    except argparse.ArgumentTypeError as error:
        return str(error)


def test_a_flag_of_several_programs_is_the_same_in_all():
    mono, poly, servers = map(flags_of, (monobeast, polybeast, polybeast_env))
    for of_actors in (mono["num_actors"], poly["num_actors"]):
        del of_actors["help"], of_actors["type"]  # processes, perhaps none, or streams
    for name in mono.keys() & poly.keys():
        assert mono[name] == poly[name]
    for name in servers.keys() - {"until_stdin_closes"}:
        assert servers[name] == poly[name]


def test_both_beasts_learn_by_the_same_recipes():
    for kind in ("atari", "other", "vectors"):
        acting = {"envs_per_actor": monobeast.RECIPES[kind]["envs_per_actor"]}
        assert monobeast.RECIPES[kind] == acting | polybeast.RECIPES[kind]
        assert polybeast_env.RECIPES[kind] == {"envs_per_server": acting["envs_per_actor"]}


def test_an_actor_has_a_core_and_the_learner_half_of_them(monkeypatch):
    monkeypatch.setattr("libtorchbeast.workers.share_of_cores", lambda: 8)
    draft = monobeast.parse(["--learner_device", "cpu"])
    assert (draft.num_actors, draft.torch_threads, draft.num_buffers) == (4, 4, 2 * 4 * 16)


def test_torchbeasts_command_lines_are_taken():
    mono = monobeast.parse((TORCHBEAST + "--num_buffers 64 --num_threads 3").split())
    assert (mono.num_learner_threads, mono.reward_clipping, mono.epsilon) == (3, "none", 0.01)
    assert mono.disable_checkpoint and mono.core == "lstm"
    own = "--num_inference_threads 2 --max_learner_queue_size 8 --num_servers 4"
    poly = polybeast.parse((TORCHBEAST + own).split())
    assert (poly.num_actors, poly.num_servers, poly.max_learner_queue_size) == (4, 4, 8)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--batch_size 0", "--batch_size 0: expected at least 1 and at most 2,147,483,647"),
        ("--batch_size 1.5", "--batch_size 1.5: expected a whole number, at least 1 and at most"),
        ("--total_steps 1e999", "--total_steps 1e999: expected a whole number, at least 1 and at"),
        (f"--seed 1{'0' * 400}", f"--seed 1{'0' * 400}: expected at least 0 and at most 2,147,"),
        ("--discounting 1.1", "--discounting 1.1: expected at least 0 and at most 1"),
        ("--epsilon nan", "--epsilon nan: expected a finite number, at least 1e-12"),
        ("--learning_rate 0", "--learning_rate 0: expected more than 0 and at most 1000"),
        ("--num_threads 65", "--num_learner_threads 65: expected at least 1 and at most 64"),
        ("--entropy_cost a", "--entropy_cost a: expected a number, at least 0"),
        ("--mode play", "--mode: invalid choice: 'play' (choose from"),
        ("--total-steps=1e6", "unrecognized flag --total-steps: did you mean --total_steps?"),
        ("--seed 1 --zzz", "unrecognized flag --zzz: --help lists all flags"),
        ("--batch 4", "unrecognized flag --batch: did you mean --batch_size?"),
        ("--total_steps 1 000", "unexpected '000': flags begin with --"),
        ("--savedir /caf\udce9", "--savedir /caf\udce9: expected UTF-8"),
        ("--xpid caf\udce9", "--xpid caf\udce9: expected UTF-8"),
        ("--best", "--best True: expected --mode test, test_render or export"),
        ("--against x", "--against x: expected --mode test, "),
    ],
)
def test_a_wrong_command_line_is_told_with_the_range_or_the_nearest_flag(words, said):
    for program in (monobeast, polybeast):
        with pytest.raises(UserError) as error:
            program.parse(words.split())
        assert str(error.value).startswith(said)
        assert said.startswith("--") or str(error.value) == said


@pytest.mark.parametrize("number", ["1_000_000", "1E+6", "1_000_000.0"])
def test_a_whole_number_may_be_written_in_several_ways(number):
    flags = monobeast.parse(["--total_steps", number])
    assert flags.total_steps == 10**6 and isinstance(flags.total_steps, int)


def test_checked_flags_cannot_be_changed_but_replaced():
    flags = monobeast.parse(["--env", "CartPole-v1"])
    with pytest.raises(AttributeError, match="--env"):
        flags.env = "Other-v0"
    other = replace(flags, env="Other-v0")
    assert (flags.env, other.env) == ("CartPole-v1", "Other-v0")
    assert replace(other, env="CartPole-v1") == flags
    with pytest.raises(AttributeError, match="typo"):
        replace(flags, typo=1)
    with pytest.raises(AttributeError, match=r"no flag --typo in this program \(docs/fork.md"):
        flags.typo  # noqa: B018
    copy = ForkingPickler.loads(ForkingPickler.dumps(flags))  # as a spawned process gets them
    assert copy == flags and isinstance(copy, Flags)


def test_settings_sent_as_json_are_the_flags_that_a_command_line_gives():
    """This holds for a fork's flags, too, of any type."""

    def make_parser():
        parser = polybeast_env.make_parser()
        parser.add_argument("--difficulty", type=float, default=0.5)
        parser.add_argument("--no_sound", dest="sound", action="store_false")
        parser.add_argument("--levels", type=int, nargs="+")
        parser.add_argument("--maps", type=Path, nargs="+")
        parser.add_argument("--secret", default=argparse.SUPPRESS)
        parser.add_argument("--size", type=int, required=True)
        return parser

    with pytest.raises(UserError, match="^the following arguments are required: --size$"):
        make_parser().parse_args([])
    lines = ["", "--difficulty 0 --maps /a /b", "--no_sound --secret x", "--levels 0 7"]
    for line in lines:
        flags = make_parser().parse_args(["--size", "3", *line.split()])
        sent = json.loads(to_json(vars(flags) | {"net": "of the learner alone"}))
        assert from_settings(make_parser(), sent) == flags


def test_flags_come_as_one_line_on_standard_input(monkeypatch):
    """What comes after the line is left there: a program may wait for the end of its input."""
    reader, writer = os.pipe()
    open_pipe = lambda number, *words, **more: open({0: reader}[number], *words, **more)
    monkeypatch.setattr(flags_module, "open", open_pipe, raising=False)
    line = to_json({"env": "CartPole-v1", "seed": 3, "total_steps": 9})
    os.write(writer, line + b"more")
    flags = polybeast_env.parse(["--flags_from_stdin"])
    assert (flags.env, flags.seed, os.read(reader, 100)) == ("CartPole-v1", 3, b"more")
    for line in (b"garbage\n", b"[]\n"):
        os.write(writer, line)
        with pytest.raises(UserError, match="^--flags_from_stdin: expected flags as JSON, seen"):
            polybeast_env.parse(["--flags_from_stdin"])


# ======================================================================================= a resume
def taken_over(line, make_parser=monobeast.make_parser, **saved):
    """The flags of a command line after a run's `saved` flags were taken over."""
    words = line.split()
    draft = make_parser().parse_args(words)
    take_over(draft, saved, given(make_parser(), words), make_parser())
    return draft


def test_the_command_line_wins_and_what_it_leaves_out_is_the_runs():
    flags = taken_over("--discounting 0.9", discounting=0.8, learning_rate=0.1, net="a.B", gone=1)
    assert (flags.discounting, flags.learning_rate, flags.net) == (0.9, 0.1, "a.B")
    assert not hasattr(flags, "gone") and flags.epsilon == 1e-5  # a flag that it did not have
    assert taken_over("--discounting 0.99", discounting=0.8).discounting == 0.99  # the default


def test_a_resume_with_another_recipe_is_refused():
    """The flags that it would set are the run's."""
    assert taken_over("--recipe other", recipe="other").recipe == "other"
    said = "--recipe vectors: expected other, as in the run that resumes"
    with pytest.raises(UserError, match=said):
        taken_over("--recipe vectors", recipe="other")


def test_what_belongs_to_a_start_or_its_machine_is_not_the_runs():
    saved = dict(num_actors=31, torch_threads=32, wandb=True, compile=True, xpid="old", against="x")
    flags = taken_over("--xpid new", num_learner_threads=2, **saved)
    assert (flags.num_actors, flags.torch_threads, flags.xpid) == (None, None, "new")
    assert not (flags.wandb or flags.compile or flags.against or flags.num_learner_threads)
    parsers = [program.make_parser() for program in (monobeast, polybeast)]
    known = {action.dest for parser in parsers for action in parser._actions}
    assert known >= OF_ONE_START | OF_ONE_TEST  # a renamed flag must be renamed there, too


def test_a_run_in_order_stays_one_but_is_none_in_polybeast():
    assert taken_over("", num_actors=0).num_actors == 0
    assert taken_over("--num_actors 3", num_actors=0).num_actors == 3
    draft = taken_over("--env CartPole-v1", polybeast.make_parser, num_actors=0)
    assert polybeast.check_flags(draft).num_actors == draft.num_servers > 0


def test_a_test_mode_plays_as_its_help_says():
    saved = dict(seed=3, num_episodes=2, greedy=True, max_episode_steps=9)
    of_help = dict(seed=0, num_episodes=10, greedy=False, max_episode_steps=27_000)
    for line, played in (("--mode test", of_help), ("", saved)):
        flags = vars(taken_over(line, **saved, precision="fp32"))
        assert {name: flags[name] for name in saved} == played and flags["precision"] == "fp32"


def test_a_forks_flags_are_taken_over_with_their_types():
    def make_parser():
        parser = monobeast.make_parser()
        parser.add_argument("--maps", type=Path, nargs="+")
        parser.add_argument("--size", type=whole(1), default=5)
        parser.add_argument("--kind", type=lambda text: {"easy": 1}[text])
        parser.add_argument("--levels", type=lambda text: text.split(","), default="a,b")
        parser.add_argument("--sizes", type=Path, action="append")
        parser.set_defaults(discounting=0.5)  # is not given either
        return parser

    flags = taken_over("", make_parser, maps=["/a", "/b"], size=7, discounting=0.8)
    assert (flags.maps, flags.size, flags.discounting) == ([Path("/a"), Path("/b")], 7, 0.8)
    flags = taken_over("", make_parser, levels=["a", "b"], sizes=["/a"])
    assert (flags.levels, flags.sizes) == (["a", "b"], [Path("/a")])  # its type made the list
    with pytest.raises(UserError, match="--kind hard: its type cannot parse"):
        taken_over("", make_parser, kind="hard")


# ================================================================================ help and folders
def test_help_shows_first_sentences_and_defaults_and_takes_percent_signs_as_they_are():
    parser = monobeast.make_parser()
    add = parser.add_argument
    add("--noise", type=real(0, 50), default=5.0, help="Noise, in % of the signal (100 %).")
    add("--old", default=3, help="As argparse wants it: 50%%, by default %(default)s. Default: 3.")
    add("--secret", default=argparse.SUPPRESS, help="Not set (as in Some et al. 2020). Else it is.")
    shown = " ".join(parser.format_help().split())
    assert "--noise N Noise, in % of the signal (100 %). Default: 5.0. --old" in shown
    assert "As argparse wants it: 50%, by default 3. Default: 3." in shown
    assert "--secret VALUE Not set (as in Some et al. 2020). environment: Which" in shown
    rollout = "Number of agent steps in a rollout. Default: 32 with vectors, 20 elsewhere. --passes"
    assert rollout in shown and "Range:" not in shown


def test_the_folder_of_runs_depends_on_home_and_not_on_the_working_directory(tmp_path, monkeypatch):
    flags = monobeast.parse(["--savedir", "runs", "--xpid", "run"])
    there = os.path.abspath("runs/run")
    monkeypatch.chdir(tmp_path)
    assert run_path(flags) == there
    monkeypatch.setenv("HOME", "/home/me")
    assert run_path(Flags(savedir="~/runs", xpid="run")) == "/home/me/runs/run"
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for where, found in (("runs", tmp_path / "other"), (".", "other"), ("~", "other")):
        flags = monobeast.parse(["--savedir", where, "--init_from", "other"])
        assert flags.init_from == str(found)  # a run of that name in --savedir comes first
