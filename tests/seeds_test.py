# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Seeds: different wherever one of their numbers is, and the same draws from all generators."""

import itertools
import random

import numpy as np
import torch

import monobeast
import polybeast_env
from libtorchbeast.distributed import ranks
from libtorchbeast.flags import Flags, replace
from libtorchbeast.seeds import MAX_SEED, derive_seed, first_seed, seed_everything, seeded
from tests.support.envs import Catch


def test_derived_seeds_differ_wherever_a_number_does():
    seeds = [derive_seed(*numbers) for numbers in itertools.product(range(10), repeat=3)]
    assert len(set(seeds)) == 1000 and all(0 <= seed < 2**31 for seed in seeds)
    assert derive_seed(1, 2, 3) == seeds[123]
    uses = [(5,), (5, 1), (5, 0, 0, 1), (5, 0, 0, 2)]  # actors 0 and 1, an evaluation, a rank
    assert len({derive_seed(7, *use) for use in uses}) == 4


def test_seeds_that_are_counted_on_from_one_stay_in_range():
    for seed in (0, 1, 12345, MAX_SEED - 15):
        assert first_seed(seed, 16) == seed
    firsts = [first_seed(seed, 16) for seed in range(MAX_SEED - 14, MAX_SEED + 20)]
    assert firsts == list(range(len(firsts)))


def test_the_same_seed_gives_the_same_draws_of_all_generators():
    def draw(seed):
        seed_everything(seed)
        return random.random(), np.random.random(), torch.rand(()).item()

    first, same, other = draw(1), draw(1), draw(2)
    assert first == same and all(a != b for a, b in zip(first, other, strict=True))


def test_each_call_of_create_env_sees_a_seed_of_its_own():
    flags = Flags(env="Catch", seed=5)
    for seed, expected in ((None, [5, 6, 7]), (80, [80, 81, 82]), (MAX_SEED, [1, 2, 3])):
        create_env = seeded(lambda flags: (flags.env, flags.env_seed), flags, 3, seed)
        assert expected[0] == first_seed(flags.seed if seed is None else seed, 3)  # as at a reset
        assert [create_env() for _ in expected] == [("Catch", seed) for seed in expected]
    assert not hasattr(flags, "env_seed")  # it is not logged with the run's flags


def test_each_environment_of_a_run_has_a_number_of_its_own(monkeypatch):
    """Over the actors of MonoBeast, and over the streams of PolyBeast's local servers. Environments
    that ignore the seed of `reset`, as EnvPool's do, see theirs in `flags.env_seed`."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    found, seeds = [], []
    made = lambda flags: found.append(flags.env_index) or seeds.append(flags.env_seed) or Catch()
    monkeypatch.setattr(monobeast, "create_env", made)
    monkeypatch.setattr(polybeast_env, "create_env", made)
    mono = monobeast.parse(["--env", "Catch", "--envs_per_actor", "3"])
    poly = polybeast_env.parse("--env Catch --envs_per_server 3 --num_servers 2".split())
    more = replace(poly, num_servers=4)  # on the other machine
    places = list(itertools.product("01", (0, 1)))  # ranks, and their actors or servers
    for rank, actor in places:
        monkeypatch.setenv("RANK", rank)
        monobeast.make_environment(mono, 7, ranks.own_number(actor)).initial(seed=0)
    assert len(set(found)) == len(found) and found[:6] == [0, 1, 2, 3, 4, 5]
    found.clear()
    seeds.clear()
    for rank, server in [*places, ("1", 2), ("1", 3)]:
        monkeypatch.setenv("RANK", rank)
        make = polybeast_env.maker(more if rank == "1" else poly, 7, server)
        for _ in range(3):
            make().initial(seed=0)
    assert found[:3] == [0, 1, 2] and sorted(found)[:18] == list(range(18))
    assert len(set(found)) == len(found) == 54
    assert seeds[:9] == [derive_seed(7, stream) + i for stream in range(3) for i in range(3)]
