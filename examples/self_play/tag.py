# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""MPE's Tag, in which three adversaries catch an agent: `--env examples.self_play.tag:Tag-v0`.

All act at once. The adversaries share a network, and the agent has another one. In a fork,
`create_env` may return `simple_tag_v3.parallel_env()` itself; only `gymnasium.make` needs a class.
"""

import gymnasium
from mpe2 import simple_tag_v3

from libtorchbeast.parallel import Grouped


class Tag(Grouped, gymnasium.Env):
    """`return` is that of adversary_0; `return_agent_0` and so on are numbers of the game."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None):
        super().__init__(simple_tag_v3.parallel_env(render_mode=render_mode))


gymnasium.register("Tag-v0", Tag)
