# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Environments as tensors."""

from examples.tensors.asterix import Asterix
from examples.tensors.breakout import Breakout
from examples.tensors.freeway import Freeway
from examples.tensors.seaquest import Seaquest
from examples.tensors.space_invaders import SpaceInvaders
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
    if name not in GAMES:
        raise UserError(f"--env {name}: expected one of {', '.join(GAMES)}")
    return GAMES[name]()
