# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A game of three agents who act at once, with PettingZoo's `ParallelEnv` as its interface."""

import gymnasium
import numpy as np
from gymnasium import spaces

from libtorchbeast.parallel import Grouped

NUMBERS, STEPS, LEAVES = 3, 4, 2


class Match:
    """All see a number and should choose it. The reward of each is the share of them that do.

    A game has four steps. Walker 1 leaves after two of them. At the end walker 0 has terminated,
    and the guide is truncated. A walker's mask allows all, but forbids all in its last observation.
    """

    possible_agents = ["guide_0", "walker_0", "walker_1"]
    metadata = {"render_modes": ["rgb_array"], "frames_per_step": 2}
    render_mode = "rgb_array"

    def __init__(self):
        self.agents, self.closed = [], False

    def observation_space(self, agent):
        if agent == "guide_0":
            return spaces.Box(-1, 1, (NUMBERS + 1,), np.float32)
        number = spaces.Dict(number=spaces.MultiBinary(NUMBERS))
        return spaces.Dict(seen=number, action_mask=spaces.MultiBinary(NUMBERS))

    def action_space(self, agent):
        return spaces.Discrete(NUMBERS + (agent == "guide_0"))

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.steps = [*self.possible_agents], 0
        return self.observe(self.agents, []), {agent: {} for agent in self.agents}

    def observe(self, agents, ended):
        self.number = int(self.random.integers(NUMBERS))
        one_hot = np.eye(NUMBERS, dtype=np.int8)[self.number]
        seen = lambda agent: {"seen": {"number": one_hot}, "action_mask": mask(agent)}
        mask = lambda agent: np.full(NUMBERS, agent not in ended, np.int8)
        guide = np.append(one_hot, self.steps / STEPS).astype(np.float32)
        return {agent: guide if agent == "guide_0" else seen(agent) for agent in agents}

    def step(self, actions):
        acted = self.agents
        assert actions.keys() == {*acted}
        assert all(self.action_space(agent).contains(a) for agent, a in actions.items())
        share = sum(a == self.number for a in actions.values()) / len(actions)
        self.steps += 1
        is_over = self.steps == STEPS
        truncations = {agent: agent == "guide_0" and is_over for agent in acted}
        over = {"walker_0": is_over, "walker_1": self.steps == LEAVES}
        terminations = {agent: over.get(agent, False) for agent in acted}
        ended = [agent for agent in acted if terminations[agent] or truncations[agent]]
        self.agents = [agent for agent in acted if agent not in ended]
        seen, rewards = self.observe(acted, ended), dict.fromkeys(acted, share)
        return seen, rewards, terminations, truncations, {agent: {} for agent in acted}

    def render(self):
        return np.full((16, 16, 3), 80 * self.number, np.uint8)

    def close(self):
        self.closed = True


class Registered(Grouped, gymnasium.Env):
    """As `--env` takes it. `gymnasium.make` accepts no ParallelEnv."""

    metadata = Match.metadata

    def __init__(self, render_mode=None):
        super().__init__(Match())


gymnasium.register("Match-v0", Registered)
