# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Flags: those that the programs share, their ranges, and the frozen result.

A program makes a parser of the groups here and its own, parses, fills in what depends on other
flags, and freezes the result as `Flags`. Imports no torch: environment servers have none.
"""

import argparse
import datetime
import json
import math
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any, NoReturn

MAX_COUNT = 2**31 - 1
MAX_STEPS = 2**62
LONGEST_S = 1e9  # more seconds would overflow 64 bits of nanoseconds since the start

Recipes = dict[str, dict[str, Any]]  # "atari" or "other" -> defaults by the flag's name


class UserError(ValueError):
    """A mistake that one sentence explains better than a traceback does."""


class Flags(argparse.Namespace):
    """The checked flags of a program. They cannot be changed; `replace` makes a changed copy."""

    def __init__(self, **values: Any):
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"flags cannot be changed (--{name}); use libtorchbeast.flags.replace")


def replace(flags: Flags, **changes: Any) -> Flags:
    """A copy of `flags` with some values changed. Every name must exist already."""
    if unknown := sorted(changes.keys() - vars(flags).keys()):
        raise AttributeError(f"there are no flags {unknown}")
    return Flags(**vars(flags) | changes)


# ======================================================================= types that are also ranges
def whole(low: int, high: int = MAX_COUNT) -> Callable[[str], int]:
    """The type of a flag that is a whole number from `low` to `high`."""
    return _ranged(int, low, high, f"at least {low}")


def real(low: float, high: float = math.inf) -> Callable[[str], float]:
    """The type of a flag that is a finite number from `low` to `high`."""
    return _ranged(float, low, high, f"at least {low:g}")


def positive(high: float = math.inf) -> Callable[[str], float]:
    """The type of a flag that is a finite number above 0 and at most `high`."""
    return _ranged(float, 5e-324, high, "more than 0")


def _ranged(convert: type, low: float, high: float, lowest: str) -> Callable[[str], Any]:
    highest = f"{high:,.0f}" if high > 1e6 else f"{high:g}"
    expected = lowest if high == math.inf else f"{lowest} and at most {highest}"

    def checked(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            kind = "a whole number" if convert is int else "a number"
            raise argparse.ArgumentTypeError(f"{text}: expected {kind}, {expected}") from None
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text}: expected a finite number, {expected}")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text}: expected {expected}")
        return value

    checked.expected = f"{convert.__name__} {expected}"  # type: ignore[attr-defined]
    return checked


# ============================================================================= parsing and checking
class Parser(argparse.ArgumentParser):
    """Has no abbreviations, and answers a value out of range with one line (UserError)."""

    def __init__(self, program: str, description: str | None):
        super().__init__(
            program, description=description, formatter_class=HelpFormatter,
            allow_abbrev=False, exit_on_error=False,
        )  # fmt: skip

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            name = (error.argument_name or "").split("/")[0]
            raise UserError(f"{name} {error.message}") from None


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Ends a flag's help with its default, unless the help says it itself."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.default is None or action.nargs == 0 or "Default:" in text:
            return text
        return f"{text} Default: %(default)s."


def parse_args(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """The flags of a command line. `--flags_from_stdin` alone means that another program sends them
    as a line of JSON (`to_json`) on standard input."""
    if argv != ["--flags_from_stdin"]:
        return parser.parse_args(argv)
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # no byte beyond the line is read
        return from_settings(parser, json.loads(stdin.readline()))


def from_settings(parser: argparse.ArgumentParser, settings: dict[str, Any]) -> argparse.Namespace:
    """As if `settings` (name -> value) had been given on the command line. A string is converted by
    the flag's type; names that the parser does not have are left out."""
    known = vars(parser.parse_args([])).keys() & settings.keys()
    parser.set_defaults(**{name: settings[name] for name in known})
    return parser.parse_args([])


