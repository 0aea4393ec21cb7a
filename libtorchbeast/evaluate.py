# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Playing whole games with a trained network: `--mode test` and `--mode test_render`."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import rich.console
import rich.table
import torch
from torch import nn

from libtorchbeast import checkpoint, models
from libtorchbeast.acting import act_on
from libtorchbeast.environment import Environment, Row
from libtorchbeast.flags import UserError, run_path

logger = logging.getLogger(__name__)
results = rich.console.Console()


class Game(NamedTuple):
    score: float  # unclipped sum of rewards
    steps: int
    complete: bool  # False where --max_episode_steps ended it


def load(
    flags: Any,
    given: set[str],
    player: Callable[[Any], tuple[nn.Module, Environment]],
) -> tuple[nn.Module, Environment]:
    """The network of a run's newest checkpoint, and environments to play in, as `player(flags)`
    makes them.

    The run's own --env, --net and --use_lstm are taken, unless `given` on the command line.

    Raises:
        UserError: the run has no checkpoint, or it does not fit the environment or the network, or
            the environment is not installed here.
    """
    path = os.path.join(run_path(flags), "model.tar")
    state = checkpoint.load_newest(path)
    if state is None:
        raise UserError(f"--xpid {flags.xpid}: there is no checkpoint {path}")
    run_flags = state["flags"] | {"env": state["env"]}  # its servers' own
    for name in {"env", "net", "use_lstm"} - given:
        setattr(flags, name, run_flags[name])
    try:
        net, env = player(flags)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UserError(f"--env {flags.env}: {error}") from error
    if "net" not in given and models.name_of(net) != state["net"]:
        env.close()
        raise UserError(
            f"{path} is of the network {state['net']}, this program's is {models.name_of(net)}: "
            f"play with the program that trained it, or --net {state['net']}"
        )
    if env.spec.signature() != state["spec"]:
        env.close()
        raise UserError(
            f"{path} does not fit {flags.env}: expected {state['spec']}, seen "
            f"{env.spec.signature()}"
        )
    net.load_state_dict(state["model"])
    results.print(f"Playing with {path}, trained for {state['step']:,} steps", soft_wrap=True)
    return net.eval(), env


def play(
    flags: Any,
    net: nn.Module,
    env: Environment,
    seed: int,
    on_row: Callable[[Row], None] = lambda row: None,
) -> list[Game]:
    """Plays --num_episodes whole games, recurrent state carried, game i from `seed` + i, as many at
    once as `env` has environments. A game is cut after --max_episode_steps. `on_row` sees each row
    with what the network made of it."""
    games: list[Game] = []
    with models.autocast(flags.precision, torch.device("cpu")):
        while len(games) < flags.num_episodes:
            games += _play_at_once(flags, net, env, seed + len(games), on_row)
    return games[: flags.num_episodes]


def _play_at_once(
    flags: Any, net: nn.Module, env: Environment, seed: int, on_row: Callable[[Row], None]
) -> list[Game]:
    """The first game of each environment. One that is over goes on, unseen, until all are: who
    took the games that end first would take the short ones."""
    games: dict[int, Game] = {}
    row, core_state = env.initial(seed), models.initial_state(net, env.spec.num_envs)
    while True:
        tensors = {k: torch.from_numpy(v) for k, v in row.items()}
        outputs, core_state = act_on(net, tensors, core_state, flags.greedy)
        row |= {k: v.numpy() for k, v in outputs.items()}
        on_row(row)
        ends = row["episode_over"] | (row["episode_step"] >= flags.max_episode_steps)
        for i in np.flatnonzero(ends):
            score, steps = float(row["episode_return"][i]), int(row["episode_step"][i])
            games.setdefault(int(i), Game(score, steps, complete=bool(row["episode_over"][i])))
        if len(games) == env.spec.num_envs:
            return [games[i] for i in sorted(games)]
        row = env.step(row["action"])


def games_at_once(flags: Any, most: int) -> int:
    """How many environments a beast's `player` opens: at most `most`, as many as one of its workers
    has in training. A video shows one game after the other."""
    return 1 if flags.mode == "test_render" else min(flags.num_episodes, most)


def test(flags: Any, net: nn.Module, env: Environment) -> list[Game]:
    """Plays --num_episodes games and prints each, their mean and spread; in the mode test_render it
    also writes them as SAVEDIR/XPID/test.mp4.

    Raises:
        UserError: there is no picture of the environment for test_render; no game is played then.
    """
    with _video(flags, env) as on_row:
        games = play(flags, net, env, flags.seed, on_row)
    _print(games, flags)
    return games


@contextlib.contextmanager
def _video(flags: Any, env: Environment) -> Iterator[Callable[[Row], None]]:
    """Yields what adds a row to the video; in other modes it does nothing."""
    if flags.mode != "test_render":
        yield lambda row: None
        return
    from libtorchbeast import video  # its packages take a moment to load

    path = os.path.join(run_path(flags), "test.mp4")
    with video.recorder(path, env) as on_row:
        yield on_row
    results.print(f"Video: {path}", soft_wrap=True)


def _print(games: list[Game], flags: Any) -> None:
    how = "greedy" if flags.greedy else "sampled"
    results.print(f"{flags.env}, {how} actions")
    table = rich.table.Table()
    for name in ("game", "return", "steps"):
        table.add_column(name, justify="right")
    for i, game in enumerate(games):
        cut = "" if game.complete else f" (cut at --max_episode_steps {flags.max_episode_steps})"
        table.add_row(str(i + 1), f"{game.score:g}", f"{game.steps}{cut}")
    results.print(table)
    scores = np.array([game.score for game in games])
    noun = "game" if len(games) == 1 else "games"
    results.print(
        f"Mean return {scores.mean():.2f}, standard deviation {scores.std():.2f}, from "
        f"{scores.min():g} to {scores.max():g} in {len(games)} {noun}.",
        soft_wrap=True,
    )
