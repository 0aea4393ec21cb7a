# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Asserts that nested states are equal, and their tensors bit for bit or within a tolerance."""

import torch


def assert_same(a, b, rtol=0.0, atol=0.0):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        if rtol or atol:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
        else:
            assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert_same(list(a.values()), list(b.values()), rtol, atol)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y, rtol, atol)
    else:
        assert a == b
