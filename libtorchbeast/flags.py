# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The flags that the programs share, and the types, checks and parser for all flags.

A program adds groups of flags to a `Parser`, those below and its own. It parses the command line,
fills in the defaults that depend on other flags, and freezes the result as `Flags`. This module
does not import torch, because environment servers use it too.
"""

import argparse
import datetime
import difflib
import json
import math
import os
import re
from collections.abc import Callable, Container
from typing import Any, NoReturn

MAX_COUNT = 2**31 - 1
MAX_STEPS = 2**62
SAVEDIR = "~/logs/torchbeast"
LONGEST_S = 1e9  # seconds; the nanoseconds of much longer times would overflow 64 bits

# The command line of a program whose flags another program has chosen.
FROM_STDIN = ["--flags_from_stdin"]

# Flags of one start and of its machine. A resume does not take them from the run.
OF_ONE_START = frozenset(
    """
    mode xpid savedir best against disable_checkpoint wandb compile learner_device inference_device
    torch_threads num_learner_threads num_actors num_buffers num_servers server_addresses tls_cert
    tls_key tls_ca insecure max_learner_queue_size rank_timeout
    """.split()
)
# Nor does a test mode take these, so that it plays the games that its help promises.
OF_ONE_TEST = frozenset("seed num_episodes max_episode_steps greedy".split())

Recipes = dict[str, dict[str, Any]]  # kind of environment -> defaults by the flag's name (recipes)


class UserError(ValueError):
    """A mistake of the user. The programs print its text without a traceback."""


class Flags(argparse.Namespace):
    """The checked flags of a program. They cannot be changed; `replace` makes a changed copy."""

    def __init__(self, **values: Any):
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:  # called only for a name that does not exist
        said = f"there is no flag --{name} in this program"
        raise AttributeError(f"{said} (docs/fork.md#flags-of-your-own says where to add one)")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"flags cannot be changed (--{name}); use libtorchbeast.flags.replace")


def replace(flags: Flags, **changes: Any) -> Flags:
    """Returns a copy of `flags` with some values changed. Raises AttributeError if a name is not
    one of the flags."""
    if unknown := sorted(changes.keys() - vars(flags).keys()):
        raise AttributeError(f"there are no flags {unknown}")
    return Flags(**vars(flags) | changes)


# ======================================================================= types that are also ranges
def whole(low: int, high: int = MAX_COUNT) -> Callable[[str], int]:
    """The type of a flag that is a whole number from `low` to `high`, also written like 1e6."""
    return _ranged(_whole, "a whole number", low, high, f"at least {low}")


def real(low: float, high: float = math.inf) -> Callable[[str], float]:
    """The type of a flag that is a finite number from `low` to `high`."""
    return _ranged(float, "a number", low, high, f"at least {low:g}")


def positive(high: float = math.inf) -> Callable[[str], float]:
    """The type of a flag that is a finite number above 0 and at most `high`."""
    return _ranged(float, "a number", 1e-300, high, "more than 0")


def _whole(text: str) -> int:
    """Converts a whole number, also one like 10_000.0 or 1e4. Raises ValueError for other text."""
    try:
        return int(text)
    except ValueError:
        if not (value := float(text)).is_integer():
            raise
        return int(value)


def _ranged(
    convert: Callable[[str], Any], kind: str, low: float, high: float, lowest: str
) -> Callable[[str], Any]:
    highest = f"{high:,.0f}" if high > 1e6 else f"{high:g}"
    expected = lowest if high == math.inf else f"{lowest} and at most {highest}"

    def checked(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text}: expected {kind}, {expected}") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text}: expected a finite number, {expected}")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text}: expected {expected}")
        return value

    # For the help text. A bound above a million only guards against an overflow.
    shown = lowest if high > 1e6 else expected
    checked.range = f"Range: {shown}."  # type: ignore[attr-defined]  # of a function
    return checked


# ============================================================================= parsing and checking
class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviated flags and raises UserError for a wrong flag or value."""

    def __init__(self, program: str, description: str | None):
        super().__init__(
            program, f"{program} [--FLAG VALUE ...]", description,
            formatter_class=lambda prog: HelpFormatter(prog, max_help_position=34),
            epilog=None if "." in program else "docs/flags.md says more about each flag.",
            allow_abbrev=False, exit_on_error=False,
        )  # fmt: skip

    def group(self, title: str, description: str) -> Callable[..., argparse.Action]:
        """Begins a group of flags, and returns its `add_argument`."""
        return self.add_argument_group(title, description).add_argument

    def add_shared(self, *groups: str) -> None:
        """Adds groups of the flags that programs share, by the names of SHARED."""
        for group in groups:
            SHARED[group](self)

    def explain(self, **helps: str) -> None:
        """Gives flags another help text, because they mean something else in this program. Those
        with argparse.SUPPRESS are left out of the help, because the program has no use for them."""
        for action in self._actions:
            action.help = helps.get(action.dest, action.help)

    def explain_recipes(self, recipes: Recipes, first: str = "with large images") -> None:
        """Ends the help of each flag so far whose default depends on the kind of environment with
        these defaults."""
        for action in [action for action in self._actions if action.dest in recipes["other"]]:
            atari, vectors, other = (
                f"{value:,}" if isinstance(value := of_kind[action.dest], int | float) else value
                for of_kind in (recipes["atari"], recipes["vectors"], recipes["other"])
            )
            on_atari = "" if atari == other else f"{atari} {first}, "
            with_vectors = "" if vectors == other else f"{vectors} with vectors, "
            elsewhere = " elsewhere" if on_atari or with_vectors else ""
            action.help = f"{action.help} Default: {on_atari}{with_vectors}{other}{elsewhere}."

    def parse_args(self, args=None, namespace=None):
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flag = next((word for word in unknown if word.startswith("-")), None)
            if flag is None:
                raise UserError(f"unexpected {unknown[0]!r}: flags begin with --")
            flag = flag.partition("=")[0]
            names = {string.lstrip("-"): string for string in self._option_string_actions}
            near = difflib.get_close_matches(flag.lstrip("-"), names, 1)
            hint = f"did you mean {names[near[0]]}?" if near else "--help lists all flags"
            raise UserError(f"unrecognized flag {flag}: {hint}")
        return namespace

    def parse_known_args(self, args=None, namespace=None):
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            name = (error.argument_name or "").split("/")[0]
            is_value = error.__context__.__class__ is argparse.ArgumentTypeError
            raise UserError(f"{name}{' ' if is_value else ': '}{error.message}") from None

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows of each flag the first sentence of its help and the default, so that all flags fit on
    a few screens."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return "N" if hasattr(action.type, "range") else "VALUE"

    def _expand_help(self, action: argparse.Action) -> str:
        default, text = help_of(action)
        first = re.split(r"(?<=\.) (?=[A-Z(])", text, maxsplit=1)[0]
        return f"{first} Default: {default}." if default else first


