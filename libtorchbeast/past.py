# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Games against the run's own past, of players who move in turn or act at once (--past_share).

In a share of the games a kept file has one side. Transitions.own leaves its moves out of the loss.
Where players move in turn they are part of the environment, and the trace goes through them. Where
all act at once they are in columns of their own.
"""

import copy
import logging
import math
from typing import Any

import torch
from torch import Tensor, nn

from libtorchbeast import agents, checkpoint, models
from libtorchbeast.accelerator.devices import to_host
from libtorchbeast.distributed import ranks
from libtorchbeast.flags import Flags, UserError, require, run_path
from libtorchbeast.loggers.standings import FIRST_GAMES, Results, read
from libtorchbeast.models import CoreState, act_on
from libtorchbeast.rollouts import NOBODY
from libtorchbeast.spec import Spec

logger = logging.getLogger(__name__)

READ = ("done", "episode_step", "discount", "episode_over", "episode_return")
CHANGE_AFTER = 1000  # steps of each environment, before which no other file is the opponent
CHANGED = -2  # instead of the file: the opponent has changed since the game began
PLAYERS = 'a ParallelEnv, or players who move in turn, with metadata["own_discounts"] = True'


# ======================================================================================= FORK HERE
def choose(steps: list[int], results: Results) -> int:
    """Which of the kept files is the next opponent.

    Args:
        steps: those at which the files were kept.
        results: against those that have been met. It comes from a file that is written with each
            row of the log, so a run that uses it is not equal bit for bit to another.
    """
    return steps[int(torch.randint(len(steps), ()))]


def sides(groups: list[agents.Group]) -> list[int]:
    """The side of each agent, 0 or 1, where all act at once: the first group and all others; or if
    there is one group only, every other agent."""
    if len(groups) == 1:
        return [i % 2 for i in range(groups[0].agents)]
    return [int(i > 0) for i, group in enumerate(groups) for _ in range(group.agents)]


# ============================================================================================ games
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
        num_envs: of all threads together. A call has the rows of some of them.
    """

    def __init__(
        self,
        kept: nn.Module,
        share: float,
        folder: str | None = None,
        greedy: bool = False,
        num_envs: int = 1,
    ):
        self._share, self._folder, self._greedy = share, folder, greedy
        self._groups = kept.groups if isinstance(kept, agents.Agents) else []
        # [A], the agents of all groups; [1] where players move in turn.
        self._sides = torch.tensor(sides(self._groups) if self._groups else [1])
        self._num_envs = num_envs
        # The rows until another file may come, and the games that have counted against this one.
        self._rows_left, self._games = 0, 0
        self._unpassed = -math.inf if self._groups else 0  # games that have counted without a pass
        # Replaced as a whole, because other threads may be reading it.
        self._kept = NOBODY if folder else 0, kept

    def initial_state(self, net: nn.Module, num_envs: int) -> CoreState:
        """The states of both networks, and for each column three numbers [1, N, 3]: the file
        against which its game began, whether that has the first move, and whether it moves now. If
        all act at once, both of the last two are the side that the file plays, 0 or 1."""
        state = models.initial_state(net, num_envs)
        if not self._share:
            return state
        game = torch.tensor([NOBODY, 0, 0]).repeat(1, num_envs, 1)
        return *state, *(x.clone() for x in state), game

    @torch.no_grad()
    def act(
        self, net: nn.Module, row: dict[str, Tensor], core_state: CoreState
    ) -> tuple[dict[str, Tensor], CoreState]:
        """Does what `act_on` does, and gives each row two more keys:

        past       [1, N] int64: the step of the kept file that has chosen the action, or NOBODY. A
                   game's last row, whose action is not used, has the file that was the opponent.
                   Where all act at once, it is [1, N, A], for each agent.
        game/past  [1, N] float32: what the network in training has won against it; else NaN, as in
                   games in which the opponent has changed. Where all act at once, it is the
                   difference between the mean returns of both sides' agents.
        """
        if not self._share:
            return act_on(net, row, core_state, self._greedy)
        step, kept = self._opponent(row["done"].shape[1])
        count = len(core_state) // 2
        outputs, state = act_on(net, row, core_state[:count], self._greedy)
        read = {k: x for k, x in row.items() if k in READ or k.endswith("/episode_return")}
        host, old, game = to_host(read, core_state[count:-1], core_state[-1])
        host = {k: x[0] for k, x in host.items()}
        file, is_first, moves = game = self._next_turn(host, game[0].unbind(-1), step)
        is_met = file != NOBODY
        theirs = (self._sides == moves[:, None]) & is_met[:, None]  # [N, A]
        asked = is_met if old else theirs.any(1)  # a recurrent network has to see all rows
        old = [x.clone() for x in old]
        if asked.any():
            asked_there = asked.to(row["done"].device)
            part = {k: x[:, asked_there] for k, x in row.items()}
            states = tuple(x[:, asked_there] for x in core_state[count:-1])
            others, new = act_on(kept, part, states, self._greedy)
            for x, own in zip(old, new, strict=True):
                x[:, asked] = own
            outputs["action"] = action = outputs["action"].clone()
            newest = action[0, asked]
            each = lambda x: x.view(*theirs[asked].shape, -1)  # the numbers of each agent's action
            chosen = torch.where(each(theirs[asked]), each(others["action"]), each(newest))
            action[0, asked] = chosen.view_as(newest)
        counts = host["episode_over"] & is_met & (file == step)
        self._games += int(counts.sum())
        self._look_for_turns(host, int(counts.sum()))
        by_past = torch.where(theirs | counts[:, None], step, NOBODY)[None]
        outputs["past"] = by_past if self._groups else by_past[..., 0]
        score = self._score(host, is_first, theirs)
        outputs["game/past"] = torch.where(counts, score, math.nan)[None]
        return outputs, (*state, *old, torch.stack(game, dim=-1)[None])

    def _look_for_turns(self, row: dict[str, Tensor], games: int) -> None:
        """Warns if players should move in turn, but no move passes the turn."""
        has_passed = not self._groups and bool((row["discount"] < 0).any())
        self._unpassed = -math.inf if has_passed else self._unpassed + games
        if self._unpassed >= FIRST_GAMES:
            said = 'expected info["torchbeast"] = {"discount": -1.0} for each move that passes it'
            logger.warning("No move passed the turn in %d games: %s", self._unpassed, said)
            self._unpassed = -math.inf

    def _score(self, row: dict[str, Tensor], is_first: Tensor, theirs: Tensor) -> Tensor:
        """What the network in training has won in games that end now, [N]."""
        if not self._groups:
            return torch.where(is_first.bool(), -row["episode_return"], row["episode_return"])
        returns = torch.cat([row[f"{group.name}/episode_return"] for group in self._groups], 1)
        mean = lambda side: (side * returns.double()).sum(1) / side.sum(1)
        return (mean(~theirs) - mean(theirs)).float()  # of equal returns exactly 0

    def _next_turn(self, row: dict[str, Tensor], game: Any, step: int) -> tuple[Tensor, ...]:
        """Begins new games, and passes the turn in the others, if there are turns. All are tensors
        [N]."""
        file, is_first, moves = game
        file = torch.where((file != NOBODY) & (file != step), CHANGED, file)
        begins = row["done"] & (row["episode_step"] == 0)
        plays, first = torch.rand(2, len(begins)) < torch.tensor([[self._share], [0.5]])
        passed = moves if self._groups else moves ^ (row["discount"] < 0).long()
        return (
            torch.where(begins, torch.where(plays, step, NOBODY), file),
            torch.where(begins, first.long(), is_first),
            torch.where(begins, first.long(), passed),
        )

    def _opponent(self, columns: int) -> tuple[int, nn.Module]:
        """The kept file and its network, for a call with so many rows. A game in which the file
        changes does not count. So another file waits until as many games have counted as are played
        against one file at a time, however long they are."""
        is_due, count = self._rows_left <= 0, self._share * self._num_envs
        if self._folder and (self._kept[0] == NOBODY or (is_due and self._games >= count)):
            if is_due:  # other threads do not see it any more
                self._rows_left = CHANGE_AFTER * self._num_envs
            self._take_another(self._folder, is_due)
        self._rows_left -= columns
        return self._kept

    def _take_another(self, folder: str, may_warn: bool = True) -> None:
        """Takes a kept file. If it cannot be read, because it has just been deleted or is damaged,
        the opponent stays as it was. Raises UserError if it is of another network."""
        if not (files := checkpoint.kept_files(folder)):
            return
        step, net = choose([*files], read(folder)), copy.deepcopy(self._kept[1])
        try:
            weights = checkpoint.load(files[step])["model"]
        except (OSError, checkpoint.CheckpointError) as error:
            if may_warn:
                logger.warning("There is no new opponent: %s", error)
            return
        if why := checkpoint.misfit(dict(net.state_dict()), weights):
            raise UserError(f"{files[step]} is of another network than this run's: {why}")
        net.load_state_dict(weights)
        self._kept, self._games = (step, net), 0


