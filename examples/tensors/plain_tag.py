# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Tag in NumPy, one game and one agent at a time, for the checker:

    python -m examples.tensors.consistency examples.tensors.plain_tag:continuous

The functions at the end name the pairs.
"""

import numpy as np

from examples.tensors.tag import MOVES, REACH, SEEN, STEPS, Tag

F = np.float32


class PlainTag:
    """The same game as a `Tag`."""

    def __init__(self, tag):
        self.tag, self.agents = tag, range(tag.agents)
        self.catchers, self.prey = self.agents[: tag.taggers], self.agents[tag.taggers :]

    def reset(self, draws):
        draw = lambda: draws.take("places")
        if not self.tag.continuous:
            draw = lambda: F(draws.pick("places", self.tag.size))
        self.place = [np.array([draw(), draw()], F) for _ in self.agents]
        self.velocity = [np.zeros(2, F) for _ in self.agents]
        self.free = [True for _ in self.agents]
        self.reward, self.time = [F(0) for _ in self.agents], 0
        return self.seen()

    def step(self, actions, draws):
        for i in self.agents:
            if self.free[i]:
                self.move(i, actions[2 * i : 2 * i + 2] if self.tag.continuous else actions[i])
            else:
                self.velocity[i] = np.zeros(2, F)
        self.reward = [
            F(-0.01) if i in self.catchers else F(0.01 * self.free[i]) for i in self.agents
        ]
        caught = set()
        for i in self.catchers:
            for j in self.prey:
                if self.free[j] and self.touches(i, j):
                    self.reward[i] += F(1)
                    caught.add(j)
        for j in caught:
            self.free[j], self.reward[j] = False, F(-1)
        self.time += 1
        over = not any(self.free[j] for j in self.prey)
        total = sum(self.reward[i] for i in self.catchers)
        return self.seen(), total, over, self.time >= STEPS and not over

    def move(self, i, action):
        if self.tag.continuous:
            force = np.clip(action, -1, 1)
            self.velocity[i] = F(0.8) * self.velocity[i] + F(0.01) * force
            self.place[i] = np.clip(self.place[i] + self.velocity[i], 0, 1)
        else:
            self.velocity[i] = np.array(MOVES[action], F)
            self.place[i] = np.clip(self.place[i] + self.velocity[i], 0, self.tag.size - 1)

    def touches(self, i, j):
        x, y = self.place[i] - self.place[j]
        return x * x + y * y < REACH**2 if self.tag.continuous else x == y == 0

    def seen(self):
        frames = np.array([self.sees(i) for i in self.agents], F)
        parts, first = {}, 0
        for name, count in self.tag.groups.items():
            parts[f"{name}/frame"] = frames[first : first + count]
            parts[f"{name}/reward"] = np.array(self.reward[first : first + count], F)
            first += count
        return parts

    def where(self, i):
        """Place and velocity, scaled."""
        if self.tag.continuous:
            return np.concatenate([self.place[i], F(20) * self.velocity[i]])
        return np.concatenate([self.place[i] / F(self.tag.size - 1), self.velocity[i]])

    def sees(self, i):
        kind = lambda j: [float(j in self.catchers), float(self.free[j])]
        others = [[*(self.where(j) - self.where(i)), *kind(j)] for j in self.agents]
        if self.tag.partial:
            far = lambda j: others[j][0] * others[j][0] + others[j][1] * others[j][1]
            nearest = sorted((j for j in self.agents if j != i), key=far)[:SEEN]
            others = [others[j] for j in nearest]
        else:
            others[i] = [0.0] * 6
        return [*self.where(i), *kind(i), 1 - self.time / STEPS, *np.concatenate(others)]


def _pair(*numbers, **options):
    tag = Tag(*numbers, **options)
    return tag, lambda: PlainTag(tag)


def discrete():
    return _pair(4, 1)


def crowd():
    return _pair(6, 9, partial=True, shared=True)


def continuous():
    return _pair(4, 2, continuous=True)


def continuous_crowd():
    return _pair(5, 6, continuous=True, partial=True)
