# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Plays whole games with a trained network, in the test modes and while training."""

import contextlib
import functools
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import rich.console
import torch
from torch import nn

from libtorchbeast import checkpoint, export, models, workers
from libtorchbeast.distributed import ranks
from libtorchbeast.environment import Environment, Row
from libtorchbeast.errors import cause, errors_of
from libtorchbeast.flags import Flags, UserError, as_plain, replace, require, run_path
from libtorchbeast.learner import Learner
from libtorchbeast.loggers.stats import Means
from libtorchbeast.opening import OpeningWatch
from libtorchbeast.past import Past, match
from libtorchbeast.seeds import derive_seed, seed_everything
from libtorchbeast.spec import Spec
from libtorchbeast.weights import SharedWeights

logger = logging.getLogger(__name__)
results = rich.console.Console(markup=False, soft_wrap=True)

# A function that makes a network and environments for a test mode. It must be defined in a module,
# at the top level, so that another process can import it.
Player = Callable[[Flags], tuple[nn.Module, Environment]]


class Game(NamedTuple):
    score: float  # unclipped sum of rewards
    steps: int
    complete: bool  # False if --max_episode_steps cut it
    numbers: dict[str, float]  # those that the environment told of it


def load(
    flags: Flags, player: Player, say: Callable[[str], None] = results.print
) -> tuple[nn.Module, Environment]:
    """Loads the network of a run's newest checkpoint and makes environments to play in.

    Args:
        flags: those of the run, as `checkpoint.parse_for_run` completes them.
        player: makes the network and the environments.
        say: gets a sentence about what was loaded.

    Returns:
        The network in evaluation mode, and the environments.

    Raises:
        UserError: the run has no checkpoint, the checkpoint does not fit the environment or the
            network, or the environment cannot be made here.
    """
    path = checkpoint.path_of(flags)
    state = checkpoint.load_newest(path)
    if state is None:
        why = "no evaluation of this run has ended yet" if flags.best else "is --savedir right?"
        raise UserError(f"--xpid {flags.xpid}: there is no checkpoint {path} ({why})")
    with OpeningWatch(flags), errors_of(flags.env):
        net, env = player(flags)
    own_net, own_spec, why = models.name_of(net), env.spec.signature(), ""
    if flags.net is None and own_net != state["net"]:
        why = f"has the network {state['net']}, this program's is {own_net}: use the program that "
        why += f"trained it, or --net {state['net']}{' --greedy' * state['flags']['greedy']}"
    elif own_spec != state["spec"]:
        why = f"does not fit {flags.env}: {env.spec.misfit(state['spec'])}"
    elif misfit := checkpoint.misfit(net.state_dict(), state["model"]):
        why = f"does not fit this network (--net, --core, or Net was edited): {misfit}"
    if why:
        env.close()
        raise UserError(f"{path} {why}")
    net.load_state_dict(state["model"])
    say(f"Loaded {path}, trained for {state['step']:,} steps")
    return net.eval(), env


def play(
    flags: Flags,
    net: nn.Module,
    env: Environment,
    seed: int,
    on_row: Callable[[Row], None] = lambda row: None,
    on_game: Callable[[int, Game], None] = lambda number, game: None,
) -> list[Game]:
    """Plays --num_episodes whole games, as many at once as `env` has environments.

    Args:
        flags: give --num_episodes and --max_episode_steps, after which a game is cut.
        seed: game i starts from `seed` + i, unless the environments are tensors of one generator.
        on_row: is called with each row [N, ...], which includes the network's outputs.
        on_game: is called with each i and game, as soon as it ends.

    Returns:
        The games in the order of their seeds.
    """
    games: dict[int, Game] = {}
    chooser = match(net, env.spec, flags)
    with models.autocast(net, flags.precision, torch.device("cpu")):
        while len(games) < flags.num_episodes:
            first = len(games)
            for i, game in _play_at_once(flags, net, chooser, env, seed + first, on_row):
                games[first + i] = game
                if first + i < flags.num_episodes:
                    on_game(first + i, game)
    return [games[i] for i in range(flags.num_episodes)]


