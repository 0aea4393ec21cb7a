# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Playing whole games with a trained network: `--mode test` and `--mode test_render`."""

import logging
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import rich.console
import rich.table
import torch
from torch import nn

from libtorchbeast import checkpoint, models
from libtorchbeast.acting import act_on
from libtorchbeast.environment import Environment
from libtorchbeast.flags import UserError
from libtorchbeast.run import run_path
from libtorchbeast.spec import Spec

logger = logging.getLogger(__name__)
results = rich.console.Console()


class Game(NamedTuple):
    score: float  # unclipped sum of rewards
    steps: int
    complete: bool  # False where --max_episode_steps ended it


def load_for_test(flags: Any, given: set[str], make_net: Callable[[Spec, Any], nn.Module],
                  create_env: Callable[[Any], Any]) -> tuple[nn.Module, Environment, Any]:  # fmt: skip
    """The network of a run's newest checkpoint, and its environment to play in.

    The run's own --env, --net and --use_lstm are taken, unless given on the command line.
    Returns the network, the adapter of one environment, and that environment itself (`render`).

    Raises:
        UserError: the run has no checkpoint, or it does not fit the environment.
    """
    path = os.path.join(run_path(flags), "model.tar")
    state = checkpoint.load_newest(path)
    if state is None:
        raise UserError(f"--xpid {flags.xpid}: no checkpoint {path}")
    for name in {"env", "net", "use_lstm"} - given:
        setattr(flags, name, state["flags"][name])
    created: list[Any] = []
    env = Environment(lambda: created.append(create_env(flags)) or created[0], 1, flags.env)  # fmt: skip
    if env.spec.signature() != state["spec"]:
        raise UserError(f"{path} does not fit {flags.env}: expected {env.spec.signature()}, seen "
                         f"{state['spec']}")  # fmt: skip
    net = make_net(env.spec, flags)
    net.load_state_dict(state["model"])
    logger.info("%s at step %d", path, state["step"])
    return net.eval(), env, created[0]


def play(
    net: nn.Module, env: Environment, num_episodes: int, *, seed: int, greedy: bool,
    max_steps: int, precision: str, on_row: Callable[[dict[str, np.ndarray]], None] = lambda row: None,
) -> list[Game]:  # fmt: skip
    """Plays whole games, recurrent state carried, game i from `seed` + i, and calls `on_row` with each
    row and what the network made of it. A game longer than `max_steps` is cut there, and says so."""
    games = []
    with models.autocast(precision, torch.device("cpu")):
        for game in range(num_episodes):
            row, core_state = env.initial(seed + game), net.initial_state(1)
            while True:
                tensors = {k: torch.from_numpy(v) for k, v in row.items()}
                outputs, core_state = act_on(net, tensors, core_state, greedy)
                row |= {k: v.numpy() for k, v in outputs.items()}
                on_row(row)
                if row["episode_over"][0] or row["episode_step"][0] >= max_steps:
                    break
                row = env.step(row["action"])
            games.append(
                Game(
                    score=float(row["episode_return"][0]),
                    steps=int(row["episode_step"][0]),
                    complete=bool(row["episode_over"][0]),
                )
            )
    return games


def test(flags: Any, net: nn.Module, env: Environment, rendered: Any) -> list[Game]:
    """Plays --num_episodes games and prints each, their mean and spread; in the mode test_render it
    also writes them as SAVEDIR/XPID/test.mp4."""
    on_row: Callable[[dict[str, np.ndarray]], None] = lambda row: None
    video = None
    if flags.mode == "test_render":
        import imageio.v2 as imageio

        path = os.path.join(run_path(flags), "test.mp4")
        video = imageio.get_writer(path, fps=60 // env.spec.frames_per_step, macro_block_size=2)
        on_row = lambda row: video.append_data(_large(rendered.render()))  # noqa: E731
    games = play(net, env, flags.num_episodes, seed=flags.seed, greedy=flags.greedy,
                 max_steps=flags.max_episode_steps, precision=flags.precision,
                 on_row=on_row)  # fmt: skip
    if video is not None:
        video.close()
        results.print(f"Video: {path}", soft_wrap=True)
    _print(games, flags)
    return games


def _large(image: np.ndarray) -> np.ndarray:
    """Repeats the pixels of a small image, so that a video of a 10x10 game can be watched."""
    factor = max(1, 160 // max(image.shape[:2]))
    return np.ascontiguousarray(image.repeat(factor, 0).repeat(factor, 1))


def _print(games: list[Game], flags: Any) -> None:
    how = "greedy" if flags.greedy else "sampled"
    table = rich.table.Table(title=f"{flags.env}, {how} actions", title_justify="left")
    for name in ("game", "return", "steps"):
        table.add_column(name, justify="right")
    for i, game in enumerate(games):
        cut = "" if game.complete else f" (cut at --max_episode_steps {flags.max_episode_steps})"
        table.add_row(str(i + 1), f"{game.score:g}", f"{game.steps}{cut}")
    results.print(table)
    scores = np.array([game.score for game in games])
    results.print(
        f"Mean return {scores.mean():.2f}, standard deviation {scores.std():.2f}, from "
        f"{scores.min():g} to {scores.max():g} in {len(games)} games.", soft_wrap=True
    )  # fmt: skip
