# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments as tensors."""

import re

from examples.tensors.asterix import Asterix
from examples.tensors.breakout import Breakout
from examples.tensors.freeway import Freeway
from examples.tensors.seaquest import Seaquest
from examples.tensors.space_invaders import SpaceInvaders
from examples.tensors.tag import Tag
from libtorchbeast.flags import UserError
from libtorchbeast.tensors import TensorEnv

GAMES = {
    "asterix": Asterix,
    "breakout": Breakout,
    "freeway": Freeway,
    "seaquest": Seaquest,
    "space_invaders": SpaceInvaders,
}


def make(name: str) -> TensorEnv:
    """Returns the environment of this name. Raises UserError if there is none."""
    first, *options = name.split("/")
    if first == "tag":
        return make_tag(name, options)
    if name not in GAMES:
        raise UserError(f"--env {name}: expected one of {', '.join(GAMES)}, or tag")
    return GAMES[name]()


def make_tag(name: str, options: list[str]) -> Tag:
    """Tag with options like those of tag/4v1/continuous/partial/shared, in any order."""
    words = {"continuous", "partial", "shared"}
    numbers = [option for option in options if re.fullmatch(r"[1-9]\d*v[1-9]\d*", option)]
    known = {*words, *numbers[:1]}
    if unknown := [option for option in options if option not in known]:
        said = (
            "expected a number of taggers and of runners like 4v1, continuous, partial, or shared"
        )
        raise UserError(f"--env {name}: {said}; seen {unknown[0]!r}")
    taggers, runners = map(int, (numbers or ["4v1"])[0].split("v"))
    return Tag(taggers, runners, **{word: word in options for word in words})
