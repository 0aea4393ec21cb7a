# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Turns a checkpoint of the original TorchBeast into a run, to test it or to continue training.

    python -m libtorchbeast.tools.from_torchbeast OLD/torchbeast-1/model.tar --xpid old-pong
    python -m monobeast --mode test --xpid old-pong

The run gets the checkpoint's weights, settings and number of updates. The optimizer's running
averages start afresh. Which of TorchBeast's two networks it is, and whether it has an LSTM, is
recognized by the weights.
"""

import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import torch

from libtorchbeast.flags import SAVEDIR, Parser, UserError, run_path, shell_line
from libtorchbeast.loggers import display
from libtorchbeast.run import Run

# Patterns of TorchBeast's names of layers, and our names, for each of its two networks.
SHALLOW = {
    "conv1": "trunk.0", "conv2": "trunk.2", "conv3": "trunk.4", "fc": "fc.0",
    "core": "core", "policy": "policy", "baseline": "baseline",
}  # fmt: skip
DEEP = {
    r"feat_convs\.(\d)\.0": r"trunk.\1.conv",
    r"resnet1\.(\d)\.(\d)": r"trunk.\1.blocks.0.\2",
    r"resnet2\.(\d)\.(\d)": r"trunk.\1.blocks.1.\2",
    "fc": "fc.0", "core": "core", "policy": "policy", "baseline": "baseline",
}  # fmt: skip

# These flags of TorchBeast have the same name and the same meaning here.
SAME = (
    "env total_steps batch_size unroll_length entropy_cost baseline_cost discounting "
    "reward_clipping learning_rate alpha momentum epsilon grad_norm_clipping".split()
)
# TorchBeast always does this. Here these are flags with other defaults.
ALGORITHM = {"optimizer": "rmsprop", "loss_reduction": "sum", "vtrace_lambda": 1}


def convert(old: dict[str, torch.Tensor]) -> tuple[str, dict[str, torch.Tensor]]:
    """Returns the module whose `Net` has these weights, and the weights by the names that it uses.
    Raises UserError if the weights belong to neither of TorchBeast's networks."""
    if "conv1.weight" in old:
        module, names = "monobeast", SHALLOW
    elif "feat_convs.0.0.weight" in old:
        module, names = "polybeast", DEEP
    else:
        raise UserError(
            f"expected the weights of TorchBeast's AtariNet (conv1.weight, ...) or of its ResNet "
            f"(feat_convs.0.0.weight, ...), seen {sorted(old)[:5]}"
        )
    return module, {_renamed(name, names): tensor for name, tensor in old.items()}


def _renamed(name: str, names: dict[str, str]) -> str:
    for pattern, ours in names.items():
        if re.match(rf"{pattern}\.(weight|bias)", name):
            return re.sub(f"^{pattern}", ours, name)
    raise UserError(f"{name}: no weight of TorchBeast's networks has this name")


def load(path: str) -> dict[str, Any]:
    """Reads a checkpoint of TorchBeast. Raises UserError if the file is no such checkpoint, or
    holds objects that could run code when loaded."""
    try:
        state = torch.load(os.path.expanduser(path), weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds of errors
        first = str(error).splitlines()[0]
        raise UserError(f"{path}: expected a checkpoint of TorchBeast ({first})") from error
    if not isinstance(state, dict) or "model_state_dict" not in state:
        seen = sorted(state) if isinstance(state, dict) else type(state).__name__
        raise UserError(f"{path}: expected a checkpoint with model_state_dict, seen {seen}")
    return state


def command_line(old_flags: dict[str, Any], use_lstm: bool) -> list[str]:
    """Returns flags that give TorchBeast's algorithm and the old run's settings."""
    settings = {name: old_flags[name] for name in SAME if name in old_flags} | ALGORITHM
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return words + ["--use_lstm"] * use_lstm


def migrate(path: str, xpid: str, savedir: str, env: str | None) -> list[str]:
    """Writes the run SAVEDIR/XPID; returns the commands that play with it and train it further.
    Raises UserError if the checkpoint cannot be used, or the run exists."""
    state = load(path)
    module, weights = convert(state["model_state_dict"])
    old_flags = {k: v for k, v in state.get("flags", {}).items() if v is not None}
    if env is not None:
        old_flags["env"] = env
    if "env" not in old_flags:
        raise UserError(f"{path} does not name its environment; please give --env")
    beast = importlib.import_module(module)
    where = ["--xpid", xpid, "--savedir", savedir]
    settings = command_line(old_flags, any(name.startswith("core.") for name in weights))
    flags = beast.parse([*settings, *where])
    if os.path.exists(run_path(flags)):
        raise UserError(f"--xpid {xpid}: {run_path(flags)} exists; please choose another")
    net, environment = beast.player(flags)
    environment.close()
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{path} does not fit {flags.env}: {error}") from error
    own = beast.player, beast.targets, beast.loss
    with Run(flags, environment.spec, net, torch.device("cpu"), *own) as run:
        # TorchBeast's schedule counts updates. Here the learning rate depends on the step.
        run.learner.updates = int(state.get("scheduler_state_dict", {}).get("last_epoch", 0))
        run.learner.step = run.learner.updates * flags.unroll_length * flags.batch_size
        run.checkpoint()
    play, train = ["--mode", "test", *where], [*where, *settings]
    return [shell_line(module, words) for words in (play, train)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser("python -m libtorchbeast.tools.from_torchbeast", __doc__)
    parser.add_argument("path", metavar="MODEL.TAR", help="The checkpoint of TorchBeast.")
    parser.add_argument("--xpid", required=True, help="The name of the run to make.")
    parser.add_argument("--savedir", default=SAVEDIR, help="The folder of all runs.")
    parser.add_argument("--env", help="The environment. Default: what the checkpoint's flags say.")
    display.set_up_logging()
    try:
        flags = parser.parse_args(argv)
        play, train = migrate(flags.path, flags.xpid, flags.savedir, flags.env)
    except UserError as error:
        sys.exit(f"from_torchbeast: error: {error}")
    print(f"To play with it:\n    {play}\nTo train it further, as TorchBeast did:\n    {train}")


if __name__ == "__main__":
    main()
