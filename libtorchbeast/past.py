# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Games against the run's own past, where players move in turn (--past_share).

In a share of the games a kept file has one side. For the network in training its moves are part of
the environment: losses.py leaves them out of the loss, and lets the trace go through them.
"""

import argparse
import copy
import logging
import math
from typing import Any

import torch
from torch import Tensor, nn

from libtorchbeast import checkpoint, models
from libtorchbeast.accelerator.devices import to_host
from libtorchbeast.distributed import ranks
from libtorchbeast.flags import Flags, UserError, real, require, run_path
from libtorchbeast.loggers.standings import Results, read
from libtorchbeast.models import CoreState, act_on
from libtorchbeast.rollouts import NOBODY
from libtorchbeast.spec import Spec

logger = logging.getLogger(__name__)

READ = ("done", "episode_step", "discount", "episode_over", "episode_return")
CHANGE_AFTER = 1000  # calls, after which another file is the opponent
TURNS = 'an environment whose players move in turn, with metadata["own_discounts"] = True'


# ======================================================================================= FORK HERE
def choose(steps: list[int], results: Results) -> int:
    """Which of the kept files is the next opponent.

    Args:
        steps: those at which the files were kept.
        results: against those that have been met. It comes from a file that is written with each
            row of the log, so a run that uses it is not equal bit for bit to another.
    """
    return steps[int(torch.randint(len(steps), ()))]


def add_past_flag(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("self-play", "Games against the run's own past.")
    group.add_argument(
        "--past_share", type=real(0, 1), default=0.0, metavar="SHARE",
        help="Where players move in turn: the share of games in which a file of "
             "--keep_checkpoints_every plays one side.")  # fmt: skip


class Past:
    """Chooses actions, with at most two calls of a network for each row: of the one in training, on
    all columns, and of a kept one, which has one side in a share of the games. If that share is 0,
    it is `act_on`. Threads may share it.

    Args:
        kept: a network for kept weights, or one that has them.
        share: of the games, drawn for each of them.
        folder: where kept files are; from time to time one of them is the opponent. None: `kept`
            always is.
        greedy: whether both take the most probable actions.
    """

    def __init__(
        self, kept: nn.Module, share: float, folder: str | None = None, greedy: bool = False
    ):
        self._share, self._folder, self._greedy = share, folder, greedy
        self._calls = 0
        # Replaced as a whole, because other threads may be reading it.
        self._kept = NOBODY if folder else 0, kept

    def initial_state(self, net: nn.Module, num_envs: int) -> CoreState:
        """The states of both networks, and for each column three numbers [1, N, 3]: the file
        against which its game began, whether that has the first move, and whether it moves now."""
        state = models.initial_state(net, num_envs)
        if not self._share:
            return state
        game = torch.tensor([NOBODY, 0, 0]).repeat(1, num_envs, 1)
        return *state, *(x.clone() for x in state), game

    @torch.no_grad()
    def act(
        self, net: nn.Module, row: dict[str, Tensor], core_state: CoreState
    ) -> tuple[dict[str, Tensor], CoreState]:
        """Does what `act_on` does, and gives each row two more keys [1, N]:

        past       int64: the step of the kept file that has chosen the action, or NOBODY. A game's
                   last row, whose action is not used, has the file that was the opponent.
        game/past  float32: what the network in training has won against it; else NaN, as in games
                   in which the opponent has changed.
        """
        if not self._share:
            return act_on(net, row, core_state, self._greedy)
        if self._folder and (self._calls % CHANGE_AFTER == 0 or self._kept[0] == NOBODY):
            self._take_another(self._folder)
        self._calls += 1
        step, kept = self._kept
        count = len(core_state) // 2
        outputs, state = act_on(net, row, core_state[:count], self._greedy)
        host, old, game = to_host({k: row[k] for k in READ}, core_state[count:-1], core_state[-1])
        host = {k: x[0] for k, x in host.items()}
        file, is_first, moves = game = self._next_turn(host, game[0].unbind(-1), step)
        moves = moves.bool() & (file != NOBODY)
        asked = file != NOBODY if old else moves  # a recurrent network has to see all rows
        old = [x.clone() for x in old]
        if asked.any():
            asked_there = asked.to(row["done"].device)
            part = {k: x[:, asked_there] for k, x in row.items()}
            states = tuple(x[:, asked_there] for x in core_state[count:-1])
            theirs, new = act_on(kept, part, states, self._greedy)
            for x, own in zip(old, new, strict=True):
                x[:, asked] = own
            outputs["action"] = outputs["action"].clone()
            outputs["action"][:, moves] = theirs["action"][:, moves[asked]]
        counts = host["episode_over"] & (file == step) & (file != NOBODY)
        score = torch.where(is_first.bool(), -host["episode_return"], host["episode_return"])
        outputs["past"] = torch.where(moves | counts, step, NOBODY)[None]
        outputs["game/past"] = torch.where(counts, score, math.nan)[None]
        return outputs, (*state, *old, torch.stack(game, dim=-1)[None])

    def _next_turn(self, row: dict[str, Tensor], game: Any, step: int) -> tuple[Tensor, ...]:
        """Begins new games, and passes the turn in the others. All are tensors [N]."""
        file, is_first, moves = game
        begins = row["done"] & (row["episode_step"] == 0)
        plays, first = torch.rand(2, len(begins)) < torch.tensor([[self._share], [0.5]])
        passed = moves ^ (row["discount"] < 0).long()
        return (
            torch.where(begins, torch.where(plays, step, NOBODY), file),
            torch.where(begins, first.long(), is_first),
            torch.where(begins, first.long(), passed),
        )

    def _take_another(self, folder: str) -> None:
        """Takes a kept file. If it cannot be read, because it has just been deleted or is damaged,
        the opponent stays as it was. Raises UserError if it is of another network."""
        if not (files := checkpoint.kept(folder)):
            return
        step, net = choose([*files], read(folder)), copy.deepcopy(self._kept[1])
        try:
            weights = checkpoint.load(files[step])["model"]
        except (OSError, checkpoint.CheckpointError) as error:
            logger.warning("The opponent stays step %d: %s", self._kept[0], error)
            return
        if why := checkpoint.misfit(dict(net.state_dict()), weights):
            raise UserError(f"{files[step]} is of another network than this run's: {why}")
        net.load_state_dict(weights)
        self._kept = step, net


def past_of_run(net_class: type[nn.Module], spec: Spec, flags: Flags) -> Past:
    """What --past_share asks for. `net_class` is that of the networks, if --net names no other."""
    if flags.past_share:
        require(flags, "past_share", "discount" in spec.numbers, TURNS)
        keeps = flags.keep_checkpoints_every and not flags.disable_checkpoint
        expected = "0, or --keep_checkpoints_every, no --disable_checkpoint, and one rank"
        require(flags, "past_share", bool(keeps) and ranks.count() == 1, expected)
    net = models.make_net(net_class, spec, flags) if flags.past_share else nn.Module()
    return Past(net.to(flags.inference_device), flags.past_share, run_path(flags))


def match(net: nn.Module, spec: Spec, flags: Flags) -> Past:
    """What --against asks for: every game is against this network. Without it, none is."""
    if flags.against is None:
        return Past(net, 0.0, greedy=flags.greedy)
    require(flags, "against", "discount" in spec.numbers, TURNS)
    other = copy.deepcopy(net)
    other.load_state_dict(checkpoint.initial_weights(flags, other.state_dict(), "against"))
    return Past(other, 1.0, greedy=flags.greedy)
