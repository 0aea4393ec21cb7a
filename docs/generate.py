# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Writes docs/flags.md from the programs' parsers.

    make docs

tests/docs_test.py checks that the page is current. The sentences at its top are below.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import monobeast
import polybeast
import polybeast_env
import r2d2
import warpbeast
from libtorchbeast.flags import help_of

PAGE = Path(__file__).with_name("flags.md")
PROGRAMS = {
    "MonoBeast": monobeast, "PolyBeast": polybeast, "servers": polybeast_env, "R2D2": r2d2,
    "WarpBeast": warpbeast,
}  # fmt: skip
BEASTS = ("MonoBeast", "PolyBeast")

FLAGS_LEAD = """\
# Flags

For anyone who looks up a flag. The `--help` of each program shows the first sentence of each.
`make docs` writes this page.

MonoBeast is `monobeast.py`, PolyBeast `polybeast.py`, R2D2 `r2d2.py` and WarpBeast `warpbeast.py`;
"servers" stands for `polybeast_env.py`. Where MonoBeast or PolyBeast lacks a flag, the column
"only" names the programs that have it. R2D2 has PolyBeast's flags except those of the loss,
self-play and ranks, `--passes` and `--minibatches`; its `--greedy` is always on. WarpBeast lacks
those of self-play and ranks. A flag that is listed a second time for R2D2 or WarpBeast has another
default there.

## Which to change first

- To learn faster or better: `--learning_rate`, `--batch_size`, `--entropy_cost`, `--total_steps`
  (the learning rate falls linearly to 0 over these steps).
- To make more steps per second: [speed.md](speed.md) says how to see what limits a run, and which
  flags may help.
- To reduce the policy lag: fewer environments per actor, or fewer `--num_buffers`.
- If environment steps are slow: a small `--batch_size`, for many updates. If they are fast: a large
  one.
"""


class Group(NamedTuple):
    """A section of the page."""

    title: str
    description: str


class Flag(NamedTuple):
    """A row of a section's table."""

    names: str
    default: str
    help: str


def describe(action: argparse.Action) -> Flag:
    default, text = help_of(action)
    if action.nargs == 0:
        default = "off"
    elif action.default is not None and default == str(action.default):
        default = f"`{default}`"
    value = f" {action.metavar}" if action.metavar else ""
    names = ", ".join(f"`{name}{value}`" for name in action.option_strings)
    if action.choices:
        names += f": {', '.join(map(str, action.choices))}"
    return Flag(*(part.replace("|", "\\|") for part in (names, default, text)))


def find_flags() -> dict[Group, dict[Flag, list[str]]]:
    """Returns for each group its flags, and for each flag the programs that have it. Groups and
    flags are in the order of the parsers."""
    groups: dict[Group, dict[Flag, list[str]]] = {}
    for program, module in PROGRAMS.items():
        for group in module.make_parser()._action_groups:
            for action in group._group_actions:
                if action.dest != "help" and action.help != argparse.SUPPRESS:
                    flags = groups.setdefault(Group(group.title, group.description or ""), {})
                    flags.setdefault(describe(action), []).append(program)
    return groups


def only(programs: list[str]) -> str:
    return "" if set(BEASTS) <= set(programs) else ", ".join(programs)


def flags_page() -> str:
    page = FLAGS_LEAD
    for group, flags in find_flags().items():
        whose = {only(programs) for programs in flags.values()}
        heading = group.title.capitalize()
        if len(whose) == 1 and whose != {""}:  # the same title may be another program's too
            heading += f" ({whose.pop()})"
        page += f"\n## {heading}\n\n" + (f"{group.description}\n\n" if group.description else "")
        page += "| flag | default | meaning | only |\n| --- | --- | --- | --- |\n"
        for flag, programs in flags.items():
            page += f"| {flag.names} | {flag.default} | {flag.help} | {only(programs)} |\n"
    return page


def main() -> None:
    PAGE.write_text(flags_page())


if __name__ == "__main__":
    main()
