# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Starts `tools.sweep` again and again, and kills each launcher at a random moment.

    python -m tests.support.killed_launchers FOLDER TIMES ARGUMENTS_OF_SWEEP...

The launchers are forked, which saves them the time of the imports.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from libtorchbeast.tools import sweep


def main():
    folder, times = Path(sys.argv[1]), int(sys.argv[2])
    moments, begin = random.Random(0), time.monotonic()
    for i in range(times):
        pid = os.fork()
        if pid == 0:
            sweep.main(sys.argv[3:])
        if i == 0:  # so long does a run need to make its first step
            while not list(folder.glob("*/counted")):
                time.sleep(0.001)
            longest = 1.5 * (time.monotonic() - begin)
        time.sleep(moments.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print("killed all", flush=True)
    sys.stdin.read()  # the test looks for what is still running


if __name__ == "__main__":
    main()