def _play_at_once(
    flags: Flags,
    net: nn.Module,
    chooser: Past,
    env: Environment,
    seed: int,
    on_row: Callable[[Row], None],
) -> Iterator[tuple[int, Game]]:
    """Plays until each environment has ended its first game, and yields these games as they end,
    with the numbers of their environments. Later games of an environment are ignored, because
    taking the games that end first would favour short ones."""
    ended: set[int] = set()
    N = env.spec.num_envs
    with OpeningWatch(flags, N, flag="num_episodes") as on_open:
        row, core_state = env.initial(seed, on_open), chooser.initial_state(net, N)
    while True:
        tensors = {k: torch.from_numpy(v[None]) for k, v in row.items()}  # [T = 1, N, ...]
        outputs, core_state = chooser.act(net, tensors, core_state)
        row |= {k: v[0].numpy() for k, v in outputs.items()}
        on_row(row)
        ends = row["episode_over"] | (row["episode_step"] >= flags.max_episode_steps)
        for i in sorted({*np.flatnonzero(ends).tolist()} - ended):
            score, steps = float(row["episode_return"][i]), int(row["episode_step"][i])
            keys = [k for k in row if k.startswith("game/") and np.isfinite(row[k][i])]
            numbers = {key.removeprefix("game/"): float(row[key][i]) for key in keys}
            yield i, Game(score, steps, bool(row["episode_over"][i]), numbers)
            ended.add(i)
        if len(ended) == N:
            return
        row = env.step(row["action"])


def play_newest(flags: Flags, player: Player) -> list[Game]:
    """Plays --num_episodes games with the newest checkpoint of --xpid and prints each as it ends,
    then the mean and the standard deviation of their returns, and the means of the numbers that the
    environment told. In the mode test_render it also films them, to SAVEDIR/XPID/test.mp4. In the
    mode export it exports the policy instead. Raises what `load` raises, and UserError if the
    environment does not render images, or torch.export cannot trace the network."""
    net, env = load(flags, player)
    with errors_of(flags.env), contextlib.closing(env):
        if flags.mode == "export":
            export.write(flags, net, env)
            return []
        seed_everything(flags.seed)
        results.print(f"{flags.env}, {'greedy' if flags.greedy else 'sampled'} actions")
        told = functools.partial(_print_game, flags)
        if flags.mode != "test_render":
            games = play(flags, net, env, flags.seed, on_game=told)
        else:
            from libtorchbeast.loggers import video  # its packages take a moment to load

            path = os.path.join(run_path(flags), "test.mp4")
            with video.recorder(path, env) as on_row, errors_of(flags.env):
                games = play(flags, net, env, flags.seed, on_row, told)
            results.print(f"Video: {path}")
        _print(games, flags)
    return games


def _print_game(flags: Flags, number: int, game: Game) -> None:
    cut = "" if game.complete else f" (cut at --max_episode_steps {flags.max_episode_steps})"
    text = f"Game {number + 1} of {flags.num_episodes}: return {game.score:g}, {game.steps} steps"
    results.print(text + cut)


def _print(games: list[Game], flags: Flags) -> None:
    scores = np.array([game.score for game in games])
    noun = "game" if len(games) == 1 else "games"
    spread = f"standard deviation {scores.std():.2f}, from {scores.min():g} to {scores.max():g}"
    results.print(f"Mean return {scores.mean():.2f}, {spread} in {len(games)} {noun}.")
    for name, mean in Means(game.numbers for game in games).row().items():
        results.print(f"Mean game_{name} {mean:.2f}")
    if flags.against is not None:
        won = np.array([game.numbers["past"] for game in games if "past" in game.numbers])
        counts = f"{(won > 0).sum()} won, {(won == 0).sum()} drawn, {(won < 0).sum()} lost"
        counts += f", {len(games) - len(won)} cut" * (len(won) < len(games))
        results.print(f"Against {flags.against}: {counts}.")


# ==================== evaluation while training
# Takes the mean return of an evaluation, and the weights that played, as a part of a checkpoint.
Keep = Callable[[float, dict[str, Any]], None]

IMPORTS_S = 120.0  # a process that imports for longer is taken to hang
LONGEST_EVALUATION_S = 3600.0  # an evaluation that takes longer is taken to hang
LOG_LINE = b"."  # begins a message with a line for the log
ALL_OPEN = b"tried"  # is the first message if there are others to evaluate in