def _require_players(name: str, spec: Spec, flags: Flags) -> None:
    """Raises UserError unless the environment has several players, as the flag --`name` demands."""
    groups = agents.groups_of(spec)
    are_several = sum(group.agents for group in groups) > 1
    told = all(f"{group.name}/episode_return" in spec.observations for group in groups)
    require(flags, name, are_several and told if groups else "discount" in spec.numbers, PLAYERS)


def past_of_run(net_class: type[nn.Module], spec: Spec, flags: Flags, num_streams: int = 1) -> Past:
    """What --past_share asks for. `net_class` is that of the networks, if --net names no other."""
    if flags.past_share:
        _require_players("past_share", spec, flags)
        require(flags, "past_share", flags.keep_checkpoints_every, "--keep_checkpoints_every, too")
        require(flags, "past_share", not flags.disable_checkpoint, "no --disable_checkpoint")
        require(flags, "past_share", ranks.count() == 1, "one rank")
    net = agents.make_net(net_class, spec, flags) if flags.past_share else nn.Module()
    net.to(flags.inference_device).requires_grad_(False)  # else threads share autocast's casts
    return Past(net, flags.past_share, run_path(flags), num_envs=num_streams * spec.num_envs)


def match(net: nn.Module, spec: Spec, flags: Flags) -> Past:
    """What --against asks for: every game is against this network. Without it, none is."""
    if flags.against is None:
        return Past(net, 0.0, greedy=flags.greedy)
    _require_players("against", spec, flags)
    other = copy.deepcopy(net)
    other.load_state_dict(checkpoint.initial_weights(flags, other.state_dict(), "against"))
    return Past(other, 1.0, greedy=flags.greedy)
