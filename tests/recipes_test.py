# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The defaults for each kind of environment: chosen by its spaces, and never against a flag."""

from unittest import mock

import pytest

import monobeast
import polybeast
import polybeast_env
import r2d2
from libtorchbeast import models, recipes
from libtorchbeast.flags import Flags, UserError, as_plain, from_settings
from libtorchbeast.spec import Actions, Spec

PROGRAMS = [monobeast, polybeast]
BOX = Actions("box", (2,))
RACING = Spec("racing", 1, {"frame": ((3, 96, 96), "uint8")}, BOX)


def spec_of(*shapes):
    observations = {f"part{i}": (shape, "float32") for i, shape in enumerate(shapes)}
    return Spec("some", 1, observations, BOX)


def of_agents(count, shape, dtype, tells_returns=False):
    parts = {"red/reward": ((count,), "float32"), "red/seen/frame": ((count, *shape), dtype)}
    if tells_returns:
        parts["red/episode_return"] = ((count,), "float32")
    return Spec("team", 1, parts, Actions("multi_discrete", (3,) * count))


def settled(program, line="", spec=None):
    flags = program.parse(["--env", "Some-v0", *line.split()])
    return recipes.complete(flags, program.check_flags, spec or spec_of((3,)), program.RECIPES)


def follows(flags, recipe):
    """Whether the flags have all values of the recipe."""
    return recipe.items() <= vars(flags).items()


@pytest.mark.parametrize("program", [*PROGRAMS, polybeast_env])
def test_a_recipe_may_be_named(program):
    for kind, recipe in program.RECIPES.items():
        for spec in (spec_of((3,)), spec_of((3, 9, 9))):
            assert follows(settled(program, f"--recipe {kind}", spec), recipe)
        assert follows(program.parse(["--env", "PongNoFrameskip-v4", "--recipe", kind]), recipe)


@pytest.mark.parametrize("program", [*PROGRAMS, polybeast_env])
@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("vectors", spec_of((3,), (), (2, 9))),
        ("atari", RACING),
        ("atari", of_agents(2, (3, 84, 84), "uint8")),
        ("vectors", of_agents(40, (40,), "float32", tells_returns=True)),
        ("other", of_agents(40, (40,), "float32")),
        ("other", spec_of((3, 9, 9))),
        ("other", spec_of((3,), (40, 40))),
        ("other", Spec("lake", 1, {"frame": ((), "int64")}, Actions("discrete", (2,)))),
    ],
)
def test_the_spaces_choose_the_recipe(program, kind, spec):
    assert follows(settled(program, "", spec), program.RECIPES[kind])


@pytest.mark.parametrize("program", PROGRAMS)
def test_atari_has_its_own_and_so_has_a_recurrent_network(program):
    pong = program.parse([])
    flags = recipes.complete(pong, program.check_flags, spec_of((4, 84, 84)), program.RECIPES)
    assert follows(flags, program.RECIPES["atari"])
    for spec in (None, RACING):
        assert follows(settled(program, "--use_lstm", spec), program.RECIPES["other"])


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_flag_that_is_given_stays_and_nothing_is_left_of_the_choice(program, caplog):
    caplog.set_level("INFO")
    flags = settled(program, "--batch_size 7 --xpid mine --entropy_cost 0.5")
    assert follows(flags, program.RECIPES["vectors"] | {"batch_size": 7, "entropy_cost": 0.5})
    assert type(flags) is Flags and flags.xpid == "mine" and not hasattr(flags, "left_out")
    (line,) = [r.getMessage() for r in caplog.records if "Recipe" in r.getMessage()]
    assert line.startswith("Recipe for vectors: --")
    assert "--unroll_length 32" in line and "--batch_size" not in line
    again = recipes.complete(flags, program.check_flags, spec_of((3, 9, 9)), program.RECIPES)
    assert again == flags and len(caplog.records) == 1  # what has been settled, stays


def test_what_depends_on_the_recipe_follows_it_or_is_checked_when_that_is_known():
    flags = settled(monobeast, "--num_actors 2")
    assert flags.num_buffers == 2 * 2 * flags.envs_per_actor == 64
    flags = settled(polybeast, "")
    assert flags.max_learner_queue_size == flags.batch_size == 64
    for program, line, fits, refused in [
        (monobeast, "--num_actors 1 --num_buffers 32", (3,), (3, 9, 9)),
        (polybeast, "--max_learner_queue_size 32", (3, 9, 9), (3,)),
    ]:
        assert settled(program, line, spec_of(fits))
        with pytest.raises(UserError, match="expected at least"):
            settled(program, line, spec_of(refused))


@pytest.mark.parametrize(
    ("program", "line", "count"),
    [(polybeast, "", 16), (polybeast, "--use_lstm", 64), (polybeast, "--core mingru", 64),
     (polybeast, "--use_lstm --envs_per_server 5", 5), (r2d2, "", 64)],
)  # fmt: skip
def test_local_servers_open_as_many_environments_as_the_learner_says(program, line, count):
    """The servers know what they observe, and not whether the network is recurrent."""
    flags = program.parse(["--env", "Some-v0", "--num_servers", "1", *line.split()])
    with mock.patch.object(polybeast, "LocalServers") as servers, polybeast.connect(flags, None):
        sent = as_plain(vars(servers.call_args.args[0]))
    check, kinds = polybeast_env.check_flags, polybeast_env.RECIPES
    of_server = check(from_settings(polybeast_env.make_parser(), sent))
    of_server = recipes.complete(of_server, check, spec_of((3,)), kinds)
    if program is polybeast:
        flags = settled(program, line)
    assert (flags.envs_per_server, of_server.envs_per_server) == (count, count)


def test_the_first_lines_of_a_run_say_what_was_chosen_and_why(caplog):
    caplog.set_level("INFO")
    bytes_last = Spec("racing", 1, {"frame": ((96, 96, 3), "uint8")}, BOX)
    settled(monobeast, "", bytes_last)
    said = "Observation frame is [H, W, C]; models.Parts gives it to the network as [C, H, W]"
    assert caplog.messages[0] == said and caplog.messages[1].startswith("Recipe for atari: --")
    by_default = ", by Net.for_vectors (without that line it is Net), "
    for words, name, why in [
        ("", "libtorchbeast.models.VectorNet", by_default),
        ("--net monobeast.Net", "monobeast.Net", ", which --net names, "),
        ("--use_lstm", "monobeast.Net", ", "),
    ]:
        net = models.make_net(monobeast.Net, spec_of((3,)), settled(monobeast, words))
        assert models.said_of(net).startswith(f"{name}{why}")
        assert models.said_of(net).endswith(" weights")