def given(parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """The flags that stand on the command line, and their values. Uses the parser up."""
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    return vars(parser.parse_args(argv))


def require(flags: Any, name: str, holds: bool, expected: str) -> None:
    """Raises UserError naming flag, value and what was expected of it, unless `holds`."""
    if not holds:
        raise UserError(f"--{name} {getattr(flags, name)}: expected {expected}")


def apply_recipe(flags: argparse.Namespace, recipe: dict[str, Any]) -> None:
    """Gives the flags that were not given the recipe's values."""
    for name, value in recipe.items():
        if getattr(flags, name) is None:
            setattr(flags, name, value)


def choose_xpid(flags: argparse.Namespace) -> None:
    """Chooses --xpid where it was not given, and checks it."""
    if flags.xpid is None:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        flags.xpid = f"torchbeast-{now}" if flags.mode == "train" else "latest"
    plain = flags.xpid == os.path.basename(flags.xpid) and flags.xpid not in ("", ".", "..")
    require(flags, "xpid", plain, "a plain folder name")
    if flags.mode == "train":
        require(flags, "xpid", flags.xpid != "latest", "another name: latest links to the newest")


def as_plain(flags: dict[str, Any]) -> dict[str, Any]:
    """As files have them: a value that JSON does not know, a Path say, becomes a string."""
    return json.loads(json.dumps(flags, default=str))


def to_json(settings: dict[str, Any]) -> bytes:
    """The line that `parse_args` reads with --flags_from_stdin."""
    return json.dumps(as_plain(settings)).encode() + b"\n"


def run_path(flags: Any) -> str:
    """The run's folder."""
    return os.path.join(os.path.expanduser(flags.savedir), flags.xpid)


def shell_line(module: str, words: list[str]) -> str:
    """`python -m MODULE ...` as it is to be typed here, with this very Python."""
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    return shlex.join([python, "-m", module, *words])


# ================================================================================== shared flags
# fmt: off
def add_environment_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """For every program that steps environments. Returns the group, for more of them."""
    group = parser.add_argument_group("environment", "Which environments are played.")
    add = group.add_argument
    add("--env", default="PongNoFrameskip-v4",
        help="Id of a Gymnasium environment. PolyBeast also knows Mock and Mock/4x10x10, which "
             "cost nothing to step, for benchmarks.")
    add("--seed", type=whole(0), default=0,
        help="Seed of everything that is random: environments, actions and first weights.")
    add("--step_timeout", type=real(0.1, LONGEST_S), default=60.0, metavar="SECONDS",
        help="Limit for one step or reset of the environments of an actor or a stream. The process "
             "that takes longer is replaced. Opening the environments is not timed.")
    return group


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run", "What the program does, and where it writes.")
    add = group.add_argument
    add("--mode", default="train", choices=["train", "test", "test_render"],
        help="test plays whole games with the newest checkpoint; test_render also films them.")
    add("--xpid",
        help="Name of the run. A run of that name is resumed. Default: the time of day; in the "
             "test modes, the newest run.")
    add("--savedir", default="~/logs/torchbeast", help="Folder that holds all runs.")
    add("--log_every", type=real(0.1), default=10.0, metavar="SECONDS",
        help="Time between two rows of the log.")
    add("--checkpoint_every", type=real(1), default=300.0, metavar="SECONDS",
        help="Time between two checkpoints. A run that stops also saves one.")
    add("--disable_checkpoint", action="store_true", help="Save no checkpoints.")
    add("--wandb", action="store_true",
        help="Log to Weights & Biases as well (needs pip install wandb).")
    add("--autotune", type=real(0.1, LONGEST_S), nargs="?", const=10.0, metavar="SECONDS",
        help="Before training, try other numbers of workers and batch sizes, each for SECONDS (10 "
             "if not given), and train with the fastest.")


def add_learner_flags(parser: argparse.ArgumentParser, recipes: Recipes) -> None:
    """Learning, model, loss, optimizer and evaluation: the same in every program that learns."""
    add_learning_flags(parser, recipes)
    add_model_flags(parser)
    add_loss_flags(parser)
    add_optimizer_flags(parser, recipes)
    add_evaluation_flags(parser, recipes)


def add_learning_flags(parser: argparse.ArgumentParser, recipes: Recipes) -> None:
    group = parser.add_argument_group("learning", "How much is learned, and on what.")
    add = group.add_argument
    add("--total_steps", type=whole(1, MAX_STEPS),
        help="Agent steps to learn from." + recipe_help(recipes, "total_steps"))
    add("--batch_size", type=whole(1), metavar="B",
        help="Columns in a learner's batch. A column is the rollout of one environment."
             + recipe_help(recipes, "batch_size"))
    add("--unroll_length", type=whole(1), default=20, metavar="T",
        help="Transitions in a rollout.")
    add("--num_learner_threads", "--num_threads", type=whole(1, 64), default=1,
        help="Learner threads. Each collects batches of its own; one updates at a time.")
    add("--torch_threads", type=whole(1, 1024),
        help="Threads that torch uses for one operation on the CPU. Default: MonoBeast takes the "
             "cores that its actors leave. PolyBeast takes all cores for its deep network on "
             "Atari, where the learner limits a run, and otherwise half of them.")
    add("--disable_cuda", action="store_true", help="Learn on the CPU even if there is a GPU.")
    add("--precision", default="auto", choices=["auto", "bf16", "fp32"],
        help="Precision of convolutions and matrix products. auto takes bf16 where the hardware "
             "computes with it.")
    add("--compile", action="store_true",
        help="Compile the network with torch.compile. This takes minutes at the start; on a CPU it "
             "has gained nothing.")


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model", "Which network is trained.")
    add = group.add_argument
    add("--net", metavar="MODULE.CLASS", help="Network to use instead of the program's own Net.")
    add("--use_lstm", action="store_true", help="Give the network a recurrent core.")


def add_loss_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("loss", "The IMPALA loss (see vtrace.py).")
    add = group.add_argument
    add("--entropy_cost", type=real(0), default=0.01, help="Weight of the entropy bonus.")
    add("--baseline_cost", type=real(0), default=0.5, help="Weight of the baseline loss.")
    add("--discounting", type=real(0, 1), default=0.99, help="Discount factor gamma.")
    add("--reward_clipping", default="abs_one", choices=["abs_one", "none"],
        help="abs_one clips the rewards of the loss to [-1, 1]. Logged returns are never clipped.")
    add("--vtrace_lambda", type=real(0, 1), default=0.95,
        help="lambda of V-trace (remark 2 of the paper, which uses 1).")
    add("--clip_rho_threshold", type=positive(), default=1.0,
        help="Bound of the importance weights of the value targets, rho-bar in the paper.")
    add("--clip_pg_rho_threshold", type=positive(), default=1.0,
        help="Bound of the importance weights of the policy gradient.")
    add("--loss_reduction", default="mean", choices=["mean", "sum"],
        help="Reduction over time and batch. The paper's sum goes with --learning_rate 6e-4 "
             "--optimizer rmsprop --epsilon 0.01 --grad_norm_clipping 40.")


def add_optimizer_flags(parser: argparse.ArgumentParser, recipes: Recipes) -> None:
    group = parser.add_argument_group("optimizer", "How gradients change the weights.")
    add = group.add_argument
    add("--optimizer", default="adam", choices=["adam", "rmsprop"],
        help="Optimizer. The paper uses rmsprop.")
    # Up to these bounds no finite gradient can make a float32 weight infinite or NaN.
    add("--learning_rate", type=positive(1000),
        help="Learning rate. It falls linearly to 0 at --total_steps."
             + recipe_help(recipes, "learning_rate"))
    add("--no_learning_rate_decay", dest="learning_rate_decay", action="store_false",
        help="Keep the learning rate constant.")
    add("--epsilon", type=real(1e-12), default=1e-5,
        help="Constant in the optimizer's denominator, for numerical stability.")
    add("--alpha", type=real(0, 1), default=0.99, help="Smoothing constant of RMSProp.")
    add("--momentum", type=real(0, 1), default=0.0, help="Momentum of RMSProp.")
    add("--grad_norm_clipping", type=positive(1e12), default=0.5,
        help="Largest norm of the gradient over all weights. A larger gradient is scaled down.")


def add_evaluation_flags(parser: argparse.ArgumentParser, recipes: Recipes) -> None:
    group = parser.add_argument_group(
        "evaluation", "Whole games, in the test modes and while training.")
    add = group.add_argument
    add("--eval_every", type=whole(0, MAX_STEPS), metavar="STEPS",
        help="Agent steps between two evaluations while training, which run in a process of their "
             "own. 0 turns them off." + recipe_help(recipes, "eval_every"))
    add("--num_episodes", type=whole(1), default=10, help="Games to play.")
    add("--max_episode_steps", type=whole(1), default=27_000,
        help="Agent steps after which a game is cut.")
    add("--greedy", action="store_true",
        help="Take the most probable action instead of sampling one.")
# fmt: on


def recipe_help(recipes: Recipes, name: str) -> str:
    """The end of a help text whose default depends on the kind of environment."""
    return f" Default: {recipes['atari'][name]:,} on Atari, {recipes['other'][name]:,} elsewhere."