def help_of(action: argparse.Action) -> tuple[str, str]:
    """A flag's default, and its help with its number's range. Where the help has no sentence
    "Default: ...", the default is the parser's. A percent sign may stand alone, unlike in argparse,
    but argparse's %% and %(default)s are understood."""
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    text = f"{text} {getattr(action.type, 'range', '')}".rstrip()
    if stated := re.search(r"\s*Default: (.*?)\.(?=\s|$)", text):
        return stated[1], (text[: stated.start()] + text[stated.end() :]).strip()
    no_default = action.default in (None, argparse.SUPPRESS) or action.nargs == 0
    return "" if no_default else str(action.default), text


def parse_args(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parses a command line. If it is only `--flags_from_stdin`, the flags are read from a line of
    JSON on standard input, which another program has made with `to_json`. Raises UserError if there
    is no such flag, or a value has the wrong type or is out of range."""
    if argv != FROM_STDIN:
        return parser.parse_args(argv)
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # no byte beyond the line is read
        line = stdin.readline()
    try:
        settings = json.loads(line)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise UserError(f"--flags_from_stdin: expected flags as JSON, seen {line[:40]!r}")
    return from_settings(parser, settings)


def from_settings(parser: argparse.ArgumentParser, settings: dict[str, Any]) -> argparse.Namespace:
    """Parses `settings` (name -> value) as if they had been given on the command line. Strings are
    converted to the flag's type. Names that the parser does not know are ignored."""
    values = {name: settings.get(name, default) for name, default in parser._defaults.items()}
    for action in parser._actions:
        value = settings.get(action.dest, action.default)
        if value is not argparse.SUPPRESS:
            values[action.dest] = _converted(value, action)
    return argparse.Namespace(**values)


def _converted(value: Any, action: argparse.Action) -> Any:
    """Converts what is still a string, also in a list, as the parser does with a command line."""
    if isinstance(value, list):
        takes_many = action.nargs not in (None, "?") or isinstance(action, argparse._AppendAction)
        # Where the flag takes one value, its type itself has made the list.
        return [_converted(item, action) for item in value] if takes_many else value
    if not (isinstance(value, str) and callable(action.type)):
        return value
    try:
        return action.type(value)
    except (LookupError, TypeError, ValueError, argparse.ArgumentTypeError) as error:
        flag = action.option_strings[-1] if action.option_strings else action.dest
        raise UserError(f"{flag} {value}: its type cannot parse this value: {error}") from error


def given(parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """Returns the flags that are given on the command line, and their values. It removes the
    parser's defaults, so the parser cannot be used afterwards."""
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    parser._defaults.clear()  # those of `set_defaults`
    return vars(parser.parse_args(argv))


def take_over(
    draft: argparse.Namespace,
    saved: dict[str, Any],
    given: Container[str],
    parser: argparse.ArgumentParser,
) -> None:
    """Gives those flags of `draft` that are not `given` on the command line the values that are
    `saved` in a run's checkpoint. So a resume need not repeat the run's command line, and newer
    defaults do not change the run.

    Flags of one start keep their values. --num_actors is one of them because it depends on the
    machine, but it is taken over if it is 0 in the run, which is another way to train.
    """
    if "recipe" in given and draft.mode == "train":
        own = saved.get("recipe")
        said = f"{own or 'no --recipe'}, as in the run that resumes"
        require(draft, "recipe", draft.recipe == own, said)
    leave = OF_ONE_START if draft.mode == "train" else OF_ONE_START | OF_ONE_TEST
    if saved.get("num_actors") == 0:
        leave = leave - {"num_actors"}
    own = {k: x for k, x in saved.items() if k in draft and k not in given and k not in leave}
    values = vars(from_settings(parser, own))
    vars(draft).update({name: values[name] for name in own})


def require(flags: argparse.Namespace, name: str, holds: bool, expected: str) -> None:
    """Raises UserError, with the flag's name, its value and `expected`, unless `holds`."""
    if not holds:
        raise UserError(f"--{name} {getattr(flags, name)}: expected {expected}")


def choose_xpid(flags: argparse.Namespace) -> None:
    """Chooses --xpid if it was not given, and makes paths absolute, because an environment may
    change the working directory. Raises UserError if --xpid is not a plain folder name, and when
    training if it is "latest", or a flag of the test modes is given."""
    if not flags.savedir.startswith("~"):
        flags.savedir = os.path.abspath(flags.savedir)
    savedir = os.path.expanduser(flags.savedir)
    for flag in ("init_from", "against"):  # a run of this name in --savedir comes first
        name = vars(flags).get(flag) or ""
        if os.path.exists(name) and not os.path.exists(os.path.join(savedir, name)):
            setattr(flags, flag, os.path.abspath(name))
    if flags.xpid is None:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        flags.xpid = f"torchbeast-{now}" if flags.mode == "train" else "latest"
    require(flags, "xpid", is_folder_name(flags.xpid), "a plain folder name")
    for name in ("savedir", "xpid"):  # where a path is not UTF-8, Python has surrogates
        require(flags, name, not re.search("[\ud800-\udfff]", getattr(flags, name)), "UTF-8")
    if flags.mode == "train":
        require(flags, "xpid", flags.xpid != "latest", "another name: latest is a link")
        for name in ("against", "best"):
            require(flags, name, not vars(flags).get(name), "--mode test, test_render or export")


def is_folder_name(name: str) -> bool:
    """Whether `name` is that of a folder: no path, not "." or "..", and no flag."""
    return name == os.path.basename(name) and name not in ("", ".", "..") and name[0] != "-"


def as_plain(flags: dict[str, Any]) -> dict[str, Any]:
    """Returns the flags as JSON would hold them. Values of other types become strings."""
    return json.loads(json.dumps(flags, default=str))


def to_json(settings: dict[str, Any]) -> bytes:
    """Returns the line that `parse_args` reads with --flags_from_stdin."""
    return json.dumps(as_plain(settings)).encode() + b"\n"


def run_path(flags: argparse.Namespace) -> str:
    """The run's folder. Raises UserError if --savedir begins with ~, and this user has no home."""
    return os.path.join(expanded(flags.savedir, "--savedir "), flags.xpid)


def expanded(path: str, flag: str = "") -> str:
    """The path, with a home folder for ~. Raises UserError if this user has none."""
    if (folder := os.path.expanduser(path)).startswith("~"):
        raise UserError(f"{flag}{path}: expected a folder: this user has no home folder")
    return folder


# ================================================================================== shared flags
# fmt: off
def _environment(parser: Parser) -> None:
    add = parser.group("environment", "Which environments are played.")
    add("--env", default="PongNoFrameskip-v4", metavar="ID",
        help="Id of a Gymnasium environment; MODULE:ID imports MODULE first. WarpBeast instead has "
             "environments that are written as tensor operations (examples/tensors).")
    add("--recipe", choices=["atari", "vectors", "other"],
        help="Whose defaults to take: those of large images, of vectors or of other environments. "
             "Left out, the observations decide.")
    add("--seed", type=whole(0), default=0,
        help="Seed of all random numbers: in the environments, the actions and the first weights.")
    add("--step_timeout", type=real(0.1, LONGEST_S), default=60.0, metavar="SECONDS",
        help="Longest time that an actor or a stream may take for one step of its environments. A "
             "process that takes longer is killed and replaced; with --num_actors 0 the run ends.")
    add("--open_timeout", type=real(0.1, LONGEST_S), default=300.0, metavar="SECONDS",
        help="Longest time that one environment may take to open and to reset for the first time. "
             "(A vector environment counts as one.) An actor or server that takes longer is "
             "replaced; with --num_actors 0 and in the test modes, the program ends.")


def _run(parser: Parser) -> None:
    add = parser.group("run", "What the program does, and where it writes.")
    add("--mode", default="train", choices=["train", "test", "test_render", "export"],
        help="Train, or play whole games with the newest checkpoint (test), also write a video of "
             "them (test_render), or write the policy to files that run without this repository "
             "(export).")
    add("--xpid", metavar="NAME",
        help="Name of the run, and of its folder in --savedir. If the run exists, it is resumed, "
             "and flags that are left out keep the run's values. Default: a name made from the "
             "date and the time; in the test modes, the newest run.")
    add("--savedir", default=SAVEDIR, metavar="FOLDER", help="Folder that holds all runs.")
    add("--init_from", metavar="RUN",
        help="Start a new run, at step 0 and with a fresh optimizer, from the weights of another: "
             "its name in --savedir, or the path of its folder or of a checkpoint. The networks "
             "must have the same shapes. Ignored when a run resumes.")
    add("--log_every", type=real(0.1), default=10.0, metavar="SECONDS",
        help="Time between two rows of the log.")
    add("--checkpoint_every", type=real(1), default=300.0, metavar="SECONDS",
        help="Time between two checkpoints. A run also saves one when it ends.")
    add("--keep_checkpoints_every", type=whole(0, MAX_STEPS), default=0, metavar="STEPS",
        help="Keep the weights of every so many steps in SAVEDIR/XPID/kept. 0 keeps none.")
    add("--keep_checkpoints", type=whole(1), default=20, metavar="FILES",
        help="How many of these files there are at most. Then the oldest is deleted for a new one.")
    add("--disable_checkpoint", action="store_true", help="Save no checkpoints, keep no weights.")
    add("--wandb", action="store_true", help="Also log to Weights & Biases (package wandb).")


def _learning(parser: Parser) -> None:
    add = parser.group("learning", "How long, how and on which device the learner learns.")
    add("--total_steps", type=whole(1, MAX_STEPS), help="Number of agent steps to learn from.")
    add("--batch_size", type=whole(1), metavar="B",
        help="Number of rollouts in a learner's batch, each of one environment.")
    add("--unroll_length", type=whole(1), metavar="T",
        help="Number of agent steps in a rollout.")
    add("--passes", type=whole(1, 1000),
        help="Number of passes over each batch. More than one should go with --ppo_clip, without "
             "which the policy moves too far from the actors' policy.")
    add("--minibatches", type=whole(1),
        help="Number of updates in each pass, each from another random part of the batch: of its "
             "rollouts if the network is recurrent, else of its transitions (one at least).")
    add("--num_learner_threads", "--num_threads", type=whole(1, 64),
        help="Number of learner threads. Each collects its own batches, but only one at a time "
             "updates the network. Default: 1, or 2 if the learner uses an accelerator.")
    add("--torch_threads", type=whole(1, 1024),
        help="Number of threads that torch uses for one operation on the CPU. Default: in "
             "MonoBeast, one for each core that its actors leave free (1 with --num_actors 0); in "
             "PolyBeast and R2D2, all cores for their own network on Atari, else half of them; in "
             "all, 1 if this process computes on accelerators only.")
    add("--learner_device", metavar="DEVICE",
        help="Device of the learner, any that torch has, for example cuda:1, xpu or mps. Default: "
             "the GPU if there is one (but not a Mac's) and --num_actors is not 0, else cpu.")
    add("--inference_device", metavar="DEVICE",
        help="Device of the networks that choose actions. Default: the learner's device; cpu for "
             "MonoBeast's actors, which are processes.")
    add("--precision", default="auto", choices=["auto", "bf16", "tf32", "fp32"],
        help="Precision of convolutions and matrix products. auto is bf16 if the hardware has "
             "instructions for it and the actions are not a Box, else fp32; networks here compute "
             "in fp32 where they read numbers above 8 bits. tf32 is float32 whose products "
             "NVIDIA's GPUs round to 10 bits, which nothing else allows; elsewhere it is fp32.")
    add("--compile", action="store_true",
        help="Compile the network with torch.compile, which takes minutes at the start. On a CPU "
             "it did not make training faster.")


def _model(parser: Parser) -> None:
    add = parser.group("model", "Which network is trained.")
    add("--net", metavar="MODULE.CLASS",
        help="Network to use instead of the program's own class Net, for example polybeast.Net.")
    add("--core", choices=["lstm", "mingru"],
        help="Give the network a recurrent core: an LSTM, or a minGRU (Feng et al. 2024), which "
             "trains in parallel over time. Default: none, except R2D2's LSTM.")
    add("--use_lstm", dest="core", action="store_const", const="lstm",
        help="The same as --core lstm.")


def _loss(parser: Parser) -> None:
    add = parser.group("loss", "The terms of the loss (see monobeast.py).")
    add("--entropy_cost", type=real(0),
        help="Weight of the entropy bonus in the first update.")
    add("--entropy_schedule", choices=["linear", "constant"], default="linear",
        help="linear lets the weight of the entropy bonus fall to 0 at --total_steps, as the "
             "learning rate does.")
    add("--baseline_cost", type=real(0), help="Weight of the baseline loss.")
    add("--discounting", type=real(0, 1), help="Discount factor gamma.")
    add("--reward_clipping", choices=["abs_one", "none"],
        help="abs_one clips rewards to [-1, 1] in the loss. Logged returns are never clipped.")
    add("--observation_scaling", choices=["moments", "pixels", "none"],
        help="moments normalises each number of an observation: it subtracts the running mean, "
             "divides by the running standard deviation, and clips to [-10, 10]. Images and "
             "integers are left as they are. pixels normalises images of bytes, too, and clips "
             "them to [-5, 5], so that small things that move stand out (with models.Parts).")
    add("--reward_scaling", choices=["returns", "none"],
        help="returns divides rewards in the loss by the running standard deviation of discounted "
             "returns, and clips to [-10, 10]. Logged returns are never scaled, but the baseline's "
             "values are.")
    add("--vtrace_lambda", type=real(0, 1),
        help="The lambda of V-trace (remark 2 of the IMPALA paper, which uses 1).")
    add("--clip_rho_threshold", type=positive(1e12), default=1.0,
        help="Upper bound of the importance weights (rho-bar in the paper), in the value targets "
             "and in the policy gradient.")
    add("--ppo_clip", type=real(0, 1), metavar="EPSILON",
        help="Clip the policy gradient as PPO does: an action has no gradient once its probability "
             "has changed by more than this share in the direction of its advantage, and a value "
             "has none once it has come nearer to its target by more than EPSILON. Advantages are "
             "standardised. With 0, the loss has the policy gradient of the IMPALA paper.")
    add("--loss_reduction", default="mean", choices=["mean", "sum"],
        help="Reduction of the loss over time and batch. The paper uses sum, together with "
             "--learning_rate 6e-4 --optimizer rmsprop --epsilon 0.01 --grad_norm_clipping 40.")


def _optimizer(parser: Parser) -> None:
    add = parser.group("optimizer", "How gradients change the weights.")
    add("--optimizer", default="adam", choices=["adam", "rmsprop"],
        help="Algorithm of the optimizer. The paper uses rmsprop.")
    # Within the bounds below no finite gradient can make a float32 weight infinite or NaN.
    add("--learning_rate", type=positive(1000),
        help="Learning rate of the first update. It falls linearly to 0 at --total_steps.")
    add("--no_learning_rate_decay", dest="learning_rate_decay", action="store_false",
        help="Keep the learning rate constant.")
    add("--epsilon", type=real(1e-12), default=1e-5,
        help="Constant in the denominator of Adam and RMSProp, for numerical stability.")
    add("--grad_norm_clipping", type=positive(1e12), default=0.5,
        help="Largest norm of the gradient of all weights. A larger gradient is scaled down to it.")


def _evaluation(parser: Parser) -> None:
    add = parser.group(
        "evaluation", "How whole games are played, in the test modes and while training.")
    add("--eval_every", type=whole(0, MAX_STEPS), metavar="STEPS",
        help="Number of agent steps between two evaluations while training. They run in a process "
             "of their own. 0 turns them off.")
    add("--eval_env", metavar="ENV,...",
        help="Ids of other environments, for example held-out levels. Each evaluation also plays "
             "--num_episodes games in each of them. Their observations and actions have to be "
             "those of --env.")
    add("--num_episodes", type=whole(1), default=10,
        help="Number of games that an evaluation or a test mode plays.")
    add("--max_episode_steps", type=whole(1), default=27_000,
        help="Number of agent steps after which an evaluation or a test mode cuts off a game.")
    add("--greedy", action="store_true",
        help="Take the most probable action instead of sampling one.")
    add("--against", metavar="RUN",
        help="In a test mode, with several players: the opponent in all games is another run, "
             "named as for --init_from. Who moves first, or which side it has, is drawn.")
    add("--best", action="store_true",
        help="In a test mode, play with the weights that evaluated best (model.best.tar) instead "
             "of the newest checkpoint.")


def _self_play(parser: Parser) -> None:
    add = parser.group("self-play", "Games against the run's own past.")
    add("--past_share", type=real(0, 1), default=0.0, metavar="SHARE",
        help="With several players: the share of games in which a file of "
             "--keep_checkpoints_every plays one side.")


def _ranks(parser: Parser) -> None:
    add = parser.group("ranks", "Several learners (docs/many_machines.md).")
    add("--rank_timeout", type=real(1, 3600), default=60.0, metavar="SECONDS",
        help="Under torchrun: if a rank gives no sign of life for this long, or is missing this "
             "long after the start, the others save the run and end. A rank that dies is noticed "
             "at once, and a rank whose environments are slow is waited for.")
# fmt: on


SHARED: dict[str, Callable[[Parser], None]] = {
    "environment": _environment, "run": _run, "self-play": _self_play, "learning": _learning,
    "model": _model, "loss": _loss, "optimizer": _optimizer, "evaluation": _evaluation,
    "ranks": _ranks,
}  # fmt: skip