def columns_of_others(flags: Flags) -> dict[str, str]:
    """The environments of --eval_env, and for each the column that has its mean return."""
    names = [name.strip() for name in flags.eval_env.split(",")] if flags.eval_env else []
    require(flags, "eval_env", all(names), "ids with a comma between two")
    return {name: f"mean_eval_return/{name}" for name in names}


def try_others(flags: Flags, expected: dict[str, Any], player: Player) -> None:
    """Opens and resets each environment of --eval_env once. Raises UserError if one of them cannot
    be played here, or does not have the `expected` signature, which is the training's."""
    for name in columns_of_others(flags):
        one = replace(flags, mode="test", num_episodes=1, env=name)
        try:
            with OpeningWatch(flags, what=f"--eval_env {name}"), errors_of(name):
                _, env = player(one)
                with contextlib.closing(env):
                    env.initial(flags.seed)
            whose = f"the observations and actions of --env {flags.env}, "
            if why := env.spec.misfit(expected, whose):
                raise UserError(why)
        except UserError as error:
            text = str(error).removeprefix(f"--env {name}: ")
            raise UserError(f"--eval_env {name}: {text}") from error


class Evaluator:
    """Evaluates the network in a separate process while training goes on.

    An evaluation starts every --eval_every steps, or later if the one before has not ended. It
    plays --num_episodes games with the newest weights, as the mode `test` does, in --env and in
    each environment of --eval_env. An evaluation that fails or hangs is logged, and training goes
    on. The process and its environments are kept for the next evaluation, because importing torch
    again would take longer than many games. With --eval_every 0, and in all ranks but the first,
    nothing is evaluated.

    Only one thread may use an instance.
    """

    def __init__(
        self,
        learner: Learner,
        spec: Spec,
        flags: Flags,
        player: Player,
        keep: Keep = lambda score, evaluated: None,
    ):
        self._learner, self._spec, self._player, self._keep = learner, spec, player, keep
        self._flags = replace(flags, mode="test")
        self._every = flags.eval_every if ranks.rank() == 0 else 0
        self._process: workers.Process | None = None
        self._weights: SharedWeights | None = None
        self._is_playing = False
        self._played: dict[str, Any] = {}  # what plays, as a part of a checkpoint
        self.resume()

    def resume(self) -> None:
        """The next evaluation is that which follows the learner's step."""
        self._next = self._after(self._learner.step)

    def try_others(self) -> None:
        """Has the process open each environment of --eval_env, so that a wrong one is found before
        the training begins. Raises the UserError of `try_others`."""
        if not (names := columns_of_others(self._flags)) or not self._every:
            return
        self._played = {"step": self._learner.step}
        process = self._begin(self._learner.state_dict())
        limit = IMPORTS_S + len(names) * self._flags.open_timeout
        timer = threading.Timer(limit, process.kill)  # for an environment that holds the GIL
        timer.start()
        try:
            while (message := process.receive()) != ALL_OPEN:
                if message is None:
                    how = workers.in_words(process.end(1.0))
                    said = f"--eval_env {', '.join(names)}: its process has ended ({how})"
                    raise UserError(f"{said}; it may take {limit:g} s")
                if not self._is_logged(message):
                    raise UserError(cause(message.decode(errors="replace")))
        finally:
            timer.cancel()

    def take(self, may_start: bool = True) -> dict[str, float]:
        """Returns the columns for the log if an evaluation has ended since the last call, else {}.
        Starts the next evaluation if it is due and `may_start`."""
        row = self._result() if self._is_playing else {}
        if row:
            others = columns_of_others(self._flags) if row.pop("has_players") else {}
            columns = [*others.values()] or ["mean_eval_return"]
            self._played["flags"] |= {} if others else {"eval_env": None}  # which scores nothing
            self._keep(float(np.mean([row[name] for name in columns])), self._played)
        if may_start and not self._is_playing and self._learner.step >= self._next:
            self._start()
        return row

    def close(self) -> None:
        """Ends the process and any games that it is playing. May be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.end(0.0)
        if self._weights is not None:
            self._weights.close()
        self._process, self._weights, self._is_playing = None, None, False

    def _after(self, step: int) -> float:
        return (step // self._every + 1) * self._every if self._every else math.inf

    def _start(self) -> None:
        state = self._learner.state_dict()
        self._played = {name: state[name] for name in ("model", "step", "updates")}
        self._played["flags"] = as_plain(vars(self._flags))
        self._next = self._after(state["step"])
        try:
            if self._process is None or self._weights is None:
                process = self._begin(state)
            else:
                process = self._process
                self._weights.publish(state["model"], state["updates"])
        except (OSError, UserError) as error:  # such as no memory for one more process
            self._give_up(f"failed: {error}")
            return
        process.send(b"play")
        self._started, self._is_playing = time.monotonic(), True

    def _begin(self, state: dict[str, Any]) -> workers.Process:
        # The state_dict itself is not an argument of the process, because starting a process waits
        # until it has read its arguments.
        self._weights = SharedWeights().begin(state["model"], state["updates"])
        args = (self._player, self._flags, self._spec.signature(), self._weights)
        self._process = workers.Process(play_games, args, name="evaluation")
        return self._process

    def _is_logged(self, message: bytes) -> bool:
        """Logs a message that is a line for the log. Returns whether it is."""
        if message.startswith(LOG_LINE):
            words = message.removeprefix(LOG_LINE).decode()
            logger.warning("Evaluation at step %d: %s", self._played["step"], words)
        return message.startswith(LOG_LINE)

    def _result(self) -> dict[str, float]:
        assert self._process is not None
        if not self._process.has_message():
            if time.monotonic() > self._started + LONGEST_EVALUATION_S:
                self._give_up(f"has not ended within {LONGEST_EVALUATION_S:g} s and is killed")
            return {}
        message = self._process.receive() or workers.in_words(self._process.end(1.0)).encode()
        if self._is_logged(message) or message == ALL_OPEN:
            return {}
        self._is_playing = False
        if not message.startswith(b"{"):
            self._give_up("failed: " + cause(message.decode(errors="replace")))
            return {}
        row = json.loads(message)
        others = columns_of_others(self._flags).items()
        returns = f"{row['mean_eval_return']:g}"
        returns += "".join(f", {row[column]:g} in {name}" for name, column in others)
        logger.info("Evaluation at step %d: mean return %s", self._played["step"], returns)
        return {"eval_step": self._played["step"], **row}

    def _give_up(self, what: str) -> None:
        off = "(--eval_every 0 turns evaluations off)"
        logger.warning("The evaluation at step %d %s %s", self._played["step"], what, off)
        self.close()


def play_games(
    inbox: Iterator[bytes],
    outbox: Connection,
    player: Player,
    flags: Flags,
    signature: dict[str, Any],
    weights: SharedWeights,
) -> None:
    """Runs in the evaluation's process. For each message in `inbox` it plays games with the newest
    weights and sends the columns for the log, as JSON, to `outbox`, which gets warnings too."""
    to_log: Any = logging.Handler(logging.WARNING)
    to_log.emit = lambda record: outbox.send_bytes(LOG_LINE + record.getMessage().encode())
    logging.getLogger("libtorchbeast").addHandler(to_log)
    os.nice(5)  # training has priority
    torch.set_num_threads(1)
    if columns_of_others(flags):
        try_others(flags, signature, player)
        outbox.send_bytes(ALL_OPEN)
    with OpeningWatch(flags):
        net, env = player(flags)
    if why := env.spec.misfit(signature):
        raise UserError(f"--env {flags.env}: {why}")
    envs = {"mean_eval_return": env}
    for name, column in columns_of_others(flags).items():  # `try_others` has checked them
        with OpeningWatch(flags, what=name):
            _, envs[column] = player(replace(flags, env=name))
    net.eval()
    cpu_s = 0.0  # so that the first evaluation's CPU time includes the imports
    for _ in inbox:
        seed = derive_seed(flags.seed, weights.copy_to(net), 0, 0, 1)  # no actor has this one
        row: dict[str, float] = {}
        for column, env in envs.items():
            # What an environment's games bring depends on nothing that was played before.
            seed_everything(seed)
            games = play(flags, net, env, seed)
            row[column] = float(np.mean([game.score for game in games]))
            where = column.removeprefix("mean_eval_return")
            numbers = Means(game.numbers for game in games).row().items()
            row |= {f"eval_game_{name}{where}": mean for name, mean in numbers}
        row["has_players"] = envs["mean_eval_return"].has_players
        before, cpu_s = cpu_s, time.process_time()
        row["eval_cpu_s"] = cpu_s - before
        outbox.send_bytes(json.dumps(row).encode())
    for env in envs.values():
        env.close()
