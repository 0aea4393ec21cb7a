# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Columns of rollouts that all differ from each other."""

import torch

T, LAYERS, H = 3, 2, 4


def column(number):
    """The values of a column: {name: [T+1, ...] or [layers, H]}. No two columns are equal."""
    row = torch.arange(T + 1)
    return {
        "reward": number + row / 8,
        "frame": ((number + row)[:, None] + torch.tensor([0, 7])).to(torch.uint8),
        "done": (number + row) % 3 == 0,
        "action": 1000 * number + row,
        "core_state/0": torch.full((LAYERS, H), float(number)),
        "core_state/1": -number - torch.arange(LAYERS * H).view(LAYERS, H) / 16,
    }


def columns(numbers):
    parts = [column(number) for number in numbers]
    return {name: torch.stack([part[name] for part in parts], dim=1) for name in parts[0]}


def assert_equal(seen, expected):
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        assert seen[name].dtype == value.dtype and torch.equal(seen[name], value), name
