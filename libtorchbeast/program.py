# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What the command line of each training program does: it trains, tests or exports."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from libtorchbeast import evaluate
from libtorchbeast.checkpoint import CheckpointError, parse_for_run
from libtorchbeast.flags import Flags, Parser, UserError, choose_xpid, parse_args
from libtorchbeast.loggers import display
from libtorchbeast.loggers.files import RunInUse

MakeParser = Callable[[], Parser]
CheckFlags = Callable[[argparse.Namespace], Flags]


def parse(make_parser: MakeParser, check_flags: CheckFlags, argv: list[str]) -> Flags:
    """The checked flags of a command line, for a new run. Raises UserError for a wrong one."""
    draft = parse_args(make_parser(), argv)
    choose_xpid(draft)
    return check_flags(draft)


def main(
    name: str,
    make_parser: MakeParser,
    check_flags: CheckFlags,
    train: Callable[[Flags], Any],
    player: evaluate.Player,
    argv: list[str] | None = None,
) -> None:
    """Runs the program of the module `name` as `argv` says (default: the command line). A mistake
    of the user ends the process with one line on stderr and exit code 1."""
    display.set_up_logging()
    try:
        try:
            tempfile.gettempdir()
        except FileNotFoundError as error:
            raise UserError(f"{error.strerror}: is the disk full?") from error
        flags = check_flags(parse_for_run(make_parser, sys.argv[1:] if argv is None else argv))
        if flags.mode != "train":
            evaluate.play_newest(flags, player)
            return
        train(flags)
    except (UserError, CheckpointError, RunInUse, argparse.ArgumentError) as error:
        sys.exit(f"{name}: error: {error}")


def games_at_once(flags: Flags, most: int) -> int:
    """How many environments a beast's `player` opens, at most `most`. It is 1 in test_render, whose
    video shows one game after the other, and in export, which plays none."""
    return 1 if flags.mode in ("test_render", "export") else min(flags.num_episodes, most)
