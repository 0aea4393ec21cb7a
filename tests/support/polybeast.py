# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Runs PolyBeast in the test's process or in another one, with small settings."""

import functools

import polybeast
from tests.support import monobeast
from tests.support.processes import Program, wait_for

CATCH = "--env tests.support.envs:Catch-v0 --net monobeast.Net".split()
SMALL = [*CATCH, *"--num_servers 1 --envs_per_server 4 --batch_size 4 --log_every 0.5".split()]
FOREVER = [*SMALL, "--total_steps", 1_000_000_000]


class Poly(Program):
    """PolyBeast in its own process. Its temporary files are in savedir/t."""

    def __init__(self, savedir, *flags, **environment):
        self.temporary = savedir / "t"
        self.temporary.mkdir(exist_ok=True)
        super().__init__(savedir, *flags, module="polybeast", TMPDIR=self.temporary, **environment)

    servers = Program.actors

    def wait_until_nothing_is_left(self):
        """Waits until no process is left, and checks that no socket and no folder are left."""
        wait_for(lambda: not self.session(), describe=self.printed)
        assert not list(self.temporary.glob("torchbeast*/**"))


beast = functools.partial(monobeast.beast, program=polybeast)


def refusal(savedir, *flags, program=polybeast):
    """Returns the line with which the program refuses to start, without its name."""
    message = monobeast.refusal(savedir, *flags, program=program)
    name = f"{program.__name__}: error: "
    assert message.startswith(name)
    return message.removeprefix(name)


def parse(*flags):
    return polybeast.parse([str(word) for word in flags])
