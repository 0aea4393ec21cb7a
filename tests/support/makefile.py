# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What the Makefile does, without the seconds that each program takes to start."""

import re
import subprocess

from tests.support.processes import ROOT


def printed(*command, cwd=ROOT):
    """What a command prints, which must succeed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def programs(*words):
    """The Python programs that `make` would run: the module and the words that the shell gives."""
    commands = printed("make", "-n", *words).replace("\\\n", " ")
    lines = re.findall(r"/python -m (?!pip )(\S+) (.*)", commands)
    shown = lambda line: printed("bash", "-c", f"printf '%s\\n' {line}")
    return [(module, shown(line).splitlines()) for module, line in lines]
