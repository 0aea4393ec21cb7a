# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What both beasts, or the learner and its servers, call alike is alike."""

import pytest

import monobeast
import polybeast
import polybeast_env
from libtorchbeast.flags import RANGES

# What two flags of one name must share, whoever has them.
PROPERTIES = "option_strings dest nargs const default type choices required metavar help".split()
# Flags that differ, and in what, for a reason.
DIFFERENT = {
    "env": {"help"},  # Mock: an environment for benchmarks of the servers
    "num_actors": {"help"},  # processes or streams
    "step_timeout": {"help"},  # of an actor or a server
}
# TorchBeast's PolyBeast has them; its users' scripts go on.
TORCHBEAST = """
    --pipes_basename --mode --xpid --disable_checkpoint --savedir --num_actors --total_steps
    --batch_size --unroll_length --num_learner_threads --num_inference_threads --disable_cuda
    --max_learner_queue_size --use_lstm --entropy_cost --baseline_cost --discounting
    --reward_clipping --learning_rate --alpha --momentum --epsilon --grad_norm_clipping
    --num_servers --env
""".split()


def flags_of(program):
    return {action.dest: action for action in program.make_parser()._actions}


MONO, POLY, SERVERS = map(flags_of, (monobeast, polybeast, polybeast_env))


def differences(one, other):
    names = {name for name in PROPERTIES if getattr(one, name) != getattr(other, name)}
    return names | ({"action"} if type(one) is not type(other) else set())


@pytest.mark.parametrize("name", sorted(MONO.keys() & POLY.keys()))
def test_a_flag_of_both_beasts_is_the_same_in_both(name):
    assert differences(MONO[name], POLY[name]) == DIFFERENT.get(name, set())


def test_the_beasts_differ_in_these_flags():
    """So that a flag that one of them forgets is noticed."""
    assert MONO.keys() - POLY.keys() == {
        "envs_per_actor", "num_buffers", "max_actor_restarts", "barrier_updates"
    }  # fmt: skip
    assert POLY.keys() - MONO.keys() == {
        "envs_per_server", "num_servers", "pipes_basename", "server_addresses", "insecure",
        "tls_cert", "tls_key", "tls_ca",
        "max_streams", "server_timeout", "num_inference_threads", "max_inference_batch_size",
        "min_inference_batch_size", "inference_timeout_ms", "max_learner_queue_size",
        "learner_device", "inference_device",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(SERVERS.keys() - {"until_stdin_closes"}))
def test_a_flag_of_the_servers_is_the_same_in_the_learner(name):
    assert differences(SERVERS[name], POLY[name]) == set()


@pytest.mark.parametrize("kind", ["atari", "other"])
def test_both_beasts_learn_by_the_same_recipes(kind):
    acting = {"envs_per_actor": monobeast.RECIPES[kind]["envs_per_actor"]}
    assert monobeast.RECIPES[kind] == acting | polybeast.RECIPES[kind]
    assert polybeast_env.RECIPES[kind] == {"envs_per_server": acting["envs_per_actor"]}


@pytest.mark.parametrize("flag", TORCHBEAST)
def test_a_flag_of_torchbeasts_polybeast_is_known(flag):
    assert flag in {string for action in POLY.values() for string in action.option_strings}


def test_torchbeasts_values_are_taken():
    flags = polybeast.make_parser().parse_args(
        "--pipes_basename unix:/tmp/polybeast --mode train --xpid x --disable_checkpoint "
        "--savedir s --num_actors 4 --total_steps 100000 --batch_size 8 --unroll_length 80 "
        "--num_learner_threads 2 --num_inference_threads 2 --disable_cuda "
        "--max_learner_queue_size 8 --use_lstm --entropy_cost 0.0006 --baseline_cost 0.5 "
        "--discounting 0.99 --reward_clipping abs_one --learning_rate 0.00048 --alpha 0.99 "
        "--momentum 0 --epsilon 0.01 --grad_norm_clipping 40.0 --num_servers 4 "
        "--env PongNoFrameskip-v4".split()
    )
    polybeast.check_flags(flags)
    assert (flags.num_actors, flags.num_servers, flags.max_learner_queue_size) == (4, 4, 8)
    assert flags.learner_device == "cpu"


@pytest.mark.parametrize("program", [monobeast, polybeast, polybeast_env])
def test_every_number_has_a_range(program):
    """That is checked, with the flag's name; two are checked against other flags."""
    elsewhere = {"num_buffers", "max_inference_batch_size", "max_learner_queue_size"}
    numbers = {a.dest for a in flags_of(program).values() if a.type in (int, float)}
    assert numbers - elsewhere <= RANGES.keys()
